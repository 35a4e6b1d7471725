// The executor that uses the calling thread only; its order is the order that every other one must
// be equal to. Also holds Executor's out-of-line destructor. Runtime layer.
#include "quire/executor.h"

namespace quire {

Executor::~Executor() = default;

void SerialExecutor::run(size_t n, Body body) {
  for (size_t index = 0; index < n; ++index) body(index, 0);
}

}  // namespace quire

// executor_of: the executor passed to a call, or the default one. Runtime layer.
#pragma once
#include <memory>

#include "quire/executor.h"
#include "runtime/fail.h"

namespace quire {

/// The caller's executor (not owned), or shared ownership of the default one. Throws Error for an
/// executor without workers: memory and work are divided by their number.
inline std::shared_ptr<Executor> executor_of(Executor* given) {
  if (given == nullptr) return default_executor();
  if (given->concurrency() == 0)
    fail(ErrorKind::value, "Executor", "concurrency() must be at least 1; got 0");
  return std::shared_ptr<Executor>(std::shared_ptr<void>(), given);
}

}  // namespace quire

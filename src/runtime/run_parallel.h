// run_parallel: the only way the library passes work to an Executor. Every body runs in the default
// floating-point environment, whichever thread runs it. Runtime layer.
#pragma once
#include <cstddef>

#include "quire/executor.h"
#include "runtime/float_env.h"

namespace quire {

/// executor.run(n, body), with each body(index, worker) inside a FloatEnv.
template <class Body>
void run_parallel(Executor& executor, std::size_t n, const Body& body) {
  executor.run(n, [&body](std::size_t index, std::size_t worker) {
    const FloatEnv float_env;
    body(index, worker);
  });
}

}  // namespace quire

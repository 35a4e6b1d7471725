// executor_of: the executor passed to a call, or the default one. Runtime layer.
#pragma once
#include <memory>

#include "quire/executor.h"
#include "runtime/fail.h"

namespace quire {

/// A caller's executor, which outlives what it is used for, or a share in the default one. Throws
/// Error for one that says it has no worker: memory and work are divided by their number.
inline std::shared_ptr<Executor> executor_of(Executor* given) {
  if (given == nullptr) return default_executor();
  if (given->concurrency() == 0)
    fail(ErrorKind::value, "Executor", "concurrency() must be at least 1; got 0");
  return std::shared_ptr<Executor>(std::shared_ptr<void>(), given);
}

}  // namespace quire

// executor_of: the executor a call was given, or the default one. Runtime layer.
#pragma once
#include <memory>

#include "quire/executor.h"

namespace quire {

/// A caller's executor, which outlives what it is used for, or a share in the default one.
inline std::shared_ptr<Executor> executor_of(Executor* given) {
  if (given == nullptr) return default_executor();
  return std::shared_ptr<Executor>(std::shared_ptr<void>(), given);
}

}  // namespace quire

// Runs calls on the threads of an OpenMP runtime that another package has loaded. Python
// layer.
#pragma once
#include <memory>

#include "quire/executor.h"

namespace quire::python {

/// An executor on that many of its threads, the same one at every call; null for 0 or if no runtime
/// was registered.
std::shared_ptr<Executor> openmp_executor(int threads);

}  // namespace quire::python

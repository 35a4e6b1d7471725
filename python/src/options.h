// Options of attention as Python gives them: one object for every call. Python layer.
#pragma once
#include <memory>

#include "openmp.h"
#include "quire/attention.h"

namespace quire::python {

struct Options {
  AttentionOptions all;
  const char* function = "flex_attention";  // what the user called; lives as long as the process
  int openmp_threads = 0;

  /// The problem's executor, if it is one of OpenMP's, must be kept while the problem is used.
  std::shared_ptr<Executor> set_executor(AttentionProblem& problem) const {
    std::shared_ptr<Executor> executor = openmp_executor(openmp_threads);
    problem.executor = executor.get();
    return executor;
  }
};

}  // namespace quire::python

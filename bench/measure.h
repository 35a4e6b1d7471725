// What benchmarks of attention share: a clock, medians, and the multiply-adds a second that the
// machine can do on as many threads. Benchmarks only.
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/peaks.h"
#include "quire/executor.h"

namespace quire::bench {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Operations a second on all threads at once.
inline double peak(Executor& executor, bool bf16) {
  const kernels::PeakFunctions& peaks = *kernels::current_table().peaks;
  const auto loop = bf16 && peaks.pairs_bf16 != nullptr ? peaks.pairs_bf16 : peaks.fma_f32;
  const std::size_t threads = executor.concurrency();
  double operations = 0;
  const double start = now();
  executor.run(threads, [&](std::size_t i, std::size_t) {
    const double done = loop(kernels::current_table().lanes == 1 ? 20000 : 400000);
    if (i == 0) operations = done * static_cast<double>(threads);
  });
  return operations / (now() - start);
}

}  // namespace quire::bench

// What benchmarks of attention share: a clock, medians, and the multiply-adds a second that the
// machine can do on as many threads. Benchmarks only.
#pragma once
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/peaks.h"
#include "quire/executor.h"

namespace quire::bench {

/// Seconds that all threads of this process have computed.
inline double cpu_time() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Seconds; with QUIRE_BENCH_CPU_TIME in the environment those of cpu_time, to which other work of
/// the machine adds little. For one thread.
inline double now() {
  static const bool of_cpu = std::getenv("QUIRE_BENCH_CPU_TIME") != nullptr;
  if (of_cpu) return cpu_time();
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

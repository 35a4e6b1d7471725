// How much of what the machine can do a call of attention reaches: of the multiply-adds it could
// have done, or of the time a plain read of keys and values takes. The peak is timed before and
// after every repetition, on as many threads; the share is the median. Benchmarks and `quire
// bench`.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

#include "bench/measure.h"
#include "bench/problem.h"

namespace quire::bench {

struct PeakShare {
  double seconds = 0;                   // median
  double share = 0, low = 0, high = 0;  // median, least, most
};

/// Seconds to read keys and values once, on all threads.
inline double stream_seconds(Executor& executor, const ProblemTensors& tensors) {
  const kernels::PeakFunctions& peaks = *kernels::current_table().peaks;
  const std::size_t parts = executor.concurrency();
  const double start = now();
  for (const Tensor* tensor : {&tensors.k, &tensors.v}) {
    const std::size_t bytes = static_cast<std::size_t>(tensor->numel()) *
                              dtype_size(tensor->dtype()) / 1024 / parts * 1024;
    executor.run(parts, [&](std::size_t i, std::size_t) {
      volatile float sink = peaks.read(static_cast<const char*>(tensor->data()) + i * bytes, bytes);
      (void)sink;
    });
  }
  return now() - start;
}

/// `of_stream`: the share of a plain read, else that of the multiply-adds.
inline PeakShare measure_share(const Problem& problem, bool of_stream, Executor& executor,
                               int repetitions) {
  ProblemTensors tensors(problem);
  tensors.options.executor = &executor;
  AttentionPlan plan(AttentionShape::of(tensors.q_view, tensors.k_view, tensors.v_view),
                     tensors.options);
  const auto run = [&] {
    plan.run(tensors.q_view, tensors.k_view, tensors.v_view, {.out = tensors.out.view()});
  };
  const auto best = [&] {
    return of_stream ? stream_seconds(executor, tensors) : peak(executor, problem.is_bf16());
  };
  run();
  // Short ones are repeated inside of one measurement.
  double once = now();
  run();
  once = now() - once;
  const int inner = static_cast<int>(std::clamp(0.01 / once, 1.0, 1000.0));
  std::vector<double> times, shares;
  for (int i = 0; i < repetitions; ++i) {
    const double before = best();
    const double start = now();
    for (int j = 0; j < inner; ++j) run();
    const double seconds = (now() - start) / inner;
    const double reachable = (before + best()) / 2;
    times.push_back(seconds);
    shares.push_back(of_stream ? reachable / seconds : problem.flops() / seconds / reachable);
  }
  const auto [low, high] = std::minmax_element(shares.begin(), shares.end());
  return {.seconds = median(times), .share = median(shares), .low = *low, .high = *high};
}

}  // namespace quire::bench

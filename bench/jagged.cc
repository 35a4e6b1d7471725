// Jagged batches: flex_attention over sequences of different lengths as a share of the
// multiply-adds the machine could have done meanwhile, and how long plans take to make. The peak is
// timed before and after every repetition, on as many threads; numbers are medians.
//
//   jagged [--threads N] [--repetitions N] [--only TEXT] [--json]
#include "quire/jagged.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/problem.h"
#include "bench/settings.h"

namespace quire::bench {
namespace {

struct Row {
  std::string name;
  double milliseconds = 0, share = 0, low = 0, high = 0, gigaflops = 0, plan_milliseconds = 0;
};

Row measure(const JaggedProblem& problem, const Settings& settings) {
  const auto executor = make_thread_pool(settings.threads);
  JaggedProblemTensors t(problem);
  t.options.executor = executor.get();
  const Jagged q = t.jagged(t.q), k = t.jagged(t.k), v = t.jagged(t.v);
  std::vector<double> plans, times, shares;
  for (int i = 0; i < settings.repetitions; ++i) {
    const double start = now();
    const JaggedAttentionPlan made(q, k, v, t.options);
    plans.push_back(now() - start);
  }
  JaggedAttentionPlan plan(q, k, v, t.options);
  const auto run = [&] { plan.run(t.q, t.k, t.v, {.out = t.out.view()}); };
  run();
  double once = now();
  run();
  once = now() - once;
  // Short ones are repeated inside of one measurement.
  const int inner = static_cast<int>(std::clamp(0.01 / once, 1.0, 1000.0));
  const bool bf16 = problem.dtype == DType::bf16;
  for (int i = 0; i < settings.repetitions; ++i) {
    const double before = peak(*executor, bf16);
    const double start = now();
    for (int j = 0; j < inner; ++j) run();
    const double seconds = (now() - start) / inner;
    const double best = (before + peak(*executor, bf16)) / 2;
    times.push_back(seconds);
    shares.push_back(problem.flops() / seconds / best);
  }
  return {.name = problem.name(),
          .milliseconds = median(times) * 1e3,
          .share = median(shares),
          .low = *std::min_element(shares.begin(), shares.end()),
          .high = *std::max_element(shares.begin(), shares.end()),
          .gigaflops = problem.flops() / median(times) * 1e-9,
          .plan_milliseconds = median(plans) * 1e3};
}

void print(const Row& row, bool json) {
  if (json) {
    fmt::print(
        "{{\"name\": \"{}\", \"ms\": {:.4f}, \"share\": {:.4f}, \"low\": {:.4f}, \"high\": {:.4f}, "
        "\"gflops\": {:.1f}, \"plan_ms\": {:.4f}}}\n",
        row.name, row.milliseconds, row.share, row.low, row.high, row.gigaflops,
        row.plan_milliseconds);
  } else {
    fmt::print("{:56} {:9.3f} ms  {:5.3f} of peak ({:.3f}-{:.3f})  {:7.1f} GF/s  plan {:.3f} ms\n",
               row.name, row.milliseconds, row.share, row.low, row.high, row.gigaflops,
               row.plan_milliseconds);
  }
  std::fflush(stdout);
}

std::vector<JaggedProblem> problems() {
  std::vector<JaggedProblem> all;
  for (const bool causal : {false, true}) {
    for (const JaggedOrder order : {JaggedOrder::kTokens, JaggedOrder::kHeads}) {
      for (JaggedProblem p :
           {JaggedProblem::random(32, 16, 1024), JaggedProblem::random(1000, 1, 64)}) {
        p.causal = causal;
        p.order = order;
        all.push_back(p);
      }
    }
  }
  JaggedProblem half = JaggedProblem::random(32, 16, 1024);
  half.dtype = DType::bf16;
  all.push_back(half);
  JaggedProblem mixed = JaggedProblem::random(999, 1, 64);  // one long one among short ones
  mixed.lengths.push_back(4096);
  all.push_back(mixed);
  return all;
}

int run(int argc, char** argv) {
  const Settings settings = settings_of(argc, argv);
  print_head(settings);
  for (const JaggedProblem& problem : problems())
    if (problem.name().find(settings.only) != std::string::npos)
      print(measure(problem, settings), settings.json);
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }

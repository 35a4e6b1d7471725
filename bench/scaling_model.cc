// What more threads than this machine has would gain: the plan's own tasks for so many threads,
// each timed here on one thread, played on virtual threads that claim them as executors do.
// Efficiency is the time of one thread's plan divided by threads times predicted time. A
// prediction: every thread is taken to be as fast as this one, memory to feed all of them, and
// sections to begin after kWake. Times are those of this thread alone, whatever else the machine
// does, and of each task the least counts. Backward items that wait for their turn
// (kernels/backward/turn.h) are not made to wait.
//
//   scaling_model [prefill|decode|backward ...] [--repetitions N] [--only TEXT]
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/problem.h"
#include "bench/settings.h"
#include "quire/quire.h"

namespace quire::bench {
namespace {

constexpr double kWake = 5e-6;   // until other threads have begun (a pool that slept)
constexpr double kClaim = 1e-7;  // an index from the shared counter
constexpr double kGood = 0.8;    // rows below say why
constexpr int kThreads[] = {8, 16, 32, 64, 128, 256};

/// Says that it has many threads, runs everything on this one, and times each body.
class VirtualThreads final : public Executor {
 public:
  explicit VirtualThreads(int threads) : threads_(static_cast<std::size_t>(threads)) {}

  void run(std::size_t n, Body body) override {
    if (section_ == costs_.size()) costs_.emplace_back(n, 1e30);
    std::vector<double>& costs = costs_[section_++];
    for (std::size_t i = 0; i < n; ++i) {
      const double start = cpu_time();
      body(i, 0);
      costs[i] = std::min(costs[i], cpu_time() - start);
    }
  }
  std::size_t concurrency() const noexcept override { return threads_; }

  /// Before each run of the plan: the same sections come again, and of each cost the least counts.
  void begin_run() { section_ = 0; }

  struct Played {
    double seconds = 0;  // predicted
    double work = 0;     // of all threads together
    double longest = 0;  // task
    std::size_t tasks = 0;
  };
  Played play() const {
    Played played;
    for (const std::vector<double>& costs : costs_) {
      std::priority_queue<double, std::vector<double>, std::greater<>> free;
      for (std::size_t i = 0; i < std::min(threads_, costs.size()); ++i)
        free.push(i == 0 || threads_ == 1 ? 0 : kWake);
      double end = 0;
      for (const double cost : costs) {
        const double until = free.top() + cost + (costs.size() > 1 ? kClaim : 0);
        free.pop();
        free.push(until);
        end = std::max(end, until);
        played.work += cost;
        played.longest = std::max(played.longest, cost);
      }
      played.seconds += end;
      played.tasks += costs.size();
    }
    return played;
  }

 private:
  std::size_t threads_, section_ = 0;
  std::vector<std::vector<double>> costs_;
};

struct Case {
  std::string group;
  Problem problem;
  bool backward = false;
};

VirtualThreads::Played play(const Case& of, const ProblemTensors& tensors, int threads,
                            int repetitions) {
  VirtualThreads executor(threads);
  FlexAttentionOptions options = tensors.options;
  options.executor = &executor;
  const AttentionShape shape = AttentionShape::of(tensors.q_view, tensors.k_view, tensors.v_view);
  Tensor out = tensors.out.clone();
  if (!of.backward) {
    AttentionPlan plan(shape, options);
    for (int i = 0; i <= repetitions; ++i) {
      executor.begin_run();
      plan.run(tensors.q_view, tensors.k_view, tensors.v_view, {.out = out.view()});
    }
    return executor.play();
  }
  Tensor lse = Tensor::empty({of.problem.batch, of.problem.q_heads, of.problem.q_len}, DType::f32);
  AttentionPlan(shape, options)
      .run(tensors.q_view, tensors.k_view, tensors.v_view, {.out = out.view(), .lse = lse.view()});
  VirtualThreads behind(threads);
  options.executor = &behind;
  AttentionBackwardPlan plan(shape, AttentionBackwardOptions{.forward = options});
  Tensor d_q = tensors.q.clone(), d_k = tensors.k.clone(), d_v = tensors.v.clone();
  for (int i = 0; i <= repetitions; ++i) {
    behind.begin_run();
    plan.run({.q = tensors.q_view,
              .k = tensors.k_view,
              .v = tensors.v_view,
              .out = out,
              .lse = lse,
              .d_out = out},
             {.q = d_q.view(), .k = d_k.view(), .v = d_v.view()});
  }
  return behind.play();
}

/// Of a row below kGood: what takes most of the threads' time.
std::string reason(const VirtualThreads::Played& one, const VirtualThreads::Played& many,
                   int threads) {
  const double ideal = one.seconds / threads;
  if (many.tasks < static_cast<std::size_t>(threads)) return fmt::format("{} tasks", many.tasks);
  if (ideal < 4 * kWake) return fmt::format("{:.0f} us a thread, waking takes 5", ideal * 1e6);
  if (many.longest > 0.5 * ideal)
    return fmt::format("longest of {} tasks is {:.2f} of a thread's share", many.tasks,
                       many.longest / ideal);
  if (many.work > 1.15 * one.work)
    return fmt::format("tasks cut small do {:.2f} times the work", many.work / one.work);
  return fmt::format("{} tasks end unevenly", many.tasks);
}

void add_cases(std::vector<Case>& all) {
  Problem p;
  p.q_dtype = p.k_dtype = p.v_dtype = DType::bf16;
  p.head_dim = p.v_head_dim = 128;
  p.q_heads = 32;
  p.kv_heads = 8;
  p.mask = "causal";
  for (const std::int64_t batch : {1, 8, 64}) {
    for (const std::int64_t length : {512, 2048}) {
      p.batch = batch;
      p.q_len = p.kv_len = length;
      all.push_back({"prefill", p});
    }
  }
  p.mask = "";
  p.q_len = 1;
  for (const std::int64_t batch : {1, 8, 64}) {
    for (const std::int64_t keys : {2048, 8192, 32768, 131072}) {
      if (batch * keys > 8 * 131072) continue;  // 4 GiB of keys and values
      p.batch = batch;
      p.kv_len = keys;
      all.push_back({"decode", p});
    }
  }
  p.mask = "causal";
  p.kv_heads = p.q_heads = 16;
  p.q_dtype = p.k_dtype = p.v_dtype = DType::f32;
  for (const std::int64_t batch : {1, 8}) {
    p.batch = batch;
    p.q_len = p.kv_len = 2048;
    all.push_back({"backward", p, true});
  }
}

int run(int argc, char** argv) {
  Settings settings = settings_of(argc, argv);
  settings.threads = 1;
  settings.repetitions = std::min(settings.repetitions, 5);
  print_head(settings);
  fmt::print("predicted efficiency on so many threads\n{:9} {:54}", "", "");
  for (const int threads : kThreads) fmt::print("{:>6}", threads);
  fmt::print("   one thread\n");
  std::vector<Case> all;
  add_cases(all);
  for (const Case& of : all) {
    if (!settings.wants(of.group, of.problem.name())) continue;
    const ProblemTensors tensors(of.problem);
    const auto one = play(of, tensors, 1, settings.repetitions);
    fmt::print("{:9} {:54}", of.group, of.problem.name());
    std::string why;
    for (const int threads : kThreads) {
      const auto many = play(of, tensors, threads, settings.repetitions);
      const double efficiency = one.seconds / threads / many.seconds;
      fmt::print("{:6.2f}", efficiency);
      if (efficiency < kGood && why.empty())
        why = fmt::format("  [{}: {}]", threads, reason(one, many, threads));
      std::fflush(stdout);
    }
    fmt::print("  {:9.3f} ms{}\n", one.seconds * 1e3, why);
  }
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }

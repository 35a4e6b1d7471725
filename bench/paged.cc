// Paged keys: time over the same keys in a dense tensor, interleaved, for pages of several sizes in
// random order; a pool many times larger; a prefix that sequences share; and the books of a decode
// step (append and plan) for 256 sequences. Numbers are medians of ratios.
//
//   paged [--threads N] [--repetitions N] [--only TEXT] [--json]
#include "quire/paged.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/paged_problem.h"
#include "bench/settings.h"
#include "quire/attend.h"
#include "quire/kv_cache.h"

namespace quire::bench {
namespace {

void measure_paged(const PagedProblem& p, const Settings& settings) {
  if (p.name().find(settings.only) == std::string::npos) return;
  const auto executor = make_thread_pool(settings.threads);
  PagedTensors t(p);
  AttentionPlan dense(AttentionShape::of(t.q, t.k.view(), t.v.view()),
                      {.enable_gqa = true, .executor = executor.get()});
  PagedKeysPlan paged(t.q, t.keys(), {.enable_gqa = true, .executor = executor.get()});
  if (p.pool == 1) {
    print_ratio(
        settings, p.name(), "x dense",
        [&] { paged.run(t.q, t.k_pages(), t.v_pages(), {.out = t.out.view()}); },
        [&] { dense.run(t.q, t.k.view(), t.v.view(), {.out = t.out.view()}); });
    return;
  }
  PagedProblem small = p;
  small.pool = 1;
  PagedTensors tight(small);
  PagedKeysPlan in_small(tight.q, tight.keys(), {.enable_gqa = true, .executor = executor.get()});
  print_ratio(
      settings, p.name(), "x a tight pool",
      [&] { paged.run(t.q, t.k_pages(), t.v_pages(), {.out = t.out.view()}); },
      [&] { in_small.run(t.q, tight.k_pages(), tight.v_pages(), {.out = t.out.view()}); });
}

// Sequences that share all but their last page, against sequences that share nothing.
void measure_shared(std::int64_t sequences, DType dtype, const Settings& settings) {
  PagedProblem p{.batch = sequences, .kv_len = 4096, .dtype = dtype};
  const std::string name = fmt::format("shared prefix, {}", p.name());
  if (name.find(settings.only) == std::string::npos) return;
  const auto executor = make_thread_pool(settings.threads);
  PagedTensors t(p);
  Tensor shared = t.table.to(DType::i64);
  for (std::int64_t b = 1; b < sequences; ++b)
    for (std::int64_t page = 0; page + 1 < shared.dim(1); ++page)
      shared.at<std::int64_t>({b, page}) = shared.at<std::int64_t>({0, page});
  PagedKeys together = t.keys();
  together.page_table = shared;
  const PagedKeysOptions options{.enable_gqa = true, .executor = executor.get()};
  PagedKeysPlan apart(t.q, t.keys(), options), once(t.q, together, options);
  print_ratio(
      settings, name, "x faster",
      [&] { apart.run(t.q, t.k_pages(), t.v_pages(), {.out = t.out.view()}); },
      [&] { once.run(t.q, t.k_pages(), t.v_pages(), {.out = t.out.view()}); });
}

// Books of decode steps: no keys are written or read.
void measure_books(const Settings& settings) {
  constexpr int kSequences = 256;
  const std::string name = fmt::format("append and plan of {} sequences", kSequences);
  if (name.find(settings.only) == std::string::npos) return;
  const auto executor = make_thread_pool(settings.threads);
  KVCache cache({.kv_heads = 8, .head_dim = 128, .page_size = 16, .n_pages = kSequences * 100});
  std::vector<NewTokens> step;
  for (int i = 0; i < kSequences; ++i) {
    step.push_back({cache.create()});
    cache.append(step.back().sequence, 500 + 3 * i);
  }
  std::vector<double> appends, plans;
  for (int i = 0; i < 20 * settings.repetitions; ++i) {
    const double start = now();
    cache.append(step);
    const double middle = now();
    const AttendPlan plan(cache, step, {.q_heads = 32}, {.executor = executor.get()});
    plans.push_back((now() - middle) * 1e6);
    appends.push_back((middle - start) * 1e6);
  }
  print(settings, name + ": append", "us", median(appends),
        *std::min_element(appends.begin(), appends.end()),
        *std::max_element(appends.begin(), appends.end()));
  print(settings, name + ": plan", "us", median(plans),
        *std::min_element(plans.begin(), plans.end()),
        *std::max_element(plans.begin(), plans.end()));
}

int run(int argc, char** argv) {
  const Settings settings = settings_of(argc, argv);
  print_head(settings);
  measure_books(settings);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t page_size : {128, 64, 16, 7, 1})
      measure_paged({.batch = 2, .page_size = page_size, .dtype = dtype}, settings);
    for (const std::int64_t page_size : {128, 32, 16, 7, 1})
      measure_paged({.batch = 8, .page_size = page_size, .dtype = dtype, .torch_pool = true},
                    settings);
    for (const std::int64_t page_size : {128, 16}) {
      measure_paged({.q_len = 2048, .kv_len = 2048, .page_size = page_size, .dtype = dtype},
                    settings);
    }
    measure_paged({.kv_len = 4096, .page_size = 16, .pool = 64, .dtype = dtype}, settings);
    for (const std::int64_t sequences : {3, 12}) measure_shared(sequences, dtype, settings);
  }
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) { return quire::bench::run(argc, argv); }

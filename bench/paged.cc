// Paged keys: time over the same keys in a dense tensor, interleaved, for pages of several sizes in
// random order; a pool many times larger; a prefix that sequences share; and the books of a decode
// step (append and plan) for 256 sequences. Numbers are medians of ratios.
//
//   paged [--threads N] [--repetitions N] [--only TEXT] [--json]
#include "quire/paged.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/measure.h"
#include "bench/settings.h"
#include "quire/attend.h"
#include "quire/kv_cache.h"

namespace quire::bench {
namespace {

Tensor random_tensor(const Shape& shape, DType dtype) {
  Tensor values = Tensor::empty(shape, DType::f32);
  std::uint32_t state = 12345;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    state = state * 1664525 + 1013904223;
    values.data_as<float>()[i] = static_cast<float>(state >> 8) * 0x1p-23F - 1;
  }
  return values.to(dtype);
}

// Dense tensors and the same keys in pages of a pool, in random order.
struct PagedProblem {
  std::int64_t batch = 1, q_len = 1, kv_len = 8192, page_size = 128, pool = 1;
  DType dtype = DType::f32;
  std::int64_t q_heads = 32, kv_heads = 8, dim = 128;

  std::string name() const {
    return fmt::format("{} {} B{} H{}/{} L{} S{} D{} page {}{}", q_len == 1 ? "decode" : "prefill",
                       dtype_name(dtype), batch, q_heads, kv_heads, q_len, kv_len, dim, page_size,
                       pool == 1 ? "" : fmt::format(" pool x{}", pool));
  }
};

struct PagedTensors {
  Tensor q, k, v, out, k_pool, v_pool, table, lengths;

  explicit PagedTensors(const PagedProblem& p)
      : q(random_tensor({p.batch, p.q_heads, p.q_len, p.dim}, p.dtype)),
        k(random_tensor({p.batch, p.kv_heads, p.kv_len, p.dim}, p.dtype)),
        v(random_tensor({p.batch, p.kv_heads, p.kv_len, p.dim}, p.dtype)),
        out(Tensor::empty({p.batch, p.q_heads, p.q_len, p.dim}, p.dtype)),
        lengths({p.batch}, DType::i64) {
    const std::int64_t pages = (p.kv_len + p.page_size - 1) / p.page_size;
    const std::int64_t all = pages * p.batch * p.pool;
    std::vector<std::int64_t> places(all);
    std::iota(places.begin(), places.end(), 0);
    std::mt19937_64 random(1);
    std::shuffle(places.begin(), places.end(), random);
    table = Tensor({p.batch, pages}, DType::i64);
    std::copy_n(places.begin(), table.numel(), table.data_as<std::int64_t>());
    std::fill_n(lengths.data_as<std::int64_t>(), p.batch, p.kv_len);
    k_pool = fill(k, p, all);
    v_pool = fill(v, p, all);
  }

  PagedKeys keys() const { return {k_pool, v_pool, table, lengths}; }

 private:
  Tensor fill(const Tensor& from, const PagedProblem& p, std::int64_t pages) const {
    Tensor pool = Tensor::empty({pages, p.kv_heads, p.page_size, p.dim}, p.dtype);
    const auto row = static_cast<std::int64_t>(dtype_size(p.dtype)) * p.dim;
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t h = 0; h < p.kv_heads; ++h)
        for (std::int64_t key = 0; key < p.kv_len; key += p.page_size) {
          const std::int64_t page = table.view().at<std::int64_t>({b, key / p.page_size});
          std::memcpy(
              static_cast<char*>(pool.data()) + (page * p.kv_heads + h) * p.page_size * row,
              static_cast<const char*>(from.data()) + ((b * p.kv_heads + h) * p.kv_len + key) * row,
              std::min(p.page_size, p.kv_len - key) * row);
        }
    return pool;
  }
};

void print(const Settings& settings, const std::string& name, const char* what, double value,
           double low, double high) {
  if (settings.json) {
    fmt::print("{{\"name\": \"{}\", \"{}\": {:.4f}, \"low\": {:.4f}, \"high\": {:.4f}}}\n", name,
               what, value, low, high);
  } else {
    fmt::print("{:64} {:8.3f} {} ({:.3f}-{:.3f})\n", name, value, what, low, high);
  }
  std::fflush(stdout);
}

// Time of a over that of b, turn and turn about.
void print_ratio(const Settings& settings, const std::string& name, const char* what,
                 const std::function<void()>& a, const std::function<void()>& b) {
  a();
  b();
  double once = now();
  b();
  once = now() - once;
  const int inner = static_cast<int>(std::clamp(0.01 / once, 1.0, 1000.0));
  const auto time = [&](const std::function<void()>& run) {
    const double start = now();
    for (int i = 0; i < inner; ++i) run();
    return now() - start;
  };
  std::vector<double> ratios;
  for (int i = 0; i < settings.repetitions; ++i) {
    const double first = time(a), other = time(b), second = time(a);
    ratios.push_back((first + second) / 2 / other);
  }
  print(settings, name, what, median(ratios), *std::min_element(ratios.begin(), ratios.end()),
        *std::max_element(ratios.begin(), ratios.end()));
}

void measure_paged(const PagedProblem& p, const Settings& settings) {
  if (p.name().find(settings.only) == std::string::npos) return;
  const auto executor = make_thread_pool(settings.threads);
  PagedTensors t(p);
  AttentionPlan dense(AttentionShape::of(t.q, t.k, t.v),
                      {.enable_gqa = true, .executor = executor.get()});
  PagedKeysPlan paged(t.q, t.keys(), {.enable_gqa = true, .executor = executor.get()});
  if (p.pool == 1) {
    print_ratio(
        settings, p.name(), "x dense",
        [&] { paged.run(t.q, t.k_pool, t.v_pool, {.out = t.out.view()}); },
        [&] { dense.run(t.q, t.k, t.v, {.out = t.out.view()}); });
    return;
  }
  PagedProblem small = p;
  small.pool = 1;
  PagedTensors tight(small);
  PagedKeysPlan in_small(tight.q, tight.keys(), {.enable_gqa = true, .executor = executor.get()});
  print_ratio(
      settings, p.name(), "x a tight pool",
      [&] { paged.run(t.q, t.k_pool, t.v_pool, {.out = t.out.view()}); },
      [&] { in_small.run(t.q, tight.k_pool, tight.v_pool, {.out = t.out.view()}); });
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
      [&] { apart.run(t.q, t.k_pool, t.v_pool, {.out = t.out.view()}); },
      [&] { once.run(t.q, t.k_pool, t.v_pool, {.out = t.out.view()}); });
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

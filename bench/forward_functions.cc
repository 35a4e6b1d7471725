// The primitives of the prefill kernel, alone and in cache: products as a share of the multipliers'
// peak timed next to each repetition, the softmax in clock cycles per 16 scores (cycles: as long as
// one 512-bit multiply-add at that peak, or two of 256 bits, takes). On the ISA that QUIRE_ISA
// says.
#include "kernels/prefill/forward_functions.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/peaks.h"
#include "quire/tensor.h"

namespace quire {
namespace {

using namespace kernels;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  std::ranges::nth_element(samples, samples.begin() + samples.size() / 2);
  return samples[samples.size() / 2];
}

enum class Arithmetic { f32, f64, bf16_pairs };

// Operations done. f64 has half the lanes and the same instructions a cycle.
double run_peak(Arithmetic arithmetic, int64_t steps) {
  const PeakFunctions& peaks = *current_table().peaks;
  if (arithmetic == Arithmetic::bf16_pairs) return peaks.pairs_bf16(steps);
  return peaks.fma_f32(steps) * (arithmetic == Arithmetic::f64 ? 0.5 : 1);
}

// Calls `work` and the peak in turn; median of (time of the peak's operation) / (time of work's
// `flops`).
template <class Work>
double share_of_peak(benchmark::State& state, Arithmetic arithmetic, double flops, Work work) {
  constexpr int kCalls = 4;
  std::vector<double> shares;
  const int64_t steps = std::max<int64_t>(200, static_cast<int64_t>(flops * kCalls / (12 * 32)));
  for (auto _ : state) {
    const double start = seconds();
    for (int i = 0; i < kCalls; ++i) work();
    const double middle = seconds();
    const double peak_flops = run_peak(arithmetic, steps);
    const double end = seconds();
    shares.push_back(flops * kCalls / (middle - start) / (peak_flops / (end - middle)));
  }
  return median(shares);
}

template <class T>
const ForwardFunctions<T>& functions() {
  if constexpr (std::is_same_v<T, float>)
    return *current_table().forward_f32;
  else
    return *current_table().forward_f64;
}
template <class T>
constexpr Arithmetic kArithmetic = std::is_same_v<T, float> ? Arithmetic::f32 : Arithmetic::f64;

// Tensors are aligned to 64 bytes.
template <class T>
struct Buffer64 {
  Tensor tensor;
  T* data;
  explicit Buffer64(int64_t n)
      : tensor({n}, std::is_same_v<T, double> ? DType::f64 : DType::f32),
        data(static_cast<T*>(tensor.view().data())) {}
};

// Arguments: keys, dims, panels.
template <class T>
void scores(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0)), dims = static_cast<int>(state.range(1));
  const int panels = static_cast<int>(state.range(2));
  Buffer64<T> keys(rows * dims), queries(dims * kQueryTile);
  Buffer64<T> tile(kQueryPanels * kScorePanelStep), max(kQueryTile);
  const ScoresArgs<T> args{.keys = keys.data,
                           .key_step = dims,
                           .rows = rows,
                           .dims = dims,
                           .panels = panels,
                           .queries = queries.data,
                           .scores = tile.data,
                           .max = max.data};
  const auto& run = functions<T>().scores;
  state.counters["share"] =
      share_of_peak(state, kArithmetic<T>, 2.0 * rows * dims * panels * kPanel, [&] { run(args); });
}
std::vector<ChainRun> chains(int keys, int length) {
  std::vector<ChainRun> runs;
  for (int at = 0; at < keys; at += length) runs.push_back({at, at, std::min(length, keys - at)});
  return runs;
}
// Arguments: keys, columns, queries (of each of 4 panels).
template <class T>
void accumulate(benchmark::State& state) {
  const int keys = static_cast<int>(state.range(0)), columns = static_cast<int>(state.range(1));
  const int queries = static_cast<int>(state.range(2));
  Buffer64<T> values(keys * columns), weights(kQueryPanels * kScorePanelStep);
  Buffer64<T> out(kQueryTile * columns), factor(kPanel);
  const auto runs = chains(keys, chain_keys(false));
  const auto& run = functions<T>().accumulate;
  state.counters["share"] =
      share_of_peak(state, kArithmetic<T>, 2.0 * keys * columns * queries * kQueryPanels, [&] {
        for (int panel = 0; panel < kQueryPanels; ++panel)
          run({.runs = runs.data(),
               .run_count = static_cast<int>(runs.size()),
               .weights = weights.data + panel * kScorePanelStep,
               .values = values.data,
               .value_step = columns,
               .queries = queries,
               .columns = columns,
               .out = out.data + panel * kPanel * columns,
               .out_step = columns,
               .factor = factor.data});
      });
}
void pair_scores(benchmark::State& state) {
  if (current_table().pairs == nullptr) return state.SkipWithError("no bf16 products");
  const int rows = static_cast<int>(state.range(0)), dims = static_cast<int>(state.range(1)) / 2;
  const int panels = static_cast<int>(state.range(2));
  Buffer64<float> keys(rows * dims), queries(dims * kQueryTile);
  Buffer64<float> tile(kQueryPanels * kScorePanelStep), max(kQueryTile);
  const ScoresArgs<float, uint32_t> args{.keys = reinterpret_cast<const uint32_t*>(keys.data),
                                         .key_step = dims,
                                         .rows = rows,
                                         .dims = dims,
                                         .panels = panels,
                                         .queries = reinterpret_cast<const uint32_t*>(queries.data),
                                         .scores = tile.data,
                                         .max = max.data};
  state.counters["share"] =
      share_of_peak(state, Arithmetic::bf16_pairs, 4.0 * rows * dims * panels * kPanel,
                    [&] { current_table().pairs->scores(args); });
}
void pair_accumulate(benchmark::State& state) {
  if (current_table().pairs == nullptr) return state.SkipWithError("no bf16 products");
  const int keys = static_cast<int>(state.range(0)) / 2, columns = static_cast<int>(state.range(1));
  const int queries = static_cast<int>(state.range(2));
  Buffer64<float> values(keys * columns), weights(kQueryPanels * kScorePanelStep);
  Buffer64<float> out(kQueryTile * columns), factor(kPanel);
  const auto runs = chains(keys, chain_keys(true) / 2);
  const auto& run = current_table().pairs->accumulate;
  state.counters["share"] = share_of_peak(
      state, Arithmetic::bf16_pairs, 4.0 * keys * columns * queries * kQueryPanels, [&] {
        for (int panel = 0; panel < kQueryPanels; ++panel)
          run({.runs = runs.data(),
               .run_count = static_cast<int>(runs.size()),
               .weights = reinterpret_cast<const uint32_t*>(weights.data + panel * kScorePanelStep),
               .values = reinterpret_cast<const uint32_t*>(values.data),
               .value_step = columns,
               .queries = queries,
               .columns = columns,
               .out = out.data + panel * kPanel * columns,
               .out_step = columns,
               .factor = factor.data});
      });
}

// Argument: keys. A cycle: 16 lanes of multiply-add at the peak.
template <class T>
void softmax(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  Buffer64<T> tile(rows * kPanel), max(kPanel), m(kPanel), l(kPanel), factor(kPanel);
  const SoftmaxArgs<T> args{.scores = tile.data,
                            .groups = (1u << ((rows + 15) / 16)) - 1,
                            .rows = rows,
                            .max = max.data,
                            .m = m.data,
                            .l = l.data,
                            .factor = factor.data};
  const auto& run = functions<T>().softmax;
  const double share = share_of_peak(state, Arithmetic::f32, 32.0 * rows, [&] { run(args); });
  state.counters["cycles_per_16"] = 1 / share;
}
void pair_weights(benchmark::State& state) {
  if (current_table().pairs == nullptr) return state.SkipWithError("no bf16 products");
  const int rows = static_cast<int>(state.range(0));
  Buffer64<float> tile(rows * kPanel);
  const ChainRun run{.rows = rows};
  const PairWeightsArgs args{.weights = tile.data, .runs = &run, .run_count = 1};
  const double share = share_of_peak(state, Arithmetic::f32, 32.0 * rows,
                                     [&] { current_table().pairs->pair_weights(args); });
  state.counters["cycles_per_16"] = 1 / share;
}
template <class T>
void mask_scores(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  Buffer64<T> tile(kQueryPanels * kScorePanelStep), max(kQueryTile);
  const std::vector<uint64_t> words(rows, 0x123456789abcdef);
  const MaskScoresArgs<T> args{.scores = tile.data,
                               .rows = rows,
                               .panels = kQueryPanels,
                               .words = words.data(),
                               .max = max.data};
  const auto& run = functions<T>().mask_scores;
  const double share =
      share_of_peak(state, Arithmetic::f32, 32.0 * rows * kQueryPanels, [&] { run(args); });
  state.counters["cycles_per_16"] = 1 / share;
}
// Arguments: dims, dtype.
void load_queries(benchmark::State& state) {
  const int dims = static_cast<int>(state.range(0));
  Buffer64<float> from(kQueryTile * dims), out(kQueryTile * dims);
  const LoadQueriesArgs<float> args{.from = {.data = from.data,
                                             .dtype = static_cast<DType>(state.range(1)),
                                             .row_step = dims,
                                             .rows = kQueryTile,
                                             .columns = dims},
                                    .panels = kQueryPanels,
                                    .out = out.data};
  const double share = share_of_peak(state, Arithmetic::f32, 2.0 * kQueryTile * dims,
                                     [&] { functions<float>().load_queries(args); });
  state.counters["cycles_per_16"] = 1 / share;
}
void copy_rows(benchmark::State& state) {
  const int dims = static_cast<int>(state.range(0)), columns = (dims + 15) / 16 * 16;
  Buffer64<float> from(kTileKeys * dims), out(kTileKeys * columns);
  const CopyRowsArgs<float> args{.from = {.data = from.data,
                                          .dtype = static_cast<DType>(state.range(1)),
                                          .row_step = dims,
                                          .rows = kTileKeys,
                                          .columns = dims},
                                 .out = out.data,
                                 .out_step = columns,
                                 .out_columns = columns};
  const double share = share_of_peak(state, Arithmetic::f32, 2.0 * kTileKeys * dims,
                                     [&] { functions<float>().copy_rows(args); });
  state.counters["cycles_per_16"] = 1 / share;
}

void products(benchmark::internal::Benchmark* b, const std::vector<int64_t>& last) {
  for (const int64_t dims : {64, 128})
    for (const int64_t n : last) b->Args({256, dims, n});
  for (const int64_t dims : {40, 80}) b->Args({256, dims == 40 ? 48 : dims, last.front()});
}
void score_sizes(benchmark::internal::Benchmark* b) {
  products(b, {4, 3, 2, 1});
  for (const int64_t panels : {4, 3, 2, 1}) b->Args({16, 64, panels})->Args({200, 64, panels});
}
void output_sizes(benchmark::internal::Benchmark* b) {
  products(b, {16, 11, 4, 1});
  for (const int64_t columns : {16, 32, 48, 80, 96}) b->Args({256, columns, 16});
  b->Args({16, 64, 16})->Args({16, 128, 16});
}

BENCHMARK_TEMPLATE(scores, float)->Apply(score_sizes);
BENCHMARK_TEMPLATE(accumulate, float)->Apply(output_sizes);
BENCHMARK(pair_scores)->Apply(score_sizes);
BENCHMARK(pair_accumulate)->Apply(output_sizes);
BENCHMARK_TEMPLATE(scores, double)->Apply(score_sizes);
BENCHMARK_TEMPLATE(accumulate, double)->Apply(output_sizes);
BENCHMARK_TEMPLATE(softmax, float)->Arg(256)->Arg(200)->Arg(16);
BENCHMARK_TEMPLATE(softmax, double)->Arg(256);
BENCHMARK(pair_weights)->Arg(256);
BENCHMARK_TEMPLATE(mask_scores, float)->Arg(256);
BENCHMARK_TEMPLATE(mask_scores, double)->Arg(256);
BENCHMARK(load_queries)
    ->ArgsProduct({{64, 128, 40},
                   {static_cast<int>(DType::f32), static_cast<int>(DType::bf16),
                    static_cast<int>(DType::f16)}});
BENCHMARK(copy_rows)->ArgsProduct({{64, 128, 40},
                                   {static_cast<int>(DType::f32), static_cast<int>(DType::bf16),
                                    static_cast<int>(DType::f16)}});

}  // namespace
}  // namespace quire

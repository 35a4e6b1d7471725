// How long it takes to make a mod ready: trace or parse, simplify, compile to a tile program; and
// what running it costs per element. Counters are absolute here: there is no peer to take a ratio
// to, and no length a formula is recompiled for.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "formula/compile/compile.h"
#include "formula/gradient/differentiate.h"
#include "formula/simplify/simplify.h"
#include "kernels/dispatch.h"
#include "kernels/tile/tile_runner.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire {
namespace {

constexpr formula::Rectangle kExtents{{0, 0}, {0, 15}, {0, 2047}, {0, 2047}};

struct Buffers {
  Buffer slopes{std::vector<float>(16, 0.5f), {.name = "slopes"}};
  Buffer row{std::vector<float>(2048, 0.25f), {.name = "row"}};
  Buffer column{std::vector<float>(2048, 0.125f), {.name = "column"}};
};

// Twelve operations of the kinds mods are made of (22 values with their index arithmetic): two
// choices, two buffers by position, a slope per head, a square root, remainders, a sigmoid.
ScoreMod twelve(const Buffers& buffers) {
  return [&](auto score, auto, auto h, auto q, auto kv) {
    const auto distance = abs(kv - q);
    const auto t = score * 0.5 + where(distance < 128, buffers.row[kv], buffers.column[q]);
    const auto u = maximum(t - buffers.slopes[h] * sqrt(distance + 1.0), -50.0);
    return where(q % 3 == kv % 5, u, u * 0.75) + sigmoid(score) * 0.1;
  };
}

const char* const kTwelveText =
    "d = abs(kv_idx - q_idx); t = score * 0.5 + where(d < 128, row[kv_idx], column[q_idx]);"
    "u = maximum(t - slopes[h] * sqrt(d + 1.0), -50.0);"
    "where(q_idx % 3 == kv_idx % 5, u, u * 0.75) + sigmoid(score) * 0.1";

NamedBuffers named(const Buffers& buffers) {
  return {{"slopes", buffers.slopes}, {"row", buffers.row}, {"column", buffers.column}};
}

void trace(benchmark::State& state) {
  const Buffers buffers;
  for (auto _ : state) benchmark::DoNotOptimize(twelve(buffers));
}
BENCHMARK(trace)->Unit(benchmark::kMicrosecond);

void parse(benchmark::State& state) {
  const Buffers buffers;
  const NamedBuffers names = named(buffers);
  for (auto _ : state) benchmark::DoNotOptimize(ScoreMod::parse(kTwelveText, names));
}
BENCHMARK(parse)->Unit(benchmark::kMicrosecond);

void simplify(benchmark::State& state) {
  const Buffers buffers;
  const ScoreMod mod = twelve(buffers);
  for (auto _ : state) benchmark::DoNotOptimize(formula::simplify(mod.formula(), Precision::kF32));
}
BENCHMARK(simplify)->Unit(benchmark::kMicrosecond);

void compile(benchmark::State& state) {
  const Buffers buffers;
  const Formula simple = formula::simplify(twelve(buffers).formula(), Precision::kF32);
  for (auto _ : state)
    benchmark::DoNotOptimize(formula::compile({.score_mod = &simple}, {.extents = kExtents}));
}
BENCHMARK(compile)->Unit(benchmark::kMicrosecond);

// The claim: under 100 microseconds in all.
void trace_simplify_compile(benchmark::State& state) {
  const Buffers buffers;
  for (auto _ : state) {
    const Formula simple = formula::simplify(twelve(buffers).formula(), Precision::kF32);
    benchmark::DoNotOptimize(formula::compile({.score_mod = &simple}, {.extents = kExtents}));
  }
}
BENCHMARK(trace_simplify_compile)->Unit(benchmark::kMicrosecond);

void differentiate(benchmark::State& state) {
  const Buffers buffers;
  const ScoreMod mod = twelve(buffers);
  for (auto _ : state) {
    benchmark::DoNotOptimize(formula::differentiate(mod.formula(), Precision::kF32,
                                                    formula::GradientBuffers::kAllFloats));
  }
}
BENCHMARK(differentiate)->Unit(benchmark::kMicrosecond);

// One tile of 64 queries x 256 keys, 48 keys at a time as a kernel does between its products, the
// scores in L1: time per 16 scores, on the ISA that QUIRE_ISA says. (The products of 16 scores at
// head dim 64 take 35 ns at 117 GFLOP/s.)
void run_tile(benchmark::State& state, const char* text, const char* mask) {
  const Buffers buffers;
  NamedBuffers names = named(buffers);
  names.emplace_back("bias", Buffer(Tensor({2048, 2048}, DType::f32)));
  names.emplace_back("table", Buffer(Tensor({4095}, DType::f32)));
  names.emplace_back("doc", Buffer(Tensor({2048}, DType::i32)));
  const Formula score = formula::simplify(ScoreMod::parse(text, names).formula(), Precision::kF32);
  const Formula hidden = formula::simplify(MaskMod::parse(mask, names).formula(), Precision::kF32);
  const bool masked = hidden.graph()[hidden.root()].op != Op::kBoolConst;
  const kernels::TileProgram program = formula::compile(
      {.score_mod = &score, .mask_mod = masked ? &hidden : nullptr}, {.extents = kExtents});
  Tensor scratch = Tensor::empty({static_cast<int64_t>(program.scratch_bytes)}, DType::u8);
  Tensor tile({256, 64}, DType::f32);
  Tensor max({64}, DType::f32);
  kernels::TileRunner runner(program, *kernels::current_table().tile_f32, scratch.view().data());
  kernels::TileCoords coords;
  coords.start[1] = 3;
  coords.start[2] = 1024;
  coords.start[3] = 960;
  coords.rows = 256;
  coords.lanes = 64;
  for (auto _ : state) {
    runner.begin(coords);
    for (int row = 0; row < 256; row += 48) {
      float* chunk = tile.view().data_as<float>() - row * 64;
      runner.apply({.data = chunk, .row_step = 256, .group_step = 256, .panel_step = 64}, row,
                   std::min(256, row + 48), max.view().data());
    }
    benchmark::ClobberMemory();
  }
  state.counters["per_16_scores"] = benchmark::Counter(
      256 * 4, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK_CAPTURE(run_tile, alibi, "score + slopes[h] * (kv_idx - q_idx)", "True");
BENCHMARK_CAPTURE(run_tile, softcap, "20 * tanh(score / 20)", "True");
BENCHMARK_CAPTURE(run_tile, relative_bias, "score + table[kv_idx - q_idx + 2047]", "True");
BENCHMARK_CAPTURE(run_tile, dense_bias, "score + bias[q_idx, kv_idx]", "True");
BENCHMARK_CAPTURE(run_tile, causal, "score", "q_idx >= kv_idx");
BENCHMARK_CAPTURE(run_tile, document, "score", "(doc[q_idx] == doc[kv_idx]) & (q_idx >= kv_idx)");
BENCHMARK_CAPTURE(run_tile, window, "score", "(q_idx >= kv_idx) & (q_idx - kv_idx <= 256)");
BENCHMARK_CAPTURE(run_tile, twelve, kTwelveText, "True");

}  // namespace
}  // namespace quire

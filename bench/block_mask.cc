// How long it takes to build a block mask, how many of its elements had to be looked at one by one,
// and how large it is. The peer is torch's create_block_mask, which looks at all of them:
// bench/block_mask_torch.py times both.
#include "quire/block_mask.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "quire/mods.h"

namespace quire {
namespace {

constexpr std::int64_t kMillion = std::int64_t{1} << 20;

MaskMod documents(std::int64_t tokens, std::int64_t count) {
  std::mt19937_64 random(1);
  std::vector<std::int64_t> offsets{0, tokens};
  while (static_cast<std::int64_t>(offsets.size()) < count + 1)
    offsets.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(tokens)));
  std::sort(offsets.begin(), offsets.end());
  return mods::document_from_offsets(offsets);
}

void build(benchmark::State& state, const MaskMod& mod, std::int64_t tokens, bool one_thread) {
  SerialExecutor serial;
  BlockMaskReport report;
  std::size_t bytes = 0;
  for (auto _ : state) {
    const BlockMask mask = create_block_mask(
        mod, 1, 1, tokens, tokens, {.executor = one_thread ? &serial : nullptr, .report = &report});
    bytes = mask.nbytes();
  }
  state.counters["evaluated_percent"] =
      100 * static_cast<double>(report.evaluated) / static_cast<double>(report.area);
  state.counters["rectangles"] = static_cast<double>(report.rectangles);
  state.counters["bytes"] = static_cast<double>(bytes);
  state.counters["per_element"] = benchmark::Counter(
      static_cast<double>(report.area),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void causal(benchmark::State& state) { build(state, mods::causal(), state.range(0), false); }
BENCHMARK(causal)->Arg(2048)->Arg(32768)->Arg(kMillion)->UseRealTime()->Unit(
    benchmark::kMicrosecond);

void documents_causal(benchmark::State& state) {
  build(state, documents(state.range(0), 1000) & mods::causal(), state.range(0), false);
}
BENCHMARK(documents_causal)->Arg(kMillion)->UseRealTime()->Unit(benchmark::kMillisecond);

// Nothing can be proved about noise. One thread.
void random_bits(benchmark::State& state) {
  const std::int64_t tokens = state.range(0);
  std::mt19937_64 random(1);
  Tensor bits = Tensor::empty({tokens, tokens}, DType::boolean);
  for (std::int64_t i = 0; i < bits.numel(); ++i)
    bits.data_as<bool>()[i] = (random() >> 40 & 1) != 0;
  const Buffer buffer(bits, {.name = "bits"});
  build(
      state, [&](auto, auto, auto q, auto kv) { return buffer(q, kv); }, tokens, true);
}
BENCHMARK(random_bits)->Arg(16384)->Unit(benchmark::kMillisecond);

// A step of decoding: the mask of one row, and a mask that grows by one token.
void one_row(benchmark::State& state) {
  const BlockMask mask = create_block_mask(mods::causal(), 1, 1, kMillion, kMillion);
  std::int64_t row = 500000;
  for (auto _ : state) {
    benchmark::DoNotOptimize(mask.rows(row, row + 1));
    ++row;
  }
}
BENCHMARK(one_row)->Unit(benchmark::kMicrosecond);

void append_token(benchmark::State& state) {
  BlockMask mask = create_block_mask(mods::causal(), 1, 1, state.range(0), state.range(0));
  for (auto _ : state) mask.append_rows(1, 1);
}
BENCHMARK(append_token)->Arg(8192)->Arg(131072)->Unit(benchmark::kMicrosecond);

// Every mask of the gallery at 16,384 x 16,384: how much of it had to be looked at.
const bool kGallery = [] {
  constexpr std::int64_t kTokens = 16384;
  for (const mods::GalleryEntry& entry : mods::gallery()) {
    if (entry.kind != mods::GalleryEntry::Kind::kMask) continue;
    benchmark::RegisterBenchmark(
        ("gallery/" + entry.name).c_str(),
        [&entry](benchmark::State& state) {
          const MaskMod mod = entry.mask_mod({.q_len = kTokens, .kv_len = kTokens, .heads = 8});
          build(state, mod, kTokens, false);
        })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
}  // namespace quire

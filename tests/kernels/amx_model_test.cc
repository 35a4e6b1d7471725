// What prefill asks of the tile registers: products, loads and stores per score, counted by the
// emulator, and the share of their peak that follows from published throughputs. A prediction:
// caches, and whatever else holds up a CPU, are not in it. Prints tables; docs/isa.md quotes them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "quire/isa.h"
#include "quire/quire.h"
#include "tests/support/amx_trap.h"
#include "tests/support/random_tensor.h"

#if defined(__x86_64__)
namespace quire::testing {
namespace {

// Cycles of an instruction when many of them follow each other, none waiting for another: Intel's
// Optimization Reference Manual, "Intel AMX".
constexpr double kProduct = 16, kLoad = 8, kStore = 16;
// Vectors: measured on Emerald Rapids, of 16 scores, maximum and exponential.
constexpr double kSoftmax = 8.5;

// Pairs of integers that VNNI multiplies in a cycle: two instructions on vectors of 16 lanes.
constexpr double kVnniPairs = 2 * 16;

struct Prediction {
  double products = 0, loads = 0, stores = 0;  // of 1,000 scores that are visible
  double tiles = 0;                            // share of the peak: loads hide behind products
  double hidden = 0;                           // and the softmax as far as it can
  double in_turn = 0;                          // nothing hides behind anything
};

Prediction predict(std::int64_t length, std::int64_t dim, bool causal) {
  const Tensor q = random_tensor({1, 1, length, dim}, DType::bf16, 1);
  const Tensor k = random_tensor({1, 1, length, dim}, DType::bf16, 2);
  const Tensor v = random_tensor({1, 1, length, dim}, DType::bf16, 3);
  SerialExecutor here;
  AttentionOptions options{.executor = &here};
  if (causal) options.block_mask = create_block_mask(mods::causal(), 1, 1, length, length);
  const TileCounts before = emulated_counts();
  flex_attention(q, k, v, options);
  const TileCounts after = emulated_counts();

  const auto n = static_cast<double>(length);
  const double scores = causal ? n * (n + 1) / 2 : n * n;
  const auto products = static_cast<double>(after.products - before.products);
  const auto loads = static_cast<double>(after.loads - before.loads);
  const auto stores = static_cast<double>(after.stores - before.stores);
  // What must be multiplied, at the peak: 16 x 16 x 32 numbers a product, scores and outputs.
  const double peak = scores * static_cast<double>(2 * dim) / (16 * 16 * 32) * kProduct;
  const double memory = loads * kLoad + stores * kStore;
  const double softmax = scores / 16 * kSoftmax;
  return {.products = products / scores * 1000,
          .loads = loads / scores * 1000,
          .stores = stores / scores * 1000,
          .tiles = peak / std::max(products * kProduct, memory),
          .hidden = peak / std::max({products * kProduct, memory, softmax}),
          .in_turn = peak / (products * kProduct + memory + softmax)};
}

TEST(AmxModel, TilesAreUsedAgain) {
  available_isas();  // the library asks for AMX, and is answered
  if (!amx_is_emulated()) GTEST_SKIP() << "instructions are counted where they are emulated";
  const ScopedIsa isa(Isa::amx);
  std::printf(
      "of 1,000 scores: products loads stores; share of the peak, tiles alone / with the "
      "softmax beside them / all in turn\n");
  for (const std::int64_t dim : {64, 128}) {
    for (const bool causal : {false, true}) {
      const Prediction p = predict(1024, dim, causal);
      std::printf("D = %3d %-6s  %6.2f %6.2f %6.2f   %.2f / %.2f / %.2f\n", static_cast<int>(dim),
                  causal ? "causal" : "full", p.products, p.loads, p.stores, p.tiles, p.hidden,
                  p.in_turn);
      EXPECT_LE(p.loads, 1.05 * p.products);  // four loads serve four products
      if (!causal) {
        EXPECT_DOUBLE_EQ(p.products, 1000. * static_cast<double>(2 * dim) / (16 * 16 * 32));
      }
      if (dim == 128) {
        EXPECT_GE(p.tiles, 0.6);
        EXPECT_GE(p.hidden, 0.6);
      }
    }
  }
}

// int8 codes under queries of bf16: each product of 16-bit integers is two of bytes, which take as
// many cycles as one of bf16.
TEST(AmxModel, BytesAreWorthTwoProducts) {
  available_isas();
  if (!amx_is_emulated()) GTEST_SKIP() << "instructions are counted where they are emulated";
  const ScopedIsa isa(Isa::amx);
  constexpr std::int64_t kLength = 1024;
  std::printf(
      "int8 codes, of 1,000 scores: products loads stores; times as fast as VNNI, products alone / "
      "all in turn\n");
  for (const std::int64_t dim : {64, 128}) {
    for (const bool causal : {false, true}) {
      const Tensor q = random_tensor({1, 1, kLength, dim}, DType::bf16, 1);
      const QuantizedTensor k =
          quantize(random_tensor({1, 1, kLength, dim}, DType::f32, 2), KVFormat::of("int8"));
      const QuantizedTensor v =
          quantize(random_tensor({1, 1, kLength, dim}, DType::f32, 3), KVFormat::of("int8"));
      SerialExecutor here;
      AttentionOptions options{.executor = &here};
      if (causal) options.block_mask = create_block_mask(mods::causal(), 1, 1, kLength, kLength);
      const TileCounts before = emulated_counts();
      flex_attention(q, k, v, options);
      const TileCounts after = emulated_counts();
      EXPECT_EQ(after.products, before.products);  // none of bf16

      const auto n = static_cast<double>(kLength);
      const double scores = causal ? n * (n + 1) / 2 : n * n;
      const auto products = static_cast<double>(after.byte_products - before.byte_products);
      const auto loads = static_cast<double>(after.loads - before.loads);
      const auto stores = static_cast<double>(after.stores - before.stores);
      const double vnni = scores * static_cast<double>(2 * dim) / 2 / kVnniPairs;
      const double tiles = std::max(products * kProduct, loads * kLoad + stores * kStore);
      const double in_turn = products * kProduct + loads * kLoad + stores * kStore;
      const double softmax = scores / 16 * kSoftmax;
      std::printf("D = %3d %-6s  %6.2f %6.2f %6.2f   %.1f / %.1f\n", static_cast<int>(dim),
                  causal ? "causal" : "full", products / scores * 1000, loads / scores * 1000,
                  stores / scores * 1000, vnni / tiles, (vnni + softmax) / (in_turn + softmax));
      EXPECT_LE(loads, 1.05 * products);
      if (!causal) {
        EXPECT_DOUBLE_EQ(products, scores * static_cast<double>(2 * dim) / (16 * 16 * 64) * 2);
      }
      EXPECT_GE(vnni / tiles, 4);
    }
  }
}

}  // namespace
}  // namespace quire::testing
#endif

// Tile registers: the emulated ones do what the rules say, and what the CPU does where it has them,
// bit by bit; and kernels leave none behind. `make test-amx` runs this with hardware, if there is
// any, and with the emulator.
#include "runtime/amx.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <span>

#include "quire/isa.h"
#include "quire/quire.h"
#include "tests/support/amx_trap.h"
#include "tests/support/emulated_tiles.h"
#include "tests/support/pair_product.h"
#include "tests/support/random_tensor.h"

#if defined(__x86_64__)
namespace quire::testing {
namespace {

bool has_amx_isa() {
  for (const Isa isa : available_isas())
    if (isa == Isa::amx) return true;
  return false;
}

// Numbers of several kinds: ordinary ones, products near the smallest normal number, anything.
class Inputs {
 public:
  explicit Inputs(int kind) : kind_(kind), engine_(static_cast<unsigned>(kind + 1)) {}

  std::uint16_t bf16() {
    const std::uint32_t random = engine_();
    switch (kind_) {
      case 0:
        return static_cast<std::uint16_t>((random & 0x80ff) | 0x3f00);
      case 1:
        return static_cast<std::uint16_t>((random & 0x807f) | ((50 + (random >> 16) % 28) << 7));
      case 2:
        return static_cast<std::uint16_t>((random & 0x8003) | ((62 + (random >> 16) % 4) << 7));
      default:
        return static_cast<std::uint16_t>(random);
    }
  }
  float sum() {
    std::uint32_t bits = engine_();
    if (kind_ == 0) bits = (bits & 0x80ffffff) | 0x3f000000;
    if (kind_ == 1 || kind_ == 2) bits = (bits & 0x807fffff) | (engine_() % 4) << 23;
    float x;
    std::memcpy(&x, &bits, 4);
    return engine_() % 4 == 0 ? 0 : x;
  }
  int below(int limit) { return static_cast<int>(engine_() % static_cast<unsigned>(limit)); }

 private:
  int kind_;
  std::mt19937 engine_;
};

struct Product {
  EmulatedConfig config;
  alignas(64) std::uint16_t a[16][32];
  alignas(64) std::uint16_t b[16][32];
  alignas(64) float sum[16][16];
  int rows = 16, columns = 16, pairs = 16;

  explicit Product(Inputs& inputs) {
    if (inputs.below(2) == 0) {
      rows = 1 + inputs.below(16);
      columns = 1 + inputs.below(16);
      pairs = 1 + inputs.below(16);
    }
    config.palette = 1;
    const auto shape = [this](int tile, int height, int width) {
      config.rows[tile] = static_cast<std::uint8_t>(height);
      config.row_bytes[tile] = static_cast<std::uint16_t>(4 * width);
    };
    shape(0, rows, columns);
    shape(4, rows, pairs);
    shape(7, pairs, columns);
    for (auto& row : a)
      for (auto& x : row) x = inputs.bf16();
    for (auto& row : b)
      for (auto& x : row) x = inputs.bf16();
    for (auto& row : sum)
      for (auto& x : row) x = inputs.sum();
  }

  float by_rules(int row, int column) const {
    const auto widened = [](std::uint16_t bits) { return float{BFloat16::from_bits(bits)}; };
    float x[32] = {}, y[32] = {};
    for (int p = 0; p < pairs; ++p)
      for (int i = 0; i < 2; ++i) {
        x[2 * p + i] = widened(a[row][2 * p + i]);
        y[2 * p + i] = widened(b[p][2 * column + i]);
      }
    const auto numbers = static_cast<std::size_t>(2 * pairs);
    return bf16_tile_product(sum[row][column], std::span(x).first(numbers),
                             std::span(y).first(numbers));
  }

  void by_emulator(float (&out)[16][16]) const {
    EmulatedTiles tiles;
    ASSERT_TRUE(tiles.configure(config));
    ASSERT_TRUE(tiles.load(0, reinterpret_cast<const char*>(sum), 64));
    ASSERT_TRUE(tiles.load(4, reinterpret_cast<const char*>(a), 64));
    ASSERT_TRUE(tiles.load(7, reinterpret_cast<const char*>(b), 64));
    ASSERT_TRUE(tiles.multiply_bf16(0, 4, 7));
    ASSERT_TRUE(tiles.store(0, reinterpret_cast<char*>(out), 64));
  }

  // The instructions themselves, executed or trapped.
  void by_instructions(float (&out)[16][16]) const {
    asm volatile("ldtilecfg %0" ::"m"(config));
    asm volatile("tileloadd (%0,%1,1), %%tmm0" ::"r"(sum), "r"(64L) : "memory");
    asm volatile("tileloadd (%0,%1,1), %%tmm4" ::"r"(a), "r"(64L) : "memory");
    asm volatile("tileloaddt1 (%0,%1,2), %%tmm7" ::"r"(b), "r"(32L) : "memory");
    asm volatile("tdpbf16ps %tmm7, %tmm4, %tmm0");
    asm volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(out), "r"(64L) : "memory");
    asm volatile("tilerelease");
  }
};

bool same(float x, float y) {
  return (std::isnan(x) && std::isnan(y)) || std::memcmp(&x, &y, sizeof x) == 0;
}

void compare(bool with_instructions) {
  for (int kind = 0; kind < 4; ++kind) {
    Inputs inputs(kind);
    for (int i = 0; i < (with_instructions ? 4000 : 300); ++i) {
      const Product product(inputs);
      float emulated[16][16] = {}, executed[16][16] = {};
      product.by_emulator(emulated);
      if (with_instructions) product.by_instructions(executed);
      for (int row = 0; row < product.rows; ++row)
        for (int column = 0; column < product.columns; ++column) {
          const float got = emulated[row][column];
          const float want =
              with_instructions ? executed[row][column] : product.by_rules(row, column);
          ASSERT_TRUE(same(got, want)) << "kind " << kind << ": " << got << ", not " << want;
        }
    }
  }
}

TEST(Amx, TheEmulatorFollowsTheRules) {
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "it computes with fused multiply-adds";
  compare(false);
}

TEST(Amx, TheEmulatorDoesWhatTheInstructionsDo) {
  if (!has_amx_isa()) GTEST_SKIP() << "no AMX on this machine, and it is not emulated";
  const TileCounts before = emulated_counts();
  compare(true);
  const TileCounts after = emulated_counts();
  const std::uint64_t traps = amx_is_emulated() ? 16000 : 0;
  EXPECT_EQ(after.products - before.products, traps);
  EXPECT_EQ(after.loads - before.loads, 3 * traps);
  EXPECT_EQ(after.stores - before.stores, traps);
}

// Sums of signed bytes, some of which wrap: by plain loops, by the emulator and by the instruction.
TEST(Amx, BytesAreMultipliedAsSignedOnes) {
  std::mt19937 engine(1);
  const bool has_instructions = has_amx_isa();
  const TileCounts before = emulated_counts();
  constexpr int kRuns = 1000;
  for (int i = 0; i < kRuns; ++i) {
    const int rows = 1 + static_cast<int>(engine() % 16);
    const int columns = 1 + static_cast<int>(engine() % 16);
    const int quads = 1 + static_cast<int>(engine() % 16);
    EmulatedConfig config;
    config.palette = 1;
    const auto shape = [&config](int tile, int height, int width) {
      config.rows[tile] = static_cast<std::uint8_t>(height);
      config.row_bytes[tile] = static_cast<std::uint16_t>(4 * width);
    };
    shape(1, rows, columns);
    shape(5, rows, quads);
    shape(6, quads, columns);
    alignas(64) signed char a[16][64], b[16][64];
    alignas(64) std::uint32_t sum[16][16], emulated[16][16] = {}, executed[16][16] = {};
    for (auto& row : a)
      for (auto& x : row) x = static_cast<signed char>(engine());
    for (auto& row : b)
      for (auto& x : row) x = static_cast<signed char>(engine());
    for (auto& row : sum)
      for (auto& x : row) x = static_cast<std::uint32_t>(engine());
    EmulatedTiles tiles;
    ASSERT_TRUE(tiles.configure(config));
    ASSERT_TRUE(tiles.load(1, reinterpret_cast<const char*>(sum), 64));
    ASSERT_TRUE(tiles.load(5, reinterpret_cast<const char*>(a), 64));
    ASSERT_TRUE(tiles.load(6, reinterpret_cast<const char*>(b), 64));
    ASSERT_TRUE(tiles.multiply_bytes(1, 5, 6));
    ASSERT_TRUE(tiles.store(1, reinterpret_cast<char*>(emulated), 64));
    if (has_instructions) {
      asm volatile("ldtilecfg %0" ::"m"(config));
      asm volatile("tileloadd (%0,%1,1), %%tmm1" ::"r"(sum), "r"(64L) : "memory");
      asm volatile("tileloadd (%0,%1,1), %%tmm5" ::"r"(a), "r"(64L) : "memory");
      asm volatile("tileloadd (%0,%1,1), %%tmm6" ::"r"(b), "r"(64L) : "memory");
      asm volatile("tdpbssd %tmm6, %tmm5, %tmm1");
      asm volatile("tilestored %%tmm1, (%0,%1,1)" ::"r"(executed), "r"(64L) : "memory");
      asm volatile("tilerelease");
    }
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; ++column) {
        std::uint32_t want = sum[row][column];
        for (int k = 0; k < 4 * quads; ++k)
          want += static_cast<std::uint32_t>(a[row][k] * b[k / 4][4 * column + k % 4]);
        ASSERT_EQ(emulated[row][column], want);
        if (has_instructions) {
          ASSERT_EQ(executed[row][column], want);
        }
      }
    }
  }
  EXPECT_EQ(emulated_counts().byte_products - before.byte_products,
            static_cast<std::uint64_t>(amx_is_emulated() ? kRuns : 0));
}

TEST(Amx, ShapesThatDoNotFitAreNotMultiplied) {
  EmulatedTiles tiles;
  EXPECT_FALSE(tiles.zero(0));  // no configuration
  EmulatedConfig config;
  config.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = 16;
    config.row_bytes[tile] = 64;
  }
  config.rows[1] = 8;
  ASSERT_TRUE(tiles.configure(config));
  EXPECT_TRUE(tiles.multiply_bf16(0, 2, 3));
  EXPECT_FALSE(tiles.multiply_bf16(0, 1, 3));
  EXPECT_FALSE(tiles.multiply_bf16(0, 2, 1));
  EXPECT_FALSE(tiles.multiply_bf16(0, 0, 3));
  EXPECT_TRUE(tiles.multiply_bytes(0, 2, 3));
  EXPECT_FALSE(tiles.multiply_bytes(0, 1, 3));
  EXPECT_FALSE(tiles.multiply_bytes(0, 2, 1));
  EXPECT_FALSE(tiles.multiply_bytes(0, 3, 3));
  config.rows[2] = 17;
  EXPECT_FALSE(tiles.configure(config));
}

TEST(Amx, KernelsLeaveNoTileBehind) {
  if (!has_amx_isa()) GTEST_SKIP() << "no AMX on this machine, and it is not emulated";
  const ScopedIsa isa(Isa::amx);
  const TileCounts before = emulated_counts();
  const Tensor q = random_tensor({1, 1, 40, 64}, DType::bf16, 1);
  const Tensor k = random_tensor({1, 1, 70, 64}, DType::bf16, 2);
  SerialExecutor here;
  flex_attention(q, k, k, {.executor = &here});
  EmulatedConfig left;
  left.palette = 9;
  asm volatile("sttilecfg %0" : "=m"(left));
  EXPECT_EQ(left.palette, 0);
  EXPECT_EQ(left.rows[0], 0);
  if (amx_is_emulated()) {
    EXPECT_GT(emulated_counts().products, before.products);
  }
}

}  // namespace
}  // namespace quire::testing
#endif

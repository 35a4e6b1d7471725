// The instructions. Tests only.
#include "tests/support/emulated_tiles.h"

#include <cstring>

namespace quire::testing {

bool EmulatedTiles::configure(const EmulatedConfig& to) {
  if (to.palette > 1) return false;
  for (int tile = 0; tile < 8 && to.palette == 1; ++tile)
    if (to.rows[tile] > 16 || to.row_bytes[tile] > 64 ||
        (to.rows[tile] == 0) != (to.row_bytes[tile] == 0))
      return false;
  config = to.palette == 0 ? EmulatedConfig{} : to;
  std::memset(data_, 0, sizeof(data_));
  return true;
}

bool EmulatedTiles::exists(int tile) const {
  return tile < 8 && config.palette == 1 && config.rows[tile] != 0;
}

bool EmulatedTiles::zero(int tile) {
  if (!exists(tile)) return false;
  std::memset(data_[tile], 0, sizeof(data_[tile]));
  return true;
}

bool EmulatedTiles::load(int tile, const char* from, std::ptrdiff_t step) {
  if (!zero(tile)) return false;
  for (int row = 0; row < config.rows[tile]; ++row)
    std::memcpy(data_[tile][row], from + row * step, config.row_bytes[tile]);
  return true;
}

bool EmulatedTiles::store(int tile, char* to, std::ptrdiff_t step) const {
  if (!exists(tile)) return false;
  for (int row = 0; row < config.rows[tile]; ++row)
    std::memcpy(to + row * step, data_[tile][row], config.row_bytes[tile]);
  return true;
}

// Whether shapes are those of a product: rows of `a` by columns of `b`, both of 32-bit elements.
bool EmulatedTiles::fit(int sum, int a, int b) const {
  if (!exists(sum) || !exists(a) || !exists(b) || sum == a || sum == b || a == b) return false;
  return config.rows[a] == config.rows[sum] && config.row_bytes[b] == config.row_bytes[sum] &&
         config.row_bytes[a] == 4 * config.rows[b] && config.row_bytes[sum] % 4 == 0;
}

bool EmulatedTiles::multiply_bytes(int sum, int a, int b) {
  if (!fit(sum, a, b)) return false;
  for (int row = 0; row < config.rows[sum]; ++row) {
    for (int at = 0; at < config.row_bytes[sum]; at += 4) {
      std::uint32_t total;
      std::memcpy(&total, data_[sum][row] + at, 4);
      for (int i = 0; i < config.row_bytes[a]; ++i) {
        const int x = static_cast<signed char>(data_[a][row][i]);
        const int y = static_cast<signed char>(data_[b][i / 4][at + i % 4]);
        total += static_cast<std::uint32_t>(x * y);
      }
      std::memcpy(data_[sum][row] + at, &total, 4);
    }
  }
  return true;
}

#if defined(__x86_64__)
namespace {

float widened(const char* at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  const std::uint32_t word = std::uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &word, 4);
  return x;
}

// One row of the sum. a: `pairs` pairs; b: a row of 16 pairs for each of them.
__attribute__((target("fma"), noinline)) void multiply_row(char* sum, const char* a,
                                                           const char (*b)[64], int pairs) {
  for (int column = 0; column < 16; ++column) {
    float even = 0, odd = 0, before;
    for (int p = 0; p < pairs; ++p) {
      even = __builtin_fmaf(widened(a + 4 * p), widened(b[p] + 4 * column), even);
      odd = __builtin_fmaf(widened(a + 4 * p + 2), widened(b[p] + 4 * column + 2), odd);
    }
    std::memcpy(&before, sum + 4 * column, 4);
    before += even + odd;
    std::memcpy(sum + 4 * column, &before, 4);
  }
}

std::uint32_t float_state() {
  std::uint32_t state;
  asm volatile("stmxcsr %0" : "=m"(state));
  return state;
}
void set_float_state(std::uint32_t state) { asm volatile("ldmxcsr %0" ::"m"(state) : "memory"); }

}  // namespace

bool EmulatedTiles::multiply_bf16(int sum, int a, int b) {
  if (!fit(sum, a, b)) return false;
  const std::uint32_t before = float_state();
  set_float_state(0x1f80 | 0x8040);  // default, subnormals 0 on both sides
  for (int row = 0; row < config.rows[sum]; ++row) {
    multiply_row(data_[sum][row], data_[a][row], data_[b], config.rows[b]);
    std::memset(data_[sum][row] + config.row_bytes[sum], 0,
                static_cast<std::size_t>(64 - config.row_bytes[sum]));
  }
  set_float_state(before);
  return true;
}
#else
bool EmulatedTiles::multiply_bf16(int, int, int) { return false; }
#endif

}  // namespace quire::testing

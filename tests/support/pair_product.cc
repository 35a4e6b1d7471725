// The instructions. Tests only.
#include "tests/support/pair_product.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace quire::testing {
namespace {

float without_subnormals(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x;
}

// x rounded to odd as Arm's BFRound does: cut off, and the last bit set if anything was cut off.
// What is below the normal numbers is 0, what is above them infinite.
float cut_to_odd(double x) {
  if (std::isnan(x) || x == 0) return static_cast<float>(x);
  constexpr double kMost = 0x1p128;
  if (std::fabs(x) >= kMost)
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(x));
  if (std::fabs(x) < 0x1p-126) return std::copysign(0.f, static_cast<float>(x));
  constexpr std::uint64_t kRest = (1u << 29) - 1;  // 52 - 23 bits
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const auto cut = static_cast<float>(std::bit_cast<double>(bits & ~kRest));
  return (bits & kRest) == 0 ? cut : std::bit_cast<float>(std::bit_cast<std::uint32_t>(cut) | 1u);
}

// Their sum rounded to odd, first to double, then to float, which is the same as at once.
float add_to_odd(float a, float b) {
  const double x = without_subnormals(a), y = without_subnormals(b);
  const double sum = x + y, back = sum - x, error = (x - (sum - back)) + (y - back);
  auto bits = std::bit_cast<std::uint64_t>(sum);
  if (error != 0 && std::isfinite(sum)) {
    if ((error > 0) != (sum > 0)) --bits;  // cut off: nearest went away from 0
    bits |= 1u;
  }
  return cut_to_odd(std::bit_cast<double>(bits));
}

// BFDOT with FPCR.EBF = 0: both products and the two sums are rounded to odd.
float bfdot(float acc, float a0, float a1, float b0, float b1) {
  const auto product = [](float a, float b) {
    return cut_to_odd(static_cast<double>(without_subnormals(a)) * without_subnormals(b));
  };
  return add_to_odd(acc, add_to_odd(product(a0, b0), product(a1, b1)));
}

// vdpbf16ps: acc + a1 b1, rounded, + a0 b0, rounded; subnormals are 0 everywhere.
float vdpbf16ps(float acc, float a0, float a1, float b0, float b1) {
  const auto z = without_subnormals;
  acc = z(std::fma(z(a1), z(b1), z(acc)));
  return z(std::fma(z(a0), z(b0), acc));
}

}  // namespace

float bf16_pair_product(Isa isa, float acc, float a0, float a1, float b0, float b1) {
  return isa == Isa::neon_bf16 ? bfdot(acc, a0, a1, b0, b1) : vdpbf16ps(acc, a0, a1, b0, b1);
}

float bf16_tile_product(float acc, std::span<const float> a, std::span<const float> b) {
  const auto z = without_subnormals;
  float sums[2] = {};
  for (std::size_t i = 0; i < a.size(); ++i)
    sums[i % 2] = z(std::fma(z(a[i]), z(b[i]), sums[i % 2]));
  return z(z(acc) + z(sums[0] + sums[1]));
}

const char* pair_bits_name(Isa isa) {
  switch (isa) {
    case Isa::avx512_bf16:
      return " in pairs";
    case Isa::amx:
      return " in tiles";
    default:
      return "";
  }
}

}  // namespace quire::testing

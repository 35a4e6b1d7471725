// Each operation alone, through tile programs on the ISA under test, against the f64 reference:
// over ±0, inf, NaN, subnormals, extremes and ordinary numbers. How close the functions are over
// their whole range is in kernels/math_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "quire/evaluate.h"
#include "reference/evaluate.h"

namespace quire {
namespace {

std::vector<float> floats() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> values = {0.f,
                               1.f,
                               0.5f,
                               1.5f,
                               2.f,
                               2.5f,
                               3.f,
                               7.f,
                               10.f,
                               0.1f,
                               1e-3f,
                               87.f,
                               100.f,
                               8388609.f,
                               16777216.f,
                               1e10f,
                               1e30f,
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::min(),
                               std::numeric_limits<float>::denorm_min(),
                               3e-40f,
                               kInf};
  for (std::size_t i = values.size(); i-- > 0;) values.push_back(-values[i]);
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  return values;
}

std::vector<std::int64_t> ints() {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min(),
                         kMax = std::numeric_limits<std::int64_t>::max();
  return {0,         1,          -1,           2,
          -2,        3,          -3,           5,
          -7,        63,         64,           65,
          -64,       100,        1000003,      1 << 24,
          1 << 30,   -(1 << 30), 2147483647,   -2147483648LL,
          1LL << 31, 1LL << 40,  -(1LL << 53), kMin,
          kMin + 1,  kMax,       kMax - 1};
}

// Distance in representable floats; NaN only to NaN.
double ulps_apart(float got, double exact) {
  if (std::isnan(got) || std::isnan(exact))
    return std::isnan(got) && std::isnan(exact) ? 0 : INFINITY;
  const auto nearest = static_cast<float>(exact);
  if (got == nearest) return 0;
  if (std::isinf(got) ||
      std::isinf(nearest)) {  // at the edge of overflow one may round the other way
    const double limit = std::numeric_limits<float>::max();
    return std::abs(exact) > limit * (1 - 1e-6) && std::signbit(got) == std::signbit(nearest)
               ? 1
               : INFINITY;
  }
  const double spacing = std::nextafter(std::abs(nearest), INFINITY) - std::abs(nearest);
  return std::abs(static_cast<double>(got) - exact) / spacing;
}

Tensor zeros(std::size_t q, std::size_t kv) {
  return Tensor({1, 1, static_cast<std::int64_t>(q), static_cast<std::int64_t>(kv)}, DType::f32);
}

// The reference may decide a sign of zero or compute in more digits; `ulps` says how much of that
// is allowed.
void check_float_op(const std::string& text, double ulps, bool zero_signs = true) {
  const std::vector<float> values = floats();
  const Buffer x(values, {.name = "x"});
  const ScoreMod mod = ScoreMod::parse(text, {{"x", x}});
  const Tensor got = evaluate(mod, zeros(values.size(), values.size()));
  reference::Evaluator reference(mod.formula());
  const auto n = static_cast<std::int64_t>(values.size());
  for (std::int64_t q = 0; q < n; ++q) {
    for (std::int64_t kv = 0; kv < n; ++kv) {
      const double exact = reference.run({0, 0, q, kv, 0}).f;
      const float value = got.view().at<float>({0, 0, q, kv});
      EXPECT_LE(ulps_apart(value, exact), ulps)
          << text << " at " << values[static_cast<std::size_t>(q)] << ", "
          << values[static_cast<std::size_t>(kv)] << ": got " << value << ", exact " << exact;
      if (zero_signs && value == 0 && exact == 0) {
        EXPECT_EQ(std::signbit(value), std::signbit(exact))
            << text << " at " << values[static_cast<std::size_t>(q)];
      }
    }
  }
}

TEST(Operations, ExactOnFloats) {
  for (const char* op :
       {"x[kv_idx] + x[q_idx]", "x[kv_idx] - x[q_idx]", "x[kv_idx] * x[q_idx]",
        "x[kv_idx] / x[q_idx]", "-x[kv_idx]", "abs(x[kv_idx])", "sign(x[kv_idx])",
        "floor(x[kv_idx])", "ceil(x[kv_idx])", "round(x[kv_idx])", "trunc(x[kv_idx])",
        "sqrt(x[kv_idx])", "x[kv_idx] % x[q_idx]", "where(x[q_idx] > 1, x[kv_idx], x[q_idx])"})
    check_float_op(op, 0.5);
  // Of two zeros of different sign either may come out.
  for (const char* op : {"relu(x[kv_idx])", "minimum(x[kv_idx], x[q_idx])",
                         "maximum(x[kv_idx], x[q_idx])", "clamp(x[kv_idx], x[q_idx], 2)"})
    check_float_op(op, 0.5, false);
}

TEST(Operations, FunctionsWithinTheirUlps) {
  for (const char* op : {"exp(x[kv_idx])", "exp2(x[kv_idx])", "expm1(x[kv_idx])", "log(x[kv_idx])",
                         "log2(x[kv_idx])", "log1p(x[kv_idx])", "rsqrt(x[kv_idx])",
                         "sin(x[kv_idx])", "cos(x[kv_idx])", "tanh(x[kv_idx])",
                         "sigmoid(x[kv_idx])", "erf(x[kv_idx])", "x[kv_idx] ** x[q_idx]"})
    check_float_op(op, 2.5);
  for (const char* op :
       {"gelu(x[kv_idx])", "gelu_tanh(x[kv_idx])", "silu(x[kv_idx])", "softplus(x[kv_idx])"})
    check_float_op(op, 4.5);
}

// A comparison, cast or integer operation as a mask over all pairs.
void check_exactly(const std::string& text) {
  const std::vector<std::int64_t> values = ints();
  const std::vector<float> reals = floats();
  const MaskMod mask = MaskMod::parse(
      text, {{"i", Buffer(values, {.name = "i"})}, {"x", Buffer(reals, {.name = "x"})}});
  const bool uses_floats = text.find("x[") != std::string::npos;
  const auto n = static_cast<std::int64_t>(uses_floats ? reals.size() : values.size());
  const Tensor got = evaluate(mask, {1, 1, n, n});
  reference::Evaluator reference(mask.formula());
  for (std::int64_t q = 0; q < n; ++q)
    for (std::int64_t kv = 0; kv < n; ++kv)
      ASSERT_EQ(got.view().at<bool>({0, 0, q, kv}), reference.run({0, 0, q, kv, 0}).truth())
          << text << " at q " << q << " kv " << kv;
}

// The value of an integer expression, bit by bit.
void check_int_op(const std::string& text) {
  for (const int shift : {0, 1, 7, 23, 31, 32, 47, 62, 63})
    check_exactly("((" + text + ") >> " + std::to_string(shift) + ") & 1");
}

TEST(Operations, IntegersAreExactAndWrap) {
  for (const char* op :
       {"i[kv_idx] + i[q_idx]", "i[kv_idx] - i[q_idx]", "i[kv_idx] * i[q_idx]", "-i[kv_idx]",
        "abs(i[kv_idx])", "sign(i[kv_idx])", "~i[kv_idx]", "i[kv_idx] & i[q_idx]",
        "i[kv_idx] | i[q_idx]", "i[kv_idx] ^ i[q_idx]", "minimum(i[kv_idx], i[q_idx])",
        "maximum(i[kv_idx], i[q_idx])", "i[kv_idx] << i[q_idx]", "i[kv_idx] >> i[q_idx]",
        "i[kv_idx] ** i[q_idx]", "i[kv_idx] // where(i[q_idx] == 0, 1, i[q_idx])",
        "i[kv_idx] % where(i[q_idx] == 0, 1, i[q_idx])",
        "where(i[kv_idx] > 5, i[q_idx], i[kv_idx])", "clamp(i[kv_idx], -100, i[q_idx])"})
    check_int_op(op);
}

TEST(Operations, SmallIntegersIn32Bits) {
  // Positions are proved small, so these run in 32 bits; the divisor takes both signs.
  for (const char* op : {"(kv_idx - 13) // (q_idx * 2 - 25)", "(kv_idx - 13) % (q_idx * 2 - 25)",
                         "(kv_idx - 13) * (q_idx - 7)", "abs(kv_idx - q_idx)",
                         "sign(kv_idx - q_idx)", "(kv_idx ^ q_idx) & 5 | 1", "~kv_idx + -q_idx",
                         "minimum(kv_idx, q_idx) - maximum(kv_idx, q_idx)",
                         "int(kv_idx > q_idx) - int(kv_idx == 3)"})
    check_int_op(op);
}

TEST(Operations, ComparisonsAndCasts) {
  for (const char* op :
       {"x[kv_idx] < x[q_idx]", "x[kv_idx] <= x[q_idx]", "x[kv_idx] > x[q_idx]",
        "x[kv_idx] >= x[q_idx]", "x[kv_idx] == x[q_idx]", "x[kv_idx] != x[q_idx]",
        "bool(x[kv_idx])",
        "(x[kv_idx] < 1) & ~(x[q_idx] > 2) | (x[kv_idx] == 0) ^ (x[q_idx] != x[q_idx])"})
    check_exactly(op);
  for (const char* op :
       {"i[kv_idx] < i[q_idx]", "i[kv_idx] <= i[q_idx]", "i[kv_idx] == i[q_idx]",
        "i[kv_idx] != i[q_idx]", "bool(i[kv_idx])", "where(kv_idx > 3, i[kv_idx] > 2, q_idx < 2)"})
    check_exactly(op);
  check_int_op("int(x[kv_idx])");
}

}  // namespace
}  // namespace quire

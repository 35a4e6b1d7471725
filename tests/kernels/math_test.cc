// The vector functions of kernels/math: error in ulps against double libm, the bits of the scalar
// ISA on every other one, special values, tails. The sweep takes every 2053rd bit pattern of a
// float, NaNs included (odd, so that low bits vary too); QUIRE_MATH_STEP=1 takes all 2^32, which
// needs hours, `make check-all` every 101st. ctest runs this once per ISA.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <ostream>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "formula/op_table.h"
#include "formula/type_rules.h"
#include "kernels/attention_order.h"
#include "kernels/dispatch.h"
#include "kernels/math/math_table.h"
#include "quire/isa.h"
#include "reference/arithmetic.h"

namespace quire {
namespace {

using kernels::MathTable;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const MathTable& math() { return *kernels::current_table().math; }
const MathTable& scalar_math() { return *kernels::table_for(Isa::scalar).math; }

std::span<const MathTable::Entry> unary(const MathTable& table) {
  return {table.unary, table.unary_count};
}
std::span<const MathTable::BinaryEntry> binary(const MathTable& table) {
  return {table.binary, table.binary_count};
}

template <class Entry>
const Entry& find(std::span<const Entry> entries, std::string_view name) {
  const auto found = std::ranges::find_if(entries, [&](const Entry& e) { return name == e.name; });
  if (found == entries.end()) throw std::out_of_range(std::string(name));
  return *found;
}

float call(std::string_view name, float x) {
  float y;
  find(unary(math()), name).apply(&x, &y, 1);
  return y;
}
float call(std::string_view name, float a, float b) {
  float y;
  find(binary(math()), name).apply(&a, &b, &y, 1);
  return y;
}

// --- The exact values, in double.

struct Reference {
  std::string name;
  std::function<double(double)> value;
};

void PrintTo(const Reference& reference, std::ostream* out) { *out << reference.name; }

// The functions of formulas as reference/ has them, then what the kernels have beside them.
std::vector<Reference> references() {
  std::vector<Reference> all;
  for (const formula::OpInfo& one : formula::kOps)
    if (formula::is_float_function(one.op))
      all.push_back({std::string(one.name),
                     [op = one.op](double x) { return reference::float_unary(op, x); }});
  for (Reference& one : all)  // the kernel keeps the sign of a zero
    if (one.name == "relu") one.value = [](double x) { return 0 > x ? 0 : x; };
  all.push_back({"exp_softmax", [](double x) {
                   const double y = x * static_cast<float>(kernels::kLog2e);
                   return std::nearbyint(y) < -64 ? 0 : std::exp2(y);
                 }});
  for (const Op op : {Op::kFloor, Op::kCeil, Op::kRound, Op::kTrunc, Op::kAbs, Op::kNeg, Op::kSign})
    all.push_back({std::string(formula::op_info(op).name),
                   [op](double x) { return reference::float_unary(op, x); }});
  return all;
}

// Distance of `got` from the exact value in units of the last place that a float of the size of
// `exact` has; inf counts as 2^128. Huge when only one is NaN or when zeros differ in sign.
double ulps(float got, double exact) {
  constexpr double kWrong = 1e30;
  if (std::isnan(got) || std::isnan(exact))
    return std::isnan(got) && std::isnan(exact) ? 0 : kWrong;
  if ((got == 0 || exact == 0) && std::signbit(got) != std::signbit(exact)) return kWrong;
  const double bounded = std::clamp(exact, -0x1p128, 0x1p128);
  const double value = std::clamp(double(got), -0x1p128, 0x1p128);
  const int exponent = exact == 0 ? -126 : std::clamp(std::ilogb(exact), -126, 127);
  return std::ldexp(std::fabs(value - bounded), 23 - exponent);
}

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// --- Inputs.

// Positive; their neighbours, their negatives and all powers of two come with them.
// clang-format off
constexpr float kSpecials[] = {
    0.f, 0x1.fffffcp-127f, 0x1.fffffep-2f, 1.5f, 2.5f, 3.f, 8388607.5f,  // zero, halves, integers
    87.33654f, 88.72284f, 103.2789f, 104.f,  // exp: first subnormal, last finite, last that is not 0
    126.f, 127.f, 149.f, 150.f,              // exp2: the same
    9.01f, 3.92f, 14.35f,                    // tanh and erf reach 1, gelu 0
    0x1.921fb6p+0f, 0x1.921fb6p+1f, 1e5f, 1e10f, 1e30f,  // sin and cos: pi/2, pi, large
    0x1.fffffep+127f, kInf, kNan};

// Every pair of these and their negatives goes to pow.
constexpr float kPowSpecials[] = {
    0.f, 0x1p-149f, 0x1p-126f, 0x1.fffffep-1f, 1.f, 0x1.000002p0f, 0x1.fffffep127f, kInf, kNan,
    0.25f, 0.5f, 1.5f, 2.5f, 8388607.5f,  // not integral
    3.f, 127.f, 8388609.f, 16777215.f,    // odd
    2.f, 16777216.f, 0x1.8p24f, 1e30f};   // even
// clang-format on

std::vector<float> specials() {
  std::vector<float> values(std::begin(kSpecials), std::end(kSpecials));
  for (int e = -149; e <= 127; ++e) values.push_back(std::ldexp(1.f, e));
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) {
    const float x = values[i];
    values.insert(values.end(), {-x, std::nextafter(x, kInf), std::nextafter(x, -kInf),
                                 std::nextafter(-x, kInf), std::nextafter(-x, -kInf)});
  }
  return values;
}

uint64_t sweep_step() {
  const char* text = std::getenv("QUIRE_MATH_STEP");
  const long step = text == nullptr ? 0 : std::atol(text);
  return step > 0 ? static_cast<uint64_t>(step) : 2053;
}

// Calls visit(inputs) with the specials and then with the sweep, in pieces.
template <class Visit>
void for_each_input(Visit visit) {
  visit(specials());
  constexpr size_t kPiece = 8192;
  std::vector<float> piece;
  piece.reserve(kPiece);
  const uint64_t step = sweep_step();
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += step) {
    piece.push_back(std::bit_cast<float>(uint32_t(bits)));
    if (piece.size() == kPiece) visit(piece), piece.clear();
  }
  visit(piece);
}

// --- Tests.

TEST(Math, EveryFunctionHasAReference) {
  std::vector<std::string> names, exact;
  for (const auto& entry : unary(math())) names.push_back(entry.name);
  for (const Reference& reference : references()) exact.push_back(reference.name);
  EXPECT_EQ(names, exact);
}

class UnaryMath : public testing::TestWithParam<Reference> {};

TEST_P(UnaryMath, ErrorIsBounded) {
  const auto& entry = find(unary(math()), GetParam().name);
  double worst = 0;
  float worst_input = 0;
  std::vector<float> out;
  for_each_input([&](const std::vector<float>& in) {
    out.resize(in.size());
    entry.apply(in.data(), out.data(), in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i] < entry.lo || in[i] > entry.hi) continue;
      const double error = ulps(out[i], GetParam().value(in[i]));
      if (error > worst) worst = error, worst_input = in[i];
    }
  });
  EXPECT_LE(worst, entry.max_ulps) << entry.name << "(" << std::hexfloat << worst_input << ")";
  RecordProperty("ulps", std::to_string(worst));
}

TEST_P(UnaryMath, BitsAreThoseOfScalar) {
  const auto& entry = find(unary(math()), GetParam().name);
  const auto& scalar = find(unary(scalar_math()), GetParam().name);
  size_t different = 0;
  float example = 0;
  std::vector<float> out, expected;
  for_each_input([&](const std::vector<float>& in) {
    out.resize(in.size()), expected.resize(in.size());
    entry.apply(in.data(), out.data(), in.size());
    scalar.apply(in.data(), expected.data(), in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i] < entry.lo || in[i] > entry.hi || same_bits(out[i], expected[i])) continue;
      ++different, example = in[i];
    }
  });
  EXPECT_EQ(different, 0u) << entry.name << "(" << std::hexfloat << example << ")";
}

TEST_P(UnaryMath, TailsHaveTheBitsOfTheBody) {
  const auto& entry = find(unary(math()), GetParam().name);
  const size_t lanes = kernels::current_table().lanes;
  std::vector<float> in(4 * lanes), whole(4 * lanes);
  std::mt19937 random(7);
  for (float& x : in) x = std::uniform_real_distribution<float>(-20, 20)(random);
  in[1] = kNan, in[2] = -kInf, in.back() = 1e7f;  // 1e7: sin and cos leave the fast path
  entry.apply(in.data(), whole.data(), in.size());
  for (size_t first = 0; first <= lanes; ++first) {
    for (size_t n = 0; first + n <= in.size(); ++n) {
      std::vector<float> part(n + 1, 42.f);
      entry.apply(in.data() + first, part.data(), n);
      for (size_t i = 0; i < n; ++i)
        ASSERT_TRUE(same_bits(part[i], whole[first + i])) << first << " " << n;
      ASSERT_EQ(part[n], 42.f) << "wrote past the end";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Functions, UnaryMath, testing::ValuesIn(references()),
                         [](const auto& info) { return info.param.name; });

// Rule 4 of the order of arithmetic, in plain C++.
float plain_exp_softmax(float x) {
  const float log2e = static_cast<float>(kernels::kLog2e);
  const double product = double{x} * log2e, n = std::nearbyint(product);
  if (n < -64) return 0;
  const float f = std::fma(x, log2e, static_cast<float>(-n));
  float p = 0x1.5b9bacp-10f;
  for (const float c : {0x1.3ceca8p-7f, 0x1.c6b744p-5f, 0x1.ebf9b4p-3f, 0x1.62e42ap-1f, 1.f}) {
    p = std::fma(p, f, c);
  }
  return std::isnan(x) ? x : std::ldexp(p, int(n));
}

TEST(Math, SoftmaxExponentialHasTheBitsOfTheRule) {
  const auto& entry = find(unary(math()), "exp_softmax");
  size_t different = 0;
  std::vector<float> out;
  for_each_input([&](const std::vector<float>& in) {
    out.resize(in.size());
    entry.apply(in.data(), out.data(), in.size());
    for (size_t i = 0; i < in.size(); ++i)
      if (!(in[i] > entry.hi)) different += !same_bits(out[i], plain_exp_softmax(in[i]));
  });
  EXPECT_EQ(different, 0u);
  EXPECT_EQ(call("exp_softmax", 0.f), 1.f);
  EXPECT_EQ(call("exp_softmax", -0.f), 1.f);
  EXPECT_GT(call("exp_softmax", -44.70f), 0.f);  // -64.49 log2e
  EXPECT_EQ(call("exp_softmax", -44.71f), 0.f);
  EXPECT_EQ(call("exp_softmax", -kInf), 0.f);
  EXPECT_TRUE(std::isnan(call("exp_softmax", kNan)));
}

TEST(Math, MinusInfinityOfTheGatesIsNanAsInTorch) {
  for (const char* name : {"gelu", "gelu_tanh", "silu"}) {
    EXPECT_TRUE(std::isnan(call(name, -kInf))) << name;
    EXPECT_EQ(call(name, kInf), kInf) << name;
    EXPECT_TRUE(same_bits(call(name, -0.f), -0.f)) << name;
    EXPECT_TRUE(same_bits(call(name, -1e4f), -0.f)) << name;
  }
}

TEST(Math, ReluAndSignOfZeros) {
  EXPECT_TRUE(same_bits(call("relu", -0.f), -0.f));
  EXPECT_TRUE(same_bits(call("relu", 0.f), 0.f));
  EXPECT_TRUE(std::isnan(call("relu", kNan)));
  EXPECT_TRUE(same_bits(call("sign", -0.f), 0.f));
  EXPECT_TRUE(std::isnan(call("sign", -kNan)));
}

TEST(Math, MinimumAndMaximum) {
  for (const float x : {-kInf, -1.f, -0.f, 0.f, 1.f, kInf, kNan}) {
    for (const char* name : {"minimum", "maximum"}) {
      EXPECT_TRUE(std::isnan(call(name, x, kNan))) << name << x;
      EXPECT_TRUE(std::isnan(call(name, kNan, x))) << name << x;
    }
    // A chain from m swallows a NaN v and keeps a NaN m.
    for (const char* name : {"min_step", "max_step"}) {
      EXPECT_TRUE(same_bits(call(name, kNan, x), x)) << name << x;
      EXPECT_TRUE(std::isnan(call(name, x, kNan))) << name << x;
    }
  }
  for (const char* name : {"minimum", "maximum", "min_step", "max_step"}) {
    EXPECT_TRUE(same_bits(call(name, 0.f, -0.f), -0.f)) << name;
    EXPECT_TRUE(same_bits(call(name, -0.f, 0.f), 0.f)) << name;
  }
  for (const char* name : {"minimum", "min_step"}) {
    EXPECT_EQ(call(name, -kInf, 2.f), -kInf);
    EXPECT_EQ(call(name, 3.f, 2.f), 2.f);
  }
  for (const char* name : {"maximum", "max_step"}) {
    EXPECT_EQ(call(name, -kInf, 2.f), 2.f);
    EXPECT_EQ(call(name, 3.f, 2.f), 3.f);
  }
}

// --- pow

struct Pairs {
  std::vector<float> x, y;
};

Pairs special_pairs() {
  std::vector<float> values(std::begin(kPowSpecials), std::end(kPowSpecials));
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  Pairs pairs;
  for (const float x : values)
    for (const float y : values) pairs.x.push_back(x), pairs.y.push_back(y);
  return pairs;
}

// A third of any bits, a third whose result is finite, a third with x near 1.
Pairs random_pairs(uint32_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(-152, 130);
  Pairs pairs;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = random();
    float x = std::bit_cast<float>(uint32_t(bits)), y = std::bit_cast<float>(uint32_t(bits >> 32));
    if (i % 3 == 1) x = std::fabs(x);
    if (i % 3 == 2) x = 1 + std::ldexp(float(int32_t(bits)), -32 - int(bits >> 32 & 15));
    if (i % 3 != 0) y = float(exponent(random) / std::log2(double(x)));
    pairs.x.push_back(x), pairs.y.push_back(y);
  }
  return pairs;
}

void check_pow(const Pairs& pairs) {
  const auto& entry = find(binary(math()), "pow");
  const auto& scalar = find(binary(scalar_math()), "pow");
  const size_t n = pairs.x.size();
  std::vector<float> out(n), expected(n);
  entry.apply(pairs.x.data(), pairs.y.data(), out.data(), n);
  scalar.apply(pairs.x.data(), pairs.y.data(), expected.data(), n);
  for (size_t i = 0; i < n; ++i) {
    const float x = pairs.x[i], y = pairs.y[i];
    ASSERT_LE(ulps(out[i], std::pow(double(x), double(y))), entry.max_ulps)
        << std::hexfloat << "pow(" << x << ", " << y << ") = " << out[i];
    ASSERT_TRUE(same_bits(out[i], expected[i])) << std::hexfloat << "pow(" << x << ", " << y << ")";
  }
}

TEST(Math, PowOfSpecials) { check_pow(special_pairs()); }

TEST(Math, PowOfRandomPairs) {
  for (uint32_t seed = 0; seed < 30; ++seed) check_pow(random_pairs(seed, 10'000));
}

TEST(Math, BinaryFunctionsHaveTheBitsOfScalar) {
  for (const auto& entry : binary(math())) {
    const auto& scalar = find(binary(scalar_math()), entry.name);
    for (const Pairs& pairs : {special_pairs(), random_pairs(1, 10'001)}) {
      const size_t n = pairs.x.size();
      std::vector<float> out(n), expected(n);
      entry.apply(pairs.x.data(), pairs.y.data(), out.data(), n);
      scalar.apply(pairs.x.data(), pairs.y.data(), expected.data(), n);
      for (size_t i = 0; i < n; ++i) {
        ASSERT_TRUE(same_bits(out[i], expected[i]))
            << std::hexfloat << entry.name << "(" << pairs.x[i] << ", " << pairs.y[i] << ")";
      }
    }
  }
}

}  // namespace
}  // namespace quire

// Division of every element by one number, which kernels do without a division: the quotient must
// be the one a division gives, bit for bit, for every significand; and soft-capping, which is one
// instruction, must have the bits of its three steps.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "quire/evaluate.h"
#include "quire/isa.h"

namespace quire {
namespace {

constexpr std::int64_t kRow = 4096;

Tensor evaluated(const Formula& formula, const std::vector<float>& scores) {
  const auto rows = static_cast<std::int64_t>(scores.size()) / kRow;
  return evaluate(ScoreMod(formula), Tensor::from(scores, {1, 1, rows, kRow}));
}

Formula divided_by(float c) {
  const ScoreMod mod = [c](auto score, auto, auto, auto, auto) {
    return score / static_cast<double>(c);
  };
  return mod.formula();
}

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

void expect_quotients(float c, const std::vector<float>& scores) {
  const Tensor out = evaluated(divided_by(c), scores);
  const float* got = out.view().data_as<float>();
  std::int64_t wrong = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (same_bits(got[i], scores[i] / c)) continue;
    if (wrong++ == 0) first = i;
  }
  EXPECT_EQ(wrong, 0) << std::hexfloat << scores[first] << " / " << c << " gave " << got[first]
                      << ", not " << scores[first] / c;
}

// Every significand, in a binade that changes with it.
std::vector<float> every_significand() {
  std::vector<float> x(std::size_t{1} << 23);
  for (std::uint32_t i = 0; i < x.size(); ++i) {
    const std::uint32_t exponent = 127 - 20 + i % 40, sign = i / 3 % 2;
    x[i] = std::bit_cast<float>(sign << 31 | exponent << 23 | i);
  }
  return x;
}

std::vector<float> corners() {
  using Limits = std::numeric_limits<float>;
  std::vector<float> x = {0.f, -0.f, Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()};
  for (int exponent = -149; exponent <= 127; ++exponent)
    for (const float f : {1.f, 1.5f, 0x1.fffffep0f, -0x1.000002p0f})
      x.push_back(std::ldexp(f, exponent));
  x.resize((x.size() + kRow - 1) / kRow * kRow, 1.f);
  return x;
}

TEST(Divide, EverySignificandByUsualNumbers) {
  const std::vector<float> scores = every_significand();
  for (const float c : {20.f, 50.f, 3.f, 0.1f}) expect_quotients(c, scores);
}

// One in 67 of them by numbers of all kinds: ones that need a second correction, ones with all bits
// set, ones near the ends of the range.
TEST(Divide, ManyNumbers) {
  const std::vector<float> all = every_significand();
  std::vector<float> some;
  for (std::size_t i = 0; some.size() < 16 * kRow; i += 67) some.push_back(all[i % all.size()]);
  std::mt19937 random(1);
  std::vector<float> divisors = {0x1.fffffep0f, -0x1.fffffep5f, 0x1p-40f, 0x1p-41f, 0x1.8p40f,
                                 0x1p41f,       1e-38f,         1e-45f,   3e38f,    0.f,
                                 -0.f,          INFINITY,       NAN,      1.f,      -1.f};
  for (std::uint32_t i = 0; i < 200; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    divisors.push_back(std::bit_cast<float>((bits & 0x807fffffu) | (127 - 8 + i % 16) << 23));
  }
  for (const float c : divisors) expect_quotients(c, some);
}

TEST(Divide, Corners) {
  for (const float c : {20.f, 3.f, 0x1.2p-39f, 0x1.7p39f, -7.f}) expect_quotients(c, corners());
}

TEST(Divide, SoftcapHasTheBitsOfItsSteps) {
  std::vector<float> scores = corners();
  for (int i = 0; i < 4 * kRow; ++i) scores.push_back(std::sin(static_cast<float>(i)) * 300);
  for (const char* text :
       {"20 * tanh(score / 20)", "tanh(score / 3) * 7", "-5 * tanh(score / 0.1)"}) {
    const Formula whole = Formula::parse(text);
    const bool first = text[0] != 't';
    const double cap = first ? (text[0] == '-' ? -5 : 20) : 7;
    const float divisor = first ? (text[0] == '-' ? 0.1f : 20.f) : 3.f;
    const Tensor ratio = evaluated(divided_by(divisor), scores);
    const Tensor tanh = evaluate(ScoreMod::parse("tanh(score)"), ratio);
    const Tensor expected =
        evaluate(ScoreMod([cap](auto score, auto, auto, auto, auto) { return score * cap; }), tanh);
    const Tensor out = evaluated(whole, scores);
    for (std::int64_t i = 0; i < out.view().numel(); ++i)
      ASSERT_TRUE(same_bits(out.view().data_as<float>()[i], expected.view().data_as<float>()[i]))
          << text << " of " << scores[static_cast<std::size_t>(i)];
  }
}

}  // namespace
}  // namespace quire

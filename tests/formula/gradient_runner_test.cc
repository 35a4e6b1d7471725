// GradientRunner on formulas of every pattern: modified scores have the forward's bits, slopes and
// gradients of buffers are those of the reference's point gradients, hidden elements add nothing,
// and bits depend neither on threads nor on tiles that only cut rows elsewhere.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "formula/first_fault.h"
#include "formula/simplify/simplify.h"
#include "reference/evaluate.h"
#include "tests/support/expect_error.h"
#include "tests/support/gradient_harness.h"
#include "tests/support/point_gradient.h"
#include "tests/support/tile_harness.h"

namespace quire::formula {
namespace {

using testing::GradientInputs;
using testing::GradientResult;
using testing::GradientRunOptions;
using testing::run_gradient;
using testing::same_bits;

constexpr std::int64_t kQ = 70, kKv = 131;
const Rectangle kExtents = {{0, 1}, {0, 2}, {0, kQ - 1}, {0, kKv - 1}};

// A number in -1..1 from a place, exact in f32.
double noise(std::uint64_t seed, std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u +
                    static_cast<std::uint64_t>(((b * 16 + h) * 1000 + q) * 1000 + kv);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>(x >> 44) * 0x1p-19 - 1;
}

Tensor numbers(const Shape& shape, std::uint64_t seed, DType dtype = DType::f32) {
  Tensor result(shape, DType::f32);
  for (std::int64_t i = 0; i < result.numel(); ++i)
    result.data_as<float>()[i] = static_cast<float>(noise(seed, 0, 0, 0, i));
  return dtype == DType::f32 ? result : to(result, dtype);
}

NamedBuffers make_buffers() {
  const auto wanted = [](const Shape& shape, const char* name, DType dtype = DType::f32) {
    static std::uint64_t seed = 7;
    return Buffer(numbers(shape, ++seed, dtype), {.name = name, .wants_gradient = true});
  };
  Tensor type({2, kQ, kKv}, DType::i32);
  for (std::int64_t i = 0; i < type.numel(); ++i)
    type.data_as<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7919 % 18 - 9);  // wraps, too
  Tensor many({kQ, kKv}, DType::i64);
  for (std::int64_t i = 0; i < many.numel(); ++i) many.data_as<std::int64_t>()[i] = i * 7919 % 5000;
  Tensor order({kQ}, DType::i64);
  for (std::int64_t i = 0; i < kQ; ++i) order.data_as<std::int64_t>()[i] = i * 7 % 9;
  return {{"bias", wanted({3}, "bias")},
          {"by_q", wanted({3, kQ}, "by_q", DType::f64)},
          {"by_kv", wanted({3, kKv}, "by_kv", DType::bf16)},
          {"table", wanted({kQ + kKv}, "table")},
          {"pos", wanted({kQ, kKv}, "pos")},
          {"turned", wanted({kKv, kQ}, "turned")},
          {"full", wanted({2, 3, kQ, kKv}, "full")},
          {"w", wanted({9}, "w")},
          {"large", wanted({5000}, "large")},
          {"cube", wanted({3, 4, 5}, "cube")},
          {"type", Buffer(type, {.name = "type"})},
          {"many", Buffer(many, {.name = "many"})},
          {"order", Buffer(order, {.name = "order"})},
          {"q_rope", wanted({2, 3, kQ, 19}, "q_rope")},
          {"k_rope", wanted({2, 1, kKv, 19}, "k_rope", DType::f16)}};
}

const char* const kTexts[] = {
    "score + bias[h]",
    "score + bias[h] * (kv_idx - q_idx)",
    "score * bias[h] + bias[0]",
    "score + by_q[h, q_idx]",
    "score * by_q[h, q_idx]",
    "score + by_kv[h, kv_idx] * tanh(score)",
    "score + w[order[q_idx]]",
    "score + table[q_idx - kv_idx + 130]",
    "score + w[clamp(kv_idx - q_idx, -4, 4)]",
    "score + exp(table[q_idx + kv_idx])",
    "score + pos[q_idx, kv_idx]",
    "score + turned[kv_idx, q_idx] * score",
    "score + full[b, h, q_idx, kv_idx]",
    "score + full[b, h, q_idx, kv_idx] * full[0, h, q_idx, 0]",
    "score + w[type[b, q_idx, kv_idx]]",
    "score + large[many[q_idx, kv_idx]] * score",
    "score + sum(cube[h]) * bias[h]",
    "score + sum(cube[h, type[b, q_idx, kv_idx] % 4])",
    "score + dot(q_rope[b, h, q_idx], k_rope[b, 0, kv_idx])",
    "score + score * dot(q_rope[b, h, q_idx], k_rope[b, 0, kv_idx]) / 4",
    "score + dot(q_rope[b, h, q_idx], q_rope[b, 0, q_idx])",
    "score + dot(q_rope[b, h, 5], k_rope[b, 0, kv_idx])",
    "score + dot(q_rope[b, h, order[(q_idx + kv_idx) % 70]], k_rope[b, 0, kv_idx])",
    "20 * tanh((score + bias[h]) / 20) + w[kv_idx % 9]",
    "where(q_idx >= kv_idx, score * bias[1], bias[2])",
};

double score_at(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) {
  return 4 * noise(1, b, h, q, kv);
}
double d_at(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) {
  return noise(2, b, h, q, kv);
}
bool causal(std::int64_t, std::int64_t, std::int64_t q, std::int64_t kv) { return q + 60 >= kv; }

struct Expected {
  reference::BufferGradients gradients, sizes;  // sums, and sums of absolute values
  std::vector<double> slopes;
};

// By the reference, element by element, in f64.
Expected expected_of(const Formula& formula, const GradientInputs& inputs) {
  reference::Evaluator values(formula);
  reference::PointGradient sweep(formula.graph());
  const auto zeros = [&] {
    return zero_gradients(formula.graph(), reference::WhichBuffers::kWantGradient);
  };
  Expected expected{zeros(), zeros(), {}};
  const Rectangle& all = inputs.extents;
  for (std::int64_t b = all.b.first; b <= all.b.last; ++b)
    for (std::int64_t h = all.h.first; h <= all.h.last; ++h)
      for (std::int64_t q = all.q.first; q <= all.q.last; ++q)
        for (std::int64_t kv = all.kv.first; kv <= all.kv.last; ++kv) {
          expected.slopes.push_back(0);
          if (inputs.visible && !inputs.visible(b, h, q, kv)) continue;
          values.run(
              {.b = b, .h = h, .q_idx = q, .kv_idx = kv, .score = inputs.score(b, h, q, kv)});
          const double d = inputs.d_modified(b, h, q, kv);
          expected.slopes.back() = sweep.sweep(values, d, expected.gradients) / d;
          sweep.sweep(values, std::fabs(d), expected.sizes);
        }
  return expected;
}

void expect_gradients(const GradientResult& got, const Expected& expected, const Formula& formula,
                      double tolerance) {
  for (std::size_t i = 0; i < formula.graph().buffers().size(); ++i) {
    const Buffer& buffer = formula.graph().buffers()[i];
    if (!buffer.wants_gradient()) continue;
    std::size_t target = 0;
    while (target < got.compiled.targets.size() && !got.compiled.targets[target].is_same(buffer))
      ++target;
    ASSERT_LT(target, got.compiled.targets.size()) << buffer.name();
    ASSERT_EQ(got.gradients[target].size(), expected.gradients[i].size());
    for (std::size_t k = 0; k < expected.gradients[i].size(); ++k)
      ASSERT_NEAR(got.gradients[target][k], expected.gradients[i][k],
                  tolerance * std::fabs(expected.sizes[i][k]) + tolerance)
          << buffer.name() << " " << k;
  }
}

// Sums of up to 2^17 terms of either sign, in tiles: far below sqrt(n) roundings of their size.
constexpr double kF32 = 2e-4, kF64 = 1e-12;

GradientInputs some_inputs(bool hides) {
  GradientInputs inputs{kExtents, score_at, d_at, {}};
  if (hides) inputs.visible = causal;
  return inputs;
}

TEST(GradientRunner, AgreesWithPointGradients) {
  for (const char* text : kTexts) {
    SCOPED_TRACE(text);
    const Formula formula = Formula::parse(text, make_buffers());
    const GradientInputs inputs = some_inputs(true);
    const Expected expected = expected_of(formula, inputs);
    for (const Precision precision : {Precision::kF32, Precision::kF64}) {
      const bool f64 = precision == Precision::kF64;
      const GradientResult got =
          run_gradient(formula, inputs, {.isa = current_isa(), .precision = precision});
      expect_gradients(got, expected, formula, f64 ? kF64 : kF32);
      for (std::size_t i = 0; i < expected.slopes.size(); ++i) {
        if (got.scores[i] == -std::numeric_limits<double>::infinity()) continue;
        ASSERT_NEAR(got.slopes[i], expected.slopes[i],
                    (f64 ? 1e-11 : 1e-4) * (1 + std::fabs(expected.slopes[i])));
      }
    }
  }
}

TEST(GradientRunner, BitsDoNotDependOnThreads) {
  for (const char* text : kTexts) {
    SCOPED_TRACE(text);
    const Formula formula = Formula::parse(text, make_buffers());
    const GradientInputs inputs = some_inputs(true);
    GradientRunOptions options{.isa = current_isa(), .chunk = 40};
    const GradientResult one = run_gradient(formula, inputs, options);
    for (const int threads : {2, 5}) {
      options.threads = threads;
      EXPECT_EQ(run_gradient(formula, inputs, options).gradients, one.gradients);
    }
  }
}

TEST(GradientRunner, BitsDoNotDependOnTheIsa) {
  for (const char* text : kTexts) {
    SCOPED_TRACE(text);
    const Formula formula = Formula::parse(text, make_buffers());
    const GradientInputs inputs = some_inputs(false);
    const GradientResult here = run_gradient(formula, inputs, {.isa = current_isa()});
    const GradientResult scalar = run_gradient(formula, inputs, {.isa = Isa::scalar});
    EXPECT_EQ(here.gradients, scalar.gradients);
    EXPECT_EQ(here.scores, scalar.scores);
  }
}

TEST(GradientRunner, ScoresHaveTheForwardsBits) {
  for (const char* text : kTexts) {
    SCOPED_TRACE(text);
    const Formula formula = Formula::parse(text, make_buffers());
    for (const Precision precision : {Precision::kF32, Precision::kF64}) {
      const Formula simple = simplify(formula, precision);
      const GradientResult got =
          run_gradient(formula, some_inputs(false), {.isa = current_isa(), .precision = precision});
      Rectangle region = kExtents;
      region.b = {1, 1};
      const auto forward = testing::run_tiles(
          {.score_mod = &simple}, kExtents, region,
          [](std::int64_t h, std::int64_t q, std::int64_t kv) { return score_at(1, h, q, kv); },
          {.isa = current_isa(), .precision = precision});
      const std::size_t skip = forward.scores.size();
      for (std::size_t i = 0; i < forward.scores.size(); ++i)
        ASSERT_TRUE(same_bits(got.scores[skip + i], forward.scores[i])) << i;
    }
  }
}

// Factors, and rows of the other side of a dot, that only hidden elements meet.
TEST(GradientRunner, NansThatNobodySeesAddNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Tensor keys = numbers({kKv, 5}, 3), weights = numbers({kKv}, 4);
  for (std::int64_t i = 0; i < 5; ++i) keys.data_as<float>()[11 * 5 + i] = NAN;
  weights.data_as<float>()[11] = NAN;
  const NamedBuffers buffers = {
      {"a", Buffer(numbers({kQ, 5}, 5), {.name = "a", .wants_gradient = true})},
      {"k", Buffer(keys, {.name = "k", .wants_gradient = true})},
      {"w", Buffer(weights, {.name = "w", .wants_gradient = true})},
      {"bias", Buffer(numbers({3}, 6), {.name = "bias", .wants_gradient = true})}};
  GradientInputs inputs = some_inputs(false);
  inputs.visible = [](std::int64_t, std::int64_t, std::int64_t, std::int64_t kv) {
    return kv != 11;
  };
  inputs.d_modified = [nan](std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) {
    return kv == 11 ? nan : d_at(b, h, q, kv);
  };
  for (const char* text :
       {"score + dot(a[q_idx], k[kv_idx])", "score + w[kv_idx] * bias[h]",
        "score * bias[h] * log(w[kv_idx] + 2)", "score + dot(a[q_idx], a[kv_idx % 70])"}) {
    SCOPED_TRACE(text);
    const Formula formula = Formula::parse(text, buffers);
    const GradientResult got = run_gradient(formula, inputs, {.isa = current_isa()});
    expect_gradients(got, expected_of(formula, inputs), formula, kF32);
  }
}

TEST(GradientRunner, ReportsTheFirstVisibleFault) {
  const NamedBuffers buffers = {
      {"bias", Buffer(numbers({100}, 6), {.name = "bias", .wants_gradient = true})}};
  const Formula formula = Formula::parse("score + bias[kv_idx]", buffers);
  GradientInputs inputs = some_inputs(false);
  inputs.visible = [](std::int64_t, std::int64_t, std::int64_t q, std::int64_t kv) {
    return kv < 100 || (q == 67 && kv == 120);
  };
  const GradientResult got = run_gradient(formula, inputs, {.isa = current_isa(), .threads = 3});
  ASSERT_TRUE(got.fault.found);
  kernels::TileFault fault = got.fault;
  fault.program = &got.compiled.program.tile;
  testing::expect_error(
      ErrorKind::index,
      "[formula] index 120 is outside buffer 'bias' of size 100 (axis 0) at b=0, h=0, q_idx=67, "
      "kv_idx=120",
      [&] { throw_first_fault(std::vector<kernels::TileFault>{fault}); });
}

}  // namespace
}  // namespace quire::formula

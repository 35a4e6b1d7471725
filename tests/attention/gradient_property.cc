// Random backward calls with score mods that read trainable buffers, in f64: gradients of q, k, v
// and of every buffer are the reference's; f32 has the same bits on one thread and on many.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "formula/gradient/differentiate.h"
#include "quire/flex_attention_backward.h"
#include "quire/isa.h"
#include "reference/evaluate.h"
#include "tests/mask/expect_blocks.h"
#include "tests/support/backward_case.h"
#include "tests/support/jagged_case.h"
#include "tests/support/random_formula.h"

namespace quire::testing {
namespace {

struct Case {
  AttentionCase call;
  RandomFormula mod;
};

// `smooth`: without floats that decide, where a rounding takes another branch than the reference.
Case random_case(std::mt19937_64& random, DType dtype, bool smooth) {
  AttentionCase c;
  c.batch = 1 + below(random, 2);
  c.kv_heads = 1 + below(random, 2);
  c.q_heads = c.kv_heads * (chance(random, 10) ? 7 : 1 + below(random, 2));
  c.q_len = 1 + below(random, chance(random, 85) ? 8 : 70);
  c.kv_len = 1 + below(random, chance(random, 85) ? 20 : 110);
  c.head_dim = 1 + below(random, 9);
  c.v_head_dim = 1 + below(random, 9);
  c.q_dtype = c.k_dtype = c.v_dtype = dtype;
  c.q_begin = chance(random, 50) ? 0 : below(random, 60);
  const Extents extents{c.batch, c.q_heads, c.q_begin + c.q_len, c.kv_len};
  if (chance(random, 60)) c.mask_mod = random_mask_mod(random, extents, /*floats=*/false);
  c.block_size = 16;
  const RandomFormula mod =
      random_formula(random, ValueType::kFloat,
                     {.nodes = 1 + static_cast<int>(below(random, 15)),
                      .extents = extents,
                      .discontinuous = !smooth,
                      .kinks = !smooth,
                      .reductions = !smooth,  // the reference would add up whole tables per element
                      .wants_gradient = true,
                      .strided = chance(random, 30)});
  c.score_mod = ScoreMod(mod.formula);
  return {c, mod};
}

bool is_finite(const Tensor& values) {
  for (std::int64_t i = 0; i < values.numel(); ++i)
    if (!std::isfinite(values.data_as<double>()[i])) return false;
  return true;
}

// Those that the mod has a part in.
bool is_finite(const AttentionGradients& gradients) {
  for (const BufferGradient& buffer : gradients.buffers)
    if (!is_finite(buffer.gradient.to(DType::f64))) return false;
  return is_finite(*gradients.q);
}

// Weights are recomputed from lse, which is rounded: at 1e6 to 1e-10 in f64, and that is their
// relative error.
bool is_coarse(const Tensor& lse) {
  for (std::int64_t i = 0; i < lse.numel(); ++i) {
    const double x = lse.data_as<double>()[i];
    if (std::isfinite(x) && std::fabs(x) > 1e6) return true;
  }
  return false;
}

// Whether the mod's slope and factors are numbers wherever it is not -inf: 0 times an infinite
// derivative is NaN, where the reference stops at the 0.
bool has_derivatives(const Case& c, const BackwardTensors& t) {
  const formula::Derivatives of = formula::differentiate(c.mod.formula, Precision::kF64);
  std::vector<formula::NodeId> roots = {of.value, of.d_score};
  for (const auto& site : of.sites) roots.push_back(site.factor);
  reference::Evaluator values(of.graph, roots);
  const AttentionCase& a = c.call;
  const double scale = 1 / std::sqrt(static_cast<double>(a.head_dim));
  for (std::int64_t row = 0; row < a.batch * a.q_heads * a.q_len; ++row) {
    const std::int64_t b = row / a.q_len / a.q_heads, h = row / a.q_len % a.q_heads;
    const std::int64_t kv_head = h / (a.q_heads / a.kv_heads);
    for (std::int64_t key = 0; key < a.kv_len; ++key) {
      double score = 0;
      for (std::int64_t e = 0; e < a.head_dim; ++e)
        score += t.forward.q.load_float({b, h, row % a.q_len, e}) *
                 t.forward.k.load_float({b, kv_head, key, e});
      const double value = values
                               .run({.b = b,
                                     .h = h,
                                     .q_idx = a.q_begin + row % a.q_len,
                                     .kv_idx = key,
                                     .score = score * scale})
                               .f;
      if (value == -std::numeric_limits<double>::infinity()) continue;
      for (const formula::NodeId root : roots)
        if (std::isnan(values[root].f)) return false;
    }
  }
  return true;
}

// How far gradients may be from the reference's, per value of the largest.
constexpr double kTolerance = 1e-7;

double tolerance(DType of_buffer) {
  switch (of_buffer) {
    case DType::f64:
      return kTolerance;
    case DType::f32:
      return 1e-6;
    case DType::f16:
      return 0x1p-10;
    default:
      return 0x1p-7;
  }
}

bool is_near(const Tensor& x, const Tensor& y, double relative) {
  return largest_error(x, y) <= relative * (1 + largest(y));
}

bool is_right(const AttentionGradients& got, const GradientValues& want, const Case& c,
              const BackwardTensors& t) {
  if (!is_near(*got.q, want.q, kTolerance) || !is_near(*got.k, want.k, kTolerance) ||
      !is_near(*got.v, want.v, kTolerance))
    return false;
  for (const BufferGradient& buffer : got.buffers) {
    const DType dtype = buffer.buffer.dtype();
    const Tensor exact_gradient = exact_buffer(c.call, t, buffer.buffer.name());
    if (!is_finite(exact_gradient)) continue;
    if (dtype == DType::f16 && largest(exact_gradient) > 6e4) continue;
    if (!is_near(buffer.gradient.to(DType::f64), exact_gradient, tolerance(dtype))) return false;
  }
  return true;
}

// Whether the reference itself comes elsewhere when every score moves by a few roundings: what
// cancels to noise, as score - score does in log1p(score - score - 1.0), has no digits to compare.
bool is_ill_conditioned(const Case& c, const BackwardTensors& t, const AttentionGradients& got,
                        const GradientValues& want) {
  AttentionCase moved = c.call;
  moved.scale = (1 + 0x1p-44) / std::sqrt(static_cast<double>(moved.head_dim));
  const auto moves = [](const Tensor& from, const Tensor& to) {
    return is_finite(from) && !is_near(to, from, kTolerance / 10);
  };
  const GradientValues elsewhere = exact(moved, t);
  if (moves(want.q, elsewhere.q) || moves(want.k, elsewhere.k) || moves(want.v, elsewhere.v))
    return true;
  for (const BufferGradient& buffer : got.buffers) {
    const std::string& name = buffer.buffer.name();
    if (moves(exact_buffer(c.call, t, name), exact_buffer(moved, t, name))) return true;
  }
  return false;
}

TEST(GradientProperty, OfBuffersAndTensorsInF64) {
  int cases = 0, compared = 0;
  EXPECT_TRUE(rc::check("gradients in f64", [&] {
    const auto seed = *rc::gen::noShrink(rc::gen::arbitrary<std::uint64_t>());
    std::mt19937_64 random(seed);
    const Case c = random_case(random, DType::f64, true);
    RC_LOG() << c.call.to_string() << "\n" << c.mod.formula.to_string() << std::endl;
    const BackwardTensors t(c.call, seed);
    const AttentionGradients got =
        flex_attention_backward(t.inputs(), {.forward = c.call.options()});
    const GradientValues want = exact(c.call, t);
    ++cases;
    for (const BufferGradient& buffer : got.buffers) {
      RC_ASSERT(buffer.gradient.shape() == buffer.buffer.shape());
      RC_ASSERT(buffer.gradient.dtype() == buffer.buffer.dtype());
    }
    if (!is_finite(want.q) || !is_finite(want.k) || !is_finite(want.v) || is_coarse(t.lse)) return;
    if (!is_finite(got) && !has_derivatives(c, t)) return;
    if (!is_right(got, want, c, t)) {
      RC_ASSERT(is_ill_conditioned(c, t, got, want));
      return;
    }
    ++compared;
  }));
  EXPECT_GT(compared, cases / 2);
}

TEST(GradientProperty, ThreadsDoNotMatter) {
  static const auto many = make_thread_pool(7);
  EXPECT_TRUE(rc::check("threads", [&] {
    const auto seed = *rc::gen::noShrink(rc::gen::arbitrary<std::uint64_t>());
    std::mt19937_64 random(seed);
    const Case c = random_case(random, DType::f32, false);
    RC_LOG() << c.call.to_string() << "\n" << c.mod.formula.to_string() << std::endl;
    const BackwardTensors t(c.call, seed);
    SerialExecutor serial;
    FlexAttentionBackwardOptions options{.forward = c.call.options()};
    options.forward.executor = &serial;
    const AttentionGradients one = flex_attention_backward(t.inputs(), options);
    options.forward.executor = many.get();
    const AttentionGradients other = flex_attention_backward(t.inputs(), options);
    RC_ASSERT(same_bits(*one.q, *other.q));
    for (std::size_t i = 0; i < one.buffers.size(); ++i)
      RC_ASSERT(same_bits(one.buffers[i].gradient, other.buffers[i].gradient));
  }));
}

}  // namespace
}  // namespace quire::testing

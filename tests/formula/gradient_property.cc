// Random score mods through GradientRunner: the forward's bits for the value, in f64 the gradients
// that the sites of differentiate() add up to, element by element, and the same bits with several
// threads.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <random>

#include "formula/gradient/differentiate.h"
#include "formula/simplify/simplify.h"
#include "tests/formula/site_gradients.h"
#include "tests/support/gradient_harness.h"
#include "tests/support/random_formula.h"
#include "tests/support/tile_harness.h"

namespace quire::formula {
namespace {

using testing::below;
using testing::chance;
using testing::GradientInputs;
using testing::GradientResult;
using testing::GradientRunOptions;
using testing::run_gradient;

constexpr testing::Extents kSizes{.b = 2, .h = 2, .q = 66, .kv = 9};
const Rectangle kExtents = {
    {0, kSizes.b - 1}, {0, kSizes.h - 1}, {0, kSizes.q - 1}, {0, kSizes.kv - 1}};

std::mt19937_64 any_random() {
  return std::mt19937_64(
      *rc::gen::noShrink(rc::gen::resize(100, rc::gen::arbitrary<std::uint64_t>())));
}

// A number in -1..1 from a place, exact in f32.
struct Noise {
  std::uint64_t seed;
  double operator()(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const {
    std::uint64_t x =
        seed + static_cast<std::uint64_t>(((b * 2 + h) * 100 + q) * 100 + kv) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return static_cast<double>(x >> 44) * 0x1p-19 - 1;
  }
};

// Without floats that decide: a rounding could take another branch than the reference.
testing::RandomFormula random_mod(std::mt19937_64& random, bool discontinuous) {
  const testing::RandomFormulaOptions options{.nodes = 3 + static_cast<int>(below(random, 18)),
                                              .extents = kSizes,
                                              .discontinuous = discontinuous,
                                              .kinks = discontinuous,
                                              .wants_gradient = true,
                                              .strided = chance(random, 50)};
  return testing::random_formula(random, ValueType::kFloat, options);
}

GradientInputs random_inputs(std::mt19937_64& random) {
  GradientInputs inputs{kExtents, Noise{random()}, Noise{random()}, {}};
  const std::int64_t seen = below(random, 40);
  if (chance(random, 50))
    inputs.visible = [seen](std::int64_t, std::int64_t, std::int64_t q, std::int64_t kv) {
      return kv <= q + seen - 10;
    };
  return inputs;
}

GradientRunOptions random_options(std::mt19937_64& random) {
  constexpr int kRows[] = {96, 16, 5};
  return {
      .isa = current_isa(), .max_rows = kRows[below(random, 3)], .chunk = 1 + below(random, 12)};
}

struct Sums {
  reference::BufferGradients sums, sizes;
  bool is_finite = true;
};

Sums expected_of(const Derivatives& derivatives, const GradientInputs& inputs) {
  SiteGradients at_point(derivatives);
  const auto zeros = [&] {
    return zero_gradients(derivatives.graph, reference::WhichBuffers::kWantGradient);
  };
  Sums result{zeros(), zeros()};
  for (std::int64_t b = 0; b < kSizes.b; ++b)
    for (std::int64_t h = 0; h < kSizes.h; ++h)
      for (std::int64_t q = 0; q < kSizes.q; ++q)
        for (std::int64_t kv = 0; kv < kSizes.kv; ++kv) {
          if (inputs.visible && !inputs.visible(b, h, q, kv)) continue;
          const double d = inputs.d_modified(b, h, q, kv);
          const auto& gradients = at_point.run(
              {.b = b, .h = h, .q_idx = q, .kv_idx = kv, .score = inputs.score(b, h, q, kv)});
          for (std::size_t i = 0; i < gradients.size(); ++i)
            for (std::size_t k = 0; k < gradients[i].size(); ++k) {
              result.sums[i][k] += d * gradients[i][k];
              result.sizes[i][k] += std::fabs(d * gradients[i][k]);
              result.is_finite = result.is_finite && std::isfinite(gradients[i][k]);
            }
        }
  return result;
}

TEST(GradientProperty, SumsOfSites) {
  int cases = 0, compared = 0, sites = 0;
  EXPECT_TRUE(rc::check("sums of sites", [&] {
    std::mt19937_64 random = any_random();
    const testing::RandomFormula mod = random_mod(random, false);
    RC_LOG() << mod.formula.to_string() << "\n";
    const GradientInputs inputs = random_inputs(random);
    GradientRunOptions options = random_options(random);
    options.precision = Precision::kF64;
    const Derivatives derivatives = differentiate(mod.formula, Precision::kF64);
    const GradientResult got = run_gradient(mod.formula, inputs, options);
    const Sums expected = expected_of(derivatives, inputs);
    ++cases;
    sites += static_cast<int>(derivatives.sites.size());
    if (!expected.is_finite) return;
    ++compared;
    for (std::size_t i = 0; i < expected.sums.size(); ++i) {
      const Buffer& buffer = derivatives.graph.buffers()[i];
      for (std::size_t target = 0; target < got.compiled.targets.size(); ++target) {
        if (!got.compiled.targets[target].is_same(buffer)) continue;
        RC_ASSERT(got.gradients[target].size() == expected.sums[i].size());
        for (std::size_t k = 0; k < expected.sums[i].size(); ++k)
          RC_ASSERT(std::fabs(got.gradients[target][k] - expected.sums[i][k]) <=
                    1e-8 * expected.sizes[i][k] + 1e-12);
      }
    }
  }));
  EXPECT_GT(compared, cases / 2);
  EXPECT_GT(sites, cases / 3);
}

TEST(GradientProperty, ValuesHaveTheForwardsBits) {
  EXPECT_TRUE(rc::check("the forward's bits", [] {
    std::mt19937_64 random = any_random();
    const testing::RandomFormula mod = random_mod(random, true);
    RC_LOG() << mod.formula.to_string() << "\n";
    GradientInputs inputs = random_inputs(random);
    inputs.visible = {};
    const GradientRunOptions options = random_options(random);
    const GradientResult got = run_gradient(mod.formula, inputs, options);
    const Formula simple = simplify(mod.formula, Precision::kF32);
    Rectangle region = kExtents;
    region.b = {1, 1};
    const testing::TileResult forward = testing::run_tiles(
        {.score_mod = &simple}, kExtents, region,
        [&](std::int64_t h, std::int64_t q, std::int64_t kv) { return inputs.score(1, h, q, kv); },
        {.isa = options.isa});
    const std::size_t first = forward.scores.size();
    for (std::size_t i = 0; i < forward.scores.size(); ++i)
      RC_ASSERT(testing::same_bits(got.scores[first + i], forward.scores[i]));
  }));
}

TEST(GradientProperty, BitsDoNotDependOnThreads) {
  EXPECT_TRUE(rc::check("threads", [] {
    std::mt19937_64 random = any_random();
    const testing::RandomFormula mod = random_mod(random, true);
    RC_LOG() << mod.formula.to_string() << "\n";
    const GradientInputs inputs = random_inputs(random);
    GradientRunOptions options = random_options(random);
    const GradientResult one = run_gradient(mod.formula, inputs, options);
    options.threads = 3;
    const GradientResult three = run_gradient(mod.formula, inputs, options);
    for (std::size_t i = 0; i < one.gradients.size(); ++i)
      for (std::size_t k = 0; k < one.gradients[i].size(); ++k)
        RC_ASSERT(testing::same_bits(one.gradients[i][k], three.gradients[i][k]));
  }));
}

}  // namespace
}  // namespace quire::formula

// Random formulas at random points: an evaluation in f32 lies within the running error bound at
// every node that is not uncertain, and most nodes are not.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <iterator>
#include <limits>

#include "tests/reference/plain_float.h"
#include "tests/support/error_bound.h"
#include "tests/support/random_formula.h"

namespace quire::reference {
namespace {

using formula::NodeId;
using testing::below;
using testing::PlainFloat;

float random_score(std::mt19937_64& random, bool extremes = false) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kExtremes[] = {
      0.f,    -0.f,  kInf,  -kInf,  std::numeric_limits<float>::quiet_NaN(),
      1e-45f, 3e38f, -1e6f, 1e-38f, 16777216.f};
  if (extremes && testing::chance(random, 30))
    return kExtremes[below(random, std::size(kExtremes))];
  const float unit = static_cast<float>(below(random, 1 << 24)) * 0x1p-23f - 1;  // -1..1
  return std::ldexp(unit, static_cast<int>(below(random, 12)) - 4);
}

// Whether the f32 value is what the bound promises.
bool holds(const BoundedEvaluator& bounds, const PlainFloat& program, NodeId id) {
  const Value& exact = bounds.value(id);
  if (exact.type != ValueType::kFloat) return program[id].i == exact.i;
  const double value = program[id].f;
  if (std::isnan(exact.f) || std::isnan(value)) return std::isnan(exact.f) && std::isnan(value);
  return value == exact.f || std::abs(value - exact.f) <= bounds.bound(id).error;
}

void check(std::uint64_t seed, const testing::RandomFormulaOptions& options) {
  std::mt19937_64 random(seed);
  const testing::RandomFormula made = testing::random_formula(random, ValueType::kFloat, options);
  BoundedEvaluator bounds(made.formula);
  PlainFloat program(bounds.evaluator(), seed, 3);
  for (int i = 0; i < 20; ++i) {
    const testing::Extents& e = options.extents;
    const Point point{.b = below(random, e.b),
                      .h = below(random, e.h),
                      .q_idx = below(random, e.q),
                      .kv_idx = below(random, e.kv),
                      .score = random_score(random, options.extremes)};
    bounds.run(point);
    program.run(point);
    for (const NodeId id : bounds.evaluator().nodes()) {
      if (bounds.bound(id).uncertain || holds(bounds, program, id)) continue;
      RC_FAIL("seed " + std::to_string(seed) + ", node " + std::to_string(id) + ": f64 " +
              std::to_string(bounds.value(id).number()) + ", f32 " + std::to_string(program[id].f) +
              ", bound " + std::to_string(bounds.bound(id).error));
    }
  }
}

RC_GTEST_PROP(ErrorBoundProperty, HoldsForOrdinaryFormulas, (std::uint64_t seed)) {
  check(seed, {.nodes = 20, .strided = true});
}

RC_GTEST_PROP(ErrorBoundProperty, HoldsWithExtremesAndFaults, (std::uint64_t seed)) {
  check(seed, {.nodes = 12, .faults = true, .extremes = true});
}

RC_GTEST_PROP(ErrorBoundProperty, HoldsWithoutDiscontinuities, (std::uint64_t seed)) {
  check(seed, {.nodes = 12, .discontinuous = false});
}

// The bound would be of no use if it skipped everything.
TEST(ErrorBoundProperty, MostElementsAreCertain) {
  int certain = 0, all = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto made = testing::random_formula(random, ValueType::kFloat, {.nodes = 12});
    BoundedEvaluator bounds(made.formula);
    for (int i = 0; i < 10; ++i) {
      bounds.run({.h = below(random, 3),
                  .q_idx = below(random, 70),
                  .kv_idx = below(random, 300),
                  .score = random_score(random)});
      certain += !bounds.bound().uncertain;
      ++all;
    }
  }
  EXPECT_GT(certain, all * 3 / 4);
}

}  // namespace
}  // namespace quire::reference

// Affine forms and dependences of random formulas, against values: a form predicts the integer, and
// a value that is said not to vary with something does not.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "formula/bound/affine.h"
#include "formula/bound/depends.h"
#include "formula/simplify/simplify.h"
#include "reference/evaluate.h"
#include "tests/support/random_formula.h"

namespace quire::formula {
namespace {

using reference::Evaluator;
using reference::Point;
using reference::Value;
using testing::below;
using testing::RandomFormula;

constexpr int kPoints = 12;

// Affine and diagonal values appear where there are few other things to choose from.
RandomFormula formula_of(std::mt19937_64& random) {
  const bool plain = testing::chance(random, 50);
  const ValueType type = testing::chance(random, 50) ? ValueType::kBool : ValueType::kFloat;
  return testing::random_formula(random, type,
                                 {.nodes = 1 + static_cast<int>(below(random, 30)),
                                  .faults = testing::chance(random, 20),
                                  .floats = !plain,
                                  .score = !plain,
                                  .transcendental = !plain,
                                  .extremes = testing::chance(random, 30)});
}

Point point_of(std::mt19937_64& random) {
  const testing::Extents e;
  return {.b = below(random, e.b),
          .h = below(random, e.h),
          .q_idx = below(random, e.q),
          .kv_idx = below(random, e.kv),
          .score = static_cast<double>(below(random, 4097) - 2048) / 256};
}

std::uint64_t u(std::int64_t x) { return static_cast<std::uint64_t>(x); }

bool same(const Value& a, const Value& b) {
  if (a.type != ValueType::kFloat) return a.i == b.i;
  return (std::isnan(a.f) && std::isnan(b.f)) ||
         std::bit_cast<std::uint64_t>(a.f) == std::bit_cast<std::uint64_t>(b.f);
}

RC_GTEST_PROP(AffineProperty, FormsPredictValues, ()) {
  std::mt19937_64 random(
      *rc::gen::noShrink(rc::gen::resize(100, rc::gen::arbitrary<std::uint64_t>())));
  const RandomFormula made = formula_of(random);
  const std::vector<AffineForm> forms = affine_forms(made.formula.graph());
  Evaluator first(made.formula), second(made.formula);
  for (int i = 0; i < kPoints; ++i) {
    const Point p = point_of(random);
    Point moved = point_of(random);
    moved.b = p.b;
    moved.h = p.h;
    first.run(p);
    second.run(moved);
    for (const NodeId id : first.nodes()) {
      const AffineForm& f = forms[static_cast<std::size_t>(id)];
      if (!f.is_affine()) continue;
      if (f.is_exact()) {
        const std::uint64_t value = u(f.b) * u(p.b) + u(f.h) * u(p.h) + u(f.q) * u(p.q_idx) +
                                    u(f.kv) * u(p.kv_idx) + u(f.c);
        RC_ASSERT(u(first[id].i) == value);
      }
      if (first[id].type == ValueType::kInt) {
        RC_ASSERT(u(second[id].i) - u(first[id].i) ==
                  u(f.q) * (u(moved.q_idx) - u(p.q_idx)) +
                      u(f.kv) * (u(moved.kv_idx) - u(p.kv_idx)));
      } else {
        RC_ASSERT(f.is_uniform());
        RC_ASSERT(same(first[id], second[id]));
      }
    }
  }
}

// Another point that differs from `p` only in what a value with these dependences ignores.
Point moved_point(std::mt19937_64& random, const Point& p, const Depends& on) {
  Point moved = point_of(random);
  if (on.b) moved.b = p.b;
  if (on.h) moved.h = p.h;
  if (on.score) moved.score = p.score;
  if (on.dependence == Dependence::kDiagonal) {
    moved.kv_idx = moved.q_idx + p.kv_idx - p.q_idx;
  } else {
    if (on.q) moved.q_idx = p.q_idx;
    if (on.kv) moved.kv_idx = p.kv_idx;
  }
  return moved;
}

RC_GTEST_PROP(DependsProperty, ValuesDoNotVaryWithAnythingElse, ()) {
  std::mt19937_64 random(
      *rc::gen::noShrink(rc::gen::resize(100, rc::gen::arbitrary<std::uint64_t>())));
  const Formula formula = simplify(formula_of(random).formula, Precision::kF64);
  const std::vector<Depends> all = depends(formula.graph());
  Evaluator first(formula), second(formula);
  for (int i = 0; i < kPoints; ++i) {
    const Point p = point_of(random);
    first.run(p);
    for (const NodeId id : first.nodes()) {
      const Depends& on = all[static_cast<std::size_t>(id)];
      second.run(moved_point(random, p, on));
      if (!same(first[id], second[id])) {
        RC_LOG() << Formula(formula.graph(), id).to_string() << " is not "
                 << dependence_name(on.dependence) << "\n";
        RC_FAIL("varies with more than is said");
      }
    }
  }
}

}  // namespace
}  // namespace quire::formula

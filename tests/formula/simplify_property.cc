// Simplification of random formulas: the same values bit for bit, no new faults, no more
// operations, and nothing left to do. In f32 the same is tested through tile programs.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "formula/build.h"
#include "formula/graph.h"
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

RandomFormula formula_of(std::mt19937_64& random) {
  constexpr std::array<ValueType, 3> kTypes = {ValueType::kFloat, ValueType::kInt,
                                               ValueType::kBool};
  const ValueType type = kTypes[random() % 3];
  return testing::random_formula(random, type,
                                 {.nodes = 1 + static_cast<int>(below(random, 30)),
                                  .faults = testing::chance(random, 30),
                                  .extremes = testing::chance(random, 60)});
}

// Few arguments, the constants that rules look for, and any operations on them: nearly every
// operation meets a rule.
class DenseFormula {
 public:
  explicit DenseFormula(std::mt19937_64& random) : random_(random) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
    ints_ = {make_leaf(graph_, Op::kQIdx), make_leaf(graph_, Op::kKvIdx),
             make_leaf(graph_, Op::kBatch)};
    for (const std::int64_t c : {std::int64_t{0}, std::int64_t{1}, std::int64_t{-1},
                                 std::int64_t{2}, std::int64_t{-3}, kMin, ~kMin})
      ints_.push_back(make_int(graph_, c));
    floats_ = {make_leaf(graph_, Op::kScore), make_cast(graph_, ints_[1], ValueType::kFloat)};
    for (const double c : {0.0, -0.0, 1.0, -1.0, 4.0, 0.1, kInfinity, -kInfinity,
                           std::numeric_limits<double>::quiet_NaN()})
      floats_.push_back(make_float(graph_, c));
    bools_ = {make_binary(graph_, Op::kGe, ints_[0], ints_[1]), make_bool(graph_, true),
              make_bool(graph_, false)};
  }

  Formula make(std::int64_t operations) {
    NodeId last = kNoNode;
    for (std::int64_t i = 0; i < operations; ++i) {
      last = operation();
      pool(graph_[last].type).push_back(last);
    }
    return Formula(graph_, last);
  }

 private:
  std::vector<NodeId>& pool(ValueType type) {
    return type == ValueType::kInt ? ints_ : type == ValueType::kFloat ? floats_ : bools_;
  }

  // New values are preferred, so that the result is more than its last operation.
  NodeId pick(ValueType type) {
    const std::vector<NodeId>& from = pool(type);
    const std::size_t latest = std::min<std::size_t>(from.size(), 3);
    return testing::chance(random_, 50) ? from[from.size() - 1 - random_() % latest]
                                        : from[random_() % from.size()];
  }

  Op op_between(Op first, Op last) {
    const auto low = static_cast<int>(first), high = static_cast<int>(last);
    return static_cast<Op>(low + below(random_, high - low + 1));
  }

  NodeId operation() {
    const auto type = static_cast<ValueType>(below(random_, 3));
    switch (below(random_, 6)) {
      case 0:
        if (type == ValueType::kBool) return make_unary(graph_, Op::kNot, pick(type));
        return make_unary(graph_, op_between(Op::kNeg, Op::kTrunc), pick(type));
      case 1:
        return make_cast(graph_, pick(static_cast<ValueType>(below(random_, 3))), type);
      case 2:
        if (testing::chance(random_, 50))
          return make_clamp(graph_, pick(type), pick(type), pick(type));
        return make_where(graph_, pick(ValueType::kBool), pick(type), pick(type));
      case 3:
        return make_binary(graph_, op_between(Op::kLt, Op::kNe), pick(type), pick(type));
      default:
        return arithmetic(type);
    }
  }

  NodeId arithmetic(ValueType type) {
    if (type == ValueType::kBool)
      return make_binary(graph_, op_between(Op::kAnd, Op::kXor), pick(type), pick(type));
    if (type == ValueType::kInt && testing::chance(random_, 10))
      return make_unary(graph_, Op::kBitNot, pick(type));
    if (type == ValueType::kFloat && testing::chance(random_, 10))
      return make_unary(graph_, testing::chance(random_, 50) ? Op::kSqrt : Op::kRelu, pick(type));
    Op op = Op::kDiv;
    while (type == ValueType::kInt && op == Op::kDiv) op = op_between(Op::kAdd, Op::kBitXor);
    if (type == ValueType::kFloat) op = op_between(Op::kAdd, Op::kMax);
    return make_binary(graph_, op, pick(type), pick(type));
  }

  std::mt19937_64& random_;
  Graph graph_;
  std::vector<NodeId> ints_, floats_, bools_;
};

double score_of(std::mt19937_64& random) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr std::array<double, 8> kSpecial = {
      0.0,    -0.0,  1.0, kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN(),
      5e-324, -1e300};
  if (testing::chance(random, 40)) return kSpecial[random() % kSpecial.size()];
  return static_cast<double>(below(random, 2'000'001) - 1'000'000) / 65536.0;
}

Point point_of(std::mt19937_64& random) {
  const testing::Extents e;
  return {.b = below(random, e.b),
          .h = below(random, e.h),
          .q_idx = below(random, e.q),
          .kv_idx = below(random, e.kv),
          .score = score_of(random)};
}

bool same_bits(const Value& a, const Value& b) {
  if (a.type != b.type) return false;
  if (a.type != ValueType::kFloat) return a.i == b.i;
  if (std::isnan(a.f) && std::isnan(b.f)) return true;
  return std::bit_cast<std::uint64_t>(a.f) == std::bit_cast<std::uint64_t>(b.f);
}

std::size_t operations(const Formula& formula) {
  std::size_t count = 0;
  for (NodeId id = 0; id < static_cast<NodeId>(formula.size()); ++id)
    count += formula.graph()[id].op > Op::kBoolConst;
  return count;
}

void check_values(std::mt19937_64& random, const Formula& formula) {
  const Formula simple = simplify(formula, Precision::kF64);
  Evaluator before(formula), after(simple);
  for (int i = 0; i < kPoints; ++i) {
    const Point point = point_of(random);
    const Value expected = before.run(point), actual = after.run(point);
    if (!same_bits(expected, actual)) {
      RC_LOG() << formula.to_string() << "\nbecame " << simple.to_string() << "\nat b=" << point.b
               << " h=" << point.h << " q_idx=" << point.q_idx << " kv_idx=" << point.kv_idx
               << " score=" << point.score << ": " << expected.number() << " became "
               << actual.number() << "\n";
      RC_FAIL("another value");
    }
    RC_ASSERT(before.fault() || !after.fault());
  }
}

void check_shape(const Formula& formula) {
  for (const Precision precision : {Precision::kF32, Precision::kF64}) {
    const Formula once = simplify(formula, precision);
    const Formula twice = simplify(once, precision);
    if (once != twice || operations(once) > operations(formula)) {
      RC_LOG() << formula.to_string() << "\nbecame " << once.to_string() << "\nbecame "
               << twice.to_string() << "\n";
      RC_FAIL("not idempotent, or grown");
    }
    RC_ASSERT(once.type() == formula.type());
  }
}

RC_GTEST_PROP(SimplifyProperty, KeepsEveryBit, ()) {
  std::mt19937_64 random(
      *rc::gen::noShrink(rc::gen::resize(100, rc::gen::arbitrary<std::uint64_t>())));
  check_values(random, formula_of(random).formula);
}

RC_GTEST_PROP(SimplifyProperty, IsIdempotentAndNeverGrows, ()) {
  std::mt19937_64 random(
      *rc::gen::noShrink(rc::gen::resize(100, rc::gen::arbitrary<std::uint64_t>())));
  check_shape(formula_of(random).formula);
}

RC_GTEST_PROP(SimplifyProperty, KeepsEveryBitWhereRulesAbound, ()) {
  std::mt19937_64 random(
      *rc::gen::noShrink(rc::gen::resize(100, rc::gen::arbitrary<std::uint64_t>())));
  const Formula formula = DenseFormula(random).make(1 + below(random, 16));
  check_values(random, formula);
  check_shape(formula);
}

}  // namespace
}  // namespace quire::formula

// Random floats and bools. Tests only.
#include <algorithm>
#include <array>
#include <limits>

#include "tests/support/random_generator.h"

namespace quire::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

constexpr std::array<double, 12> kExtremeFloats = {kInf,
                                                   -kInf,
                                                   std::numeric_limits<double>::quiet_NaN(),
                                                   -0.0,
                                                   5e-324,
                                                   1e-40,
                                                   -1.1754943508222875e-38,
                                                   1.7976931348623157e308,
                                                   3.4028234663852886e38,
                                                   1e-300,
                                                   -16777217.0,
                                                   9223372036854775808.0};

constexpr std::array<double, 12> kUsualFloats = {0,     1,  -1,    0.5, 2,    -0.5,
                                                 0.125, 10, -3.25, 30,  0.01, 1.4426950408889634};

}  // namespace

RandomGenerator::NodeId RandomGenerator::leaf_real() {
  if (options_.score && allowed(Op::kScore) && chance(55)) return make_leaf(graph_, Op::kScore);
  if (options_.extremes && chance(15)) return real_constant(one_of<double>(kExtremeFloats));
  if (chance(30)) return scaled(leaf_int());
  return real_constant(chance(60) ? one_of<double>(kUsualFloats)
                                  : static_cast<double>(between(-4000, 4000)) / 1000);
}

// An integer as a float, mostly made small.
RandomGenerator::NodeId RandomGenerator::scaled(const Int& x) {
  const NodeId value = as(x.id, ValueType::kFloat);
  return chance(40) ? value
                    : binary(Op::kMul, value, real_constant(chance(50) ? 0.0078125 : -0.01));
}

// A float above 0, if its argument is finite.
RandomGenerator::NodeId RandomGenerator::positive(int budget) {
  const NodeId x = real(budget), small = real_constant(chance(50) ? 0.5 : 0.01);
  return binary(Op::kAdd, binary(Op::kMul, x, x), small);
}

// cap * tanh(x / cap)
RandomGenerator::NodeId RandomGenerator::softcap(int budget) {
  const NodeId x = real(budget), cap = real_constant(static_cast<double>(between(1, 50)));
  return binary(Op::kMul, cap, unary(Op::kTanh, binary(Op::kDiv, x, cap)));
}

bool RandomGenerator::allowed_real(Op op) const {
  const bool steps = op == Op::kFloorDiv || op == Op::kMod || (op >= Op::kSign && op <= Op::kTrunc);
  const bool kinks =
      op == Op::kAbs || op == Op::kRelu || op == Op::kMin || op == Op::kMax || op == Op::kClamp;
  const bool transcendental =
      op == Op::kPow ||
      (formula::is_float_function(op) && op != Op::kSqrt && op != Op::kRsqrt && op != Op::kRelu);
  return allowed(op) && (!steps || options_.discontinuous) && (!kinks || options_.kinks) &&
         (!transcendental || options_.transcendental);
}

RandomGenerator::NodeId RandomGenerator::real(int budget) {
  static constexpr std::array kChoices = std::to_array<Choice>({
      {Op::kAdd, 10},  {Op::kSub, 6},     {Op::kMul, 12},  {Op::kDiv, 3},   {Op::kFloorDiv, 1},
      {Op::kMod, 1},   {Op::kPow, 1},     {Op::kMin, 2},   {Op::kMax, 2},   {Op::kClamp, 2},
      {Op::kWhere, 6}, {Op::kNeg, 2},     {Op::kAbs, 2},   {Op::kSign, 1},  {Op::kFloor, 1},
      {Op::kCeil, 1},  {Op::kRound, 1},   {Op::kTrunc, 1}, {Op::kLoad, 12}, {Op::kSum, 1},
      {Op::kDot, 1},   {Op::kToFloat, 8}, {Op::kTanh, 1},
#define QUIRE_FLOAT_FUNCTION(name, ...) {Op::k##name, 1},
#include "quire/op_table.inc"
  });
  if (budget <= 0) return leaf_real();
  if (!floats_.empty() && chance(12)) return one_of<NodeId>(floats_);
  if (budget >= 3 && allowed_real(Op::kTanh) && allowed(Op::kDiv) && chance(3))
    return softcap(budget - 3);
  for (int attempt = 0; attempt < 40; ++attempt) {
    const Op op = choose(kChoices);
    if (!allowed_real(op)) continue;
    const NodeId id = float_operation(op, budget - 1);
    if (id == formula::kNoNode) continue;
    floats_.push_back(id);
    return id;
  }
  return leaf_real();
}

RandomGenerator::NodeId RandomGenerator::float_operation(Op op, int budget) {
  if (formula::is_float_function(op)) return float_function(op, budget);
  const int left = static_cast<int>(below(budget + 1));
  switch (op) {
    case Op::kLoad:
    case Op::kSum:
    case Op::kDot:
      return read(op, ValueType::kFloat, budget).id;
    case Op::kNeg:
    case Op::kAbs:
    case Op::kSign:
    case Op::kFloor:
    case Op::kCeil:
    case Op::kRound:
    case Op::kTrunc:
      return unary(op, real(budget));
    case Op::kToFloat:
      return chance(85) ? scaled(integer(budget)) : as(truth(budget), ValueType::kFloat);
    case Op::kPow: {
      const NodeId base = chance(80) ? positive(left) : real(left);
      const double quarters = static_cast<double>(between(-8, 8));
      return binary(op, base, chance(60) ? real_constant(quarters / 4) : real(budget - left));
    }
    case Op::kClamp: {
      const NodeId x = real(budget);
      const std::int64_t low = between(-9, 3), high = low + below(9);
      return make_clamp(graph_, x, real_constant(static_cast<double>(low)),
                        real_constant(static_cast<double>(high)));
    }
    case Op::kWhere: {
      const NodeId condition = truth(budget / 2), a = real(budget / 4), b = real(budget / 4);
      return make_where(graph_, condition, a, b);
    }
    default:
      break;
  }
  const NodeId a = real(left);
  const bool guard = (op == Op::kDiv || op == Op::kFloorDiv || op == Op::kMod) && chance(70);
  const NodeId b = guard ? positive(budget - left) : real(budget - left);
  return binary(op, a, b);
}

RandomGenerator::NodeId RandomGenerator::float_function(Op op, int budget) {
  const bool of_positive =
      op == Op::kLog || op == Op::kLog2 || op == Op::kLog1p || op == Op::kSqrt || op == Op::kRsqrt;
  const bool grows = op == Op::kExp || op == Op::kExp2 || op == Op::kExpm1;
  if (of_positive && chance(75)) return unary(op, positive(budget));
  const NodeId x = real(budget);
  if (!grows || chance(40)) return unary(op, x);
  if (allowed(Op::kTanh) && chance(50)) return unary(op, unary(Op::kTanh, x));
  return unary(op, binary(Op::kMul, x, real_constant(0.0625)));
}

// ---- Bools.

namespace {

constexpr std::array kComparisons = {Op::kLt, Op::kLe, Op::kGt, Op::kGe, Op::kEq, Op::kNe};

}  // namespace

RandomGenerator::NodeId RandomGenerator::leaf_truth() {
  if (chance(5)) return make_bool(graph_, chance(50));
  const Int a = leaf_int(), b = leaf_int();
  return binary(comparison(), a.id, b.id);
}

Op RandomGenerator::comparison() {
  for (int attempt = 0; attempt < 40; ++attempt)
    if (const Op op = one_of<Op>(kComparisons); allowed(op)) return op;
  return Op::kLe;
}

// doc[q_idx] == doc[kv_idx]
RandomGenerator::NodeId RandomGenerator::same_document() {
  const Extents& e = options_.extents;
  for (const Buffer& buffer : buffers_) {
    if (type_of(buffer) != ValueType::kInt || axes(buffer).size() != 1 || !allowed(Op::kLoad))
      continue;
    if (axes(buffer)[0] < std::max(e.q, e.kv)) continue;
    const NodeId q = make_leaf(graph_, Op::kQIdx), kv = make_leaf(graph_, Op::kKvIdx);
    const NodeId a = make_load(graph_, buffer, {&q, 1}), b = make_load(graph_, buffer, {&kv, 1});
    return binary(comparison(), a, b);
  }
  return formula::kNoNode;
}

// q_idx - kv_idx <= w
RandomGenerator::NodeId RandomGenerator::window() {
  const NodeId q = make_leaf(graph_, Op::kQIdx), kv = make_leaf(graph_, Op::kKvIdx);
  const NodeId distance =
      chance(50) ? binary(Op::kSub, q, kv) : unary(Op::kAbs, binary(Op::kSub, kv, q));
  return binary(comparison(), distance, int_constant(below(options_.extents.kv)).id);
}

RandomGenerator::NodeId RandomGenerator::truth(int budget) {
  static constexpr std::array kChoices = std::to_array<Choice>({
      {Op::kLt, 4},
      {Op::kLe, 4},
      {Op::kGt, 3},
      {Op::kGe, 4},
      {Op::kEq, 3},
      {Op::kNe, 2},
      {Op::kAnd, 5},
      {Op::kOr, 4},
      {Op::kXor, 1},
      {Op::kToBool, 2},
      {Op::kNot, 2},
      {Op::kWhere, 1},
  });
  if (budget <= 0) return leaf_truth();
  if (!bools_.empty() && chance(12)) return one_of<NodeId>(bools_);
  const bool has_positions = allowed(Op::kQIdx) && allowed(Op::kKvIdx);
  if (budget >= 3 && has_positions && allowed(Op::kSub) && allowed(Op::kAbs) && chance(10))
    return window();
  if (budget >= 3 && has_positions && chance(10))
    if (const NodeId id = same_document(); id != formula::kNoNode) return id;
  for (int attempt = 0; attempt < 40; ++attempt) {
    const Op op = choose(kChoices);
    if (!allowed(op)) continue;
    const NodeId id = bool_operation(op, budget - 1);
    bools_.push_back(id);
    return id;
  }
  return leaf_truth();
}

RandomGenerator::NodeId RandomGenerator::bool_operation(Op op, int budget) {
  const int left = static_cast<int>(below(budget + 1));
  const bool of_floats = options_.floats && options_.discontinuous && chance(20);
  if (formula::is_compare(op)) {
    if (of_floats) {
      const NodeId a = real(left), b = real(budget - left);
      return binary(op, a, b);
    }
    const Int a = integer(left), b = integer(budget - left);
    return binary(op, a.id, b.id);
  }
  if (op == Op::kNot) return unary(op, truth(budget));
  if (op == Op::kToBool) return as(of_floats ? real(budget) : integer(budget).id, ValueType::kBool);
  if (op == Op::kWhere) {
    const NodeId condition = truth(budget / 3), a = truth(budget / 3), b = truth(budget / 3);
    return make_where(graph_, condition, a, b);
  }
  const NodeId a = truth(left), b = truth(budget - left);
  return binary(op, a, b);
}

}  // namespace quire::testing

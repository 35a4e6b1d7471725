// Random integers, indices and reads of buffers. Tests only.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "tests/support/random_generator.h"

namespace quire::testing {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

constexpr std::array<std::int64_t, 10> kExtremeInts = {kMin,
                                                       kMax,
                                                       (std::int64_t{1} << 53) + 1,
                                                       -(std::int64_t{1} << 53) - 1,
                                                       std::int64_t{1} << 31,
                                                       -(std::int64_t{1} << 31) - 1,
                                                       std::int64_t{1} << 32,
                                                       std::int64_t{1} << 62,
                                                       (std::int64_t{1} << 24) + 1,
                                                       1000003};

IntRange arithmetic_range(Op op, IntRange a, IntRange b) {
  switch (op) {
    case Op::kAdd:
      return add(a, b);
    case Op::kSub:
      return b.low == kMin ? kAnyInt : add(a, negate(b));
    case Op::kMul:
      return multiply(a, b);
    case Op::kFloorDiv:
      return floor_divide(a, b);
    case Op::kMod:
      return remainder(b);
    case Op::kMin:
      return minimum(a, b);
    default:
      return maximum(a, b);
  }
}

}  // namespace

RandomGenerator::Int RandomGenerator::leaf_int() {
  const Extents& e = options_.extents;
  const std::int64_t place = below(options_.extremes ? 13 : 12);
  if (place < 1 && allowed(Op::kBatch)) return {make_leaf(graph_, Op::kBatch), {0, e.b - 1}};
  if (place < 3 && allowed(Op::kHead)) return {make_leaf(graph_, Op::kHead), {0, e.h - 1}};
  if (place < 6 && allowed(Op::kQIdx)) return {make_leaf(graph_, Op::kQIdx), {0, e.q - 1}};
  if (place < 9 && allowed(Op::kKvIdx)) return {make_leaf(graph_, Op::kKvIdx), {0, e.kv - 1}};
  if (place < 12) return int_constant(chance(70) ? between(-8, 9) : between(-e.kv, e.kv));
  return int_constant(one_of<std::int64_t>(kExtremeInts));
}

// a * q_idx + b * kv_idx + c, mostly with factors 1 and -1.
RandomGenerator::Int RandomGenerator::affine() {
  const Extents& e = options_.extents;
  const auto term = [&](Op leaf, std::int64_t size) -> Int {
    const std::int64_t factor = chance(75) ? (chance(50) ? 1 : -1) : between(-4, 4);
    const Int x = {make_leaf(graph_, leaf), {0, size - 1}};
    if (factor == 1) return x;
    if (factor == -1) return {unary(Op::kNeg, x.id), negate(x.range)};
    const Int f = int_constant(factor);
    return {binary(Op::kMul, x.id, f.id), multiply(x.range, f.range)};
  };
  const Int q = term(Op::kQIdx, e.q), kv = term(Op::kKvIdx, e.kv);
  const Int sum = {binary(Op::kAdd, q.id, kv.id), add(q.range, kv.range)};
  if (chance(50)) return sum;
  const Int c = int_constant(between(-e.kv, e.kv));
  return {binary(Op::kAdd, sum.id, c.id), add(sum.range, c.range)};
}

RandomGenerator::Int RandomGenerator::integer(int budget) {
  static constexpr std::array kChoices = std::to_array<Choice>({
      {Op::kAdd, 7},    {Op::kSub, 8},  {Op::kMul, 4},    {Op::kFloorDiv, 4}, {Op::kMod, 4},
      {Op::kMin, 1},    {Op::kMax, 1},  {Op::kClamp, 2},  {Op::kWhere, 2},    {Op::kNeg, 1},
      {Op::kAbs, 2},    {Op::kSign, 1}, {Op::kLoad, 10},  {Op::kSum, 1},      {Op::kDot, 1},
      {Op::kToInt, 3},  {Op::kPow, 1},  {Op::kBitAnd, 2}, {Op::kBitOr, 1},    {Op::kBitXor, 1},
      {Op::kBitNot, 1}, {Op::kShl, 1},  {Op::kShr, 2},
  });
  if (budget <= 0) return leaf_int();
  if (!ints_.empty() && chance(12)) return one_of<Int>(ints_);
  const bool has_positions =
      allowed(Op::kQIdx) && allowed(Op::kKvIdx) && allowed(Op::kMul) && allowed(Op::kNeg);
  if (budget >= 2 && has_positions && allowed(Op::kAdd) && chance(10)) return affine();
  for (int attempt = 0; attempt < 40; ++attempt) {
    const Op op = choose(kChoices);
    if (!allowed(op)) continue;
    const Int value = int_operation(op, budget - 1);
    if (value.id == formula::kNoNode) continue;
    ints_.push_back(value);
    return value;
  }
  return leaf_int();
}

RandomGenerator::Int RandomGenerator::int_operation(Op op, int budget) {
  switch (op) {
    case Op::kLoad:
    case Op::kSum:
    case Op::kDot:
      return read(op, ValueType::kInt, budget);
    case Op::kPow:
      return int_power(budget);
    case Op::kNeg:
    case Op::kAbs:
    case Op::kSign:
      return int_of_one(op, budget);
    case Op::kBitNot:
      return options_.bits ? int_of_one(op, budget) : kNoInt;
    case Op::kClamp:
    case Op::kWhere:
      return int_of_three(op, budget);
    case Op::kToInt:
      if (chance(50) || !options_.floats || !options_.discontinuous)
        return {as(truth(budget), ValueType::kInt), {0, 1}};
      return {as(real(budget), ValueType::kInt), kAnyInt};
    default:
      return op >= Op::kShl && op <= Op::kBitXor ? bit_operation(op, budget)
                                                 : int_arithmetic(op, budget);
  }
}

RandomGenerator::Int RandomGenerator::int_arithmetic(Op op, int budget) {
  const int left = static_cast<int>(below(budget + 1));
  const Int a = integer(left);
  const Int b =
      op == Op::kFloorDiv || op == Op::kMod ? divisor(budget - left) : integer(budget - left);
  return {binary(op, a.id, b.id), arithmetic_range(op, a.range, b.range)};
}

RandomGenerator::Int RandomGenerator::int_power(int budget) {
  const Int a = integer(budget / 2);
  if (chance(50)) {
    const Int b = integer(budget / 2);
    if (graph_[b.id].op == Op::kIntConst)
      return kNoInt;  // a float if negative, many products if large
    return {binary(Op::kPow, a.id, b.id), kAnyInt};
  }
  const std::int64_t n = between(0, 4);
  IntRange range = {1, 1};
  for (std::int64_t i = 0; i < n; ++i) range = multiply(range, a.range);
  return {binary(Op::kPow, a.id, int_constant(n).id), range};
}

RandomGenerator::Int RandomGenerator::int_of_one(Op op, int budget) {
  const Int a = integer(budget);
  const IntRange range = op == Op::kNeg    ? negate(a.range)
                         : op == Op::kAbs  ? absolute(a.range)
                         : op == Op::kSign ? IntRange{-1, 1}
                                           : IntRange{~a.range.high, ~a.range.low};
  return {unary(op, a.id), range};
}

RandomGenerator::Int RandomGenerator::int_of_three(Op op, int budget) {
  if (op == Op::kClamp) {
    const Int x = integer(budget), low = int_constant(between(-9, 9));
    const Int high = int_constant(low.range.low + below(300));
    return {make_clamp(graph_, x.id, low.id, high.id), {low.range.low, high.range.high}};
  }
  const NodeId condition = truth(budget / 2);
  const Int a = integer(budget / 4), b = integer(budget / 4);
  return {make_where(graph_, condition, a.id, b.id), either(a.range, b.range)};
}

RandomGenerator::Int RandomGenerator::bit_operation(Op op, int budget) {
  if (!options_.bits) return kNoInt;
  const Int a = integer(budget / 2);
  if (op == Op::kShl || op == Op::kShr) {
    if (chance(25)) return {binary(op, a.id, integer(budget / 2).id), kAnyInt};
    const std::int64_t n = between(0, op == Op::kShl ? 5 : 9), power = std::int64_t{1} << n;
    return {binary(op, a.id, int_constant(n).id),
            op == Op::kShl ? multiply(a.range, {power, power})
                           : IntRange{a.range.low >> n, a.range.high >> n}};
  }
  const Int b = chance(50) ? int_constant((std::int64_t{1} << between(0, 9)) - below(2))
                           : integer(budget / 2);
  return {binary(op, a.id, b.id),
          op == Op::kBitAnd ? bit_and(a.range, b.range) : bit_or(a.range, b.range)};
}

// An integer that is not 0 (unless faults are wanted).
RandomGenerator::Int RandomGenerator::divisor(int budget) {
  if (options_.faults && chance(25)) return integer(budget);
  if (chance(60)) {
    const std::int64_t value = chance(80) ? between(1, 9) : between(10, 200);
    return int_constant(chance(20) ? -value : value);
  }
  const Int x = integer(budget);
  if (x.range.low > 0 || x.range.high < 0) return x;
  const Int one = int_constant(1);
  if (options_.bits && chance(30)) return {binary(Op::kBitOr, x.id, one.id), kAnyInt};
  return {binary(Op::kMax, x.id, one.id), maximum(x.range, one.range)};
}

// An integer within -n..n-1 (unless faults are wanted); n > 0.
RandomGenerator::NodeId RandomGenerator::index(std::int64_t n, int budget) {
  if (options_.faults && chance(15)) return integer(budget).id;
  if (budget <= 0 || chance(35)) {  // the argument this axis is for, if there is one
    const Extents& e = options_.extents;
    const std::array<std::pair<Op, std::int64_t>, 4> leaves = {
        {{Op::kBatch, e.b}, {Op::kHead, e.h}, {Op::kQIdx, e.q}, {Op::kKvIdx, e.kv}}};
    const std::size_t first = static_cast<std::size_t>(below(4));
    for (std::size_t i = 0; i < 4; ++i) {
      const auto& [op, size] = leaves[(first + i) % 4];
      if (allowed(op) && (size == n || (size < n && chance(50)))) return make_leaf(graph_, op);
    }
    return int_constant(chance(70) ? below(n) : -1 - below(n)).id;
  }
  const Int x = integer(budget);
  if (inside(x.range, -n, n - 1)) return x.id;
  if (inside(x.range, -2 * n, 3 * n) && chance(30)) {  // a table around a middle
    const NodeId shifted = binary(Op::kAdd, x.id, int_constant(n / 2).id);
    return make_clamp(graph_, shifted, int_constant(chance(50) ? 0 : -n).id,
                      int_constant(n - 1).id);
  }
  if (chance(50)) return make_clamp(graph_, x.id, int_constant(0).id, int_constant(n - 1).id);
  const NodeId wrapped = binary(Op::kMod, x.id, int_constant(n).id);
  return chance(20) ? binary(Op::kSub, wrapped, int_constant(n).id) : wrapped;
}

// ---- Buffers.

std::vector<RandomGenerator::NodeId> RandomGenerator::indices(const Buffer& buffer,
                                                              std::size_t count, int budget) {
  std::vector<NodeId> ids;
  const int share = count == 0 ? 0 : budget / static_cast<int>(count);
  for (std::size_t axis = 0; axis < count; ++axis) ids.push_back(index(axes(buffer)[axis], share));
  return ids;
}

bool RandomGenerator::can_index(const Buffer& buffer, std::size_t count) {
  const auto used = axes(buffer).first(count);
  return std::find(used.begin(), used.end(), 0) == used.end();
}

RandomGenerator::Int RandomGenerator::read(Op op, ValueType type, int budget) {
  if (buffers_.empty() || (op != Op::kLoad && !options_.reductions)) return kNoInt;
  const std::size_t place =
      static_cast<std::size_t>(below(static_cast<std::int64_t>(buffers_.size())));
  const Buffer& buffer = buffers_[place];
  const std::size_t rank = axes(buffer).size();
  if (op == Op::kDot) return {dot(buffer, type, budget), kAnyInt};
  if (type_of(buffer) != type) return kNoInt;
  if (op == Op::kLoad) {
    if (!can_index(buffer, rank)) return kNoInt;
    return {make_load(graph_, buffer, indices(buffer, rank, budget)), ranges_[place]};
  }
  if (rank == 0) return kNoInt;
  const std::size_t used = static_cast<std::size_t>(below(static_cast<std::int64_t>(rank)));
  if (!can_index(buffer, used)) return kNoInt;
  return {make_sum(graph_, buffer, indices(buffer, used, budget)), kAnyInt};
}

RandomGenerator::NodeId RandomGenerator::dot(const Buffer& a, ValueType type, int budget) {
  using Partner = std::pair<const Buffer*, std::size_t>;  // with how many axes left
  std::vector<Partner> partners;
  for (const Buffer& b : buffers_) {
    if (formula::numeric_type(type_of(a), type_of(b)) != type) continue;
    for (std::size_t left = 1; left <= std::min(axes(a).size(), axes(b).size()); ++left) {
      const auto tail_a = axes(a).last(left), tail_b = axes(b).last(left);
      if (std::equal(tail_a.begin(), tail_a.end(), tail_b.begin()) &&
          can_index(a, axes(a).size() - left) && can_index(b, axes(b).size() - left))
        partners.emplace_back(&b, left);
    }
  }
  if (partners.empty()) return formula::kNoNode;
  const auto [b, left] = one_of<Partner>(partners);
  const auto first = indices(a, axes(a).size() - left, budget / 2);
  const auto second = indices(*b, axes(*b).size() - left, budget / 2);
  return make_dot(graph_, a, first, *b, second);
}

}  // namespace quire::testing

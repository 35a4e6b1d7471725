// Interval rules for comparisons, three-valued logic, casts and where. Formula layer.
#include <cmath>
#include <limits>

#include "formula/bound/float_grid.h"
#include "formula/bound/interval_rules.h"

namespace quire::formula {
namespace {

// Compares two ordered ranges. `less` and so on: whether it holds for some pair of values.
template <class T>
Interval compare_ranges(Op op, T a_lo, T a_hi, T b_lo, T b_hi) {
  switch (op) {
    case Op::kLt:
      return Interval::bools(a_hi >= b_lo, a_lo < b_hi);
    case Op::kLe:
      return Interval::bools(a_hi > b_lo, a_lo <= b_hi);
    case Op::kGt:
      return Interval::bools(a_lo <= b_hi, a_hi > b_lo);
    case Op::kGe:
      return Interval::bools(a_lo < b_hi, a_hi >= b_lo);
    default:
      break;
  }
  const bool can_be_equal = a_lo <= b_hi && b_lo <= a_hi;
  const bool can_differ = !(a_lo == a_hi && b_lo == b_hi && a_lo == b_lo);
  return op == Op::kEq ? Interval::bools(can_differ, can_be_equal)
                       : Interval::bools(can_be_equal, can_differ);
}

Interval to_int(const Interval& a) {
  if (a.type == ValueType::kBool) return Interval::ints(!a.can_be_false, a.can_be_true);
  const auto saturate = [](double x) {
    if (x >= 0x1p63) return std::numeric_limits<std::int64_t>::max();
    if (x <= -0x1p63) return std::numeric_limits<std::int64_t>::min();
    return static_cast<std::int64_t>(x);
  };
  const Interval r = Interval::ints(saturate(a.float_lo), saturate(a.float_hi));
  return a.maybe_nan ? hull(r, Interval::ints(0, 0)) : r;
}

Interval to_float(const Interval& a, Precision precision) {
  if (a.type == ValueType::kBool) return Interval::floats(!a.can_be_false, a.can_be_true);
  return Interval::floats(round_to(a.int_lo, precision), round_to(a.int_hi, precision));
}

Interval to_bool(const Interval& a) {
  if (a.type == ValueType::kInt)
    return Interval::bools(a.contains_int(0), a.int_lo != 0 || a.int_hi != 0);
  return Interval::bools(a.contains_float(0), a.maybe_nan || a.float_lo != 0 || a.float_hi != 0);
}

Interval pick(bool use_max, const Interval& a, const Interval& b) {
  const auto choose = [&](auto x, auto y) { return use_max ? std::max(x, y) : std::min(x, y); };
  if (a.type == ValueType::kInt)
    return Interval::ints(choose(a.int_lo, b.int_lo), choose(a.int_hi, b.int_hi));
  return Interval::floats(choose(a.float_lo, b.float_lo), choose(a.float_hi, b.float_hi),
                          a.maybe_nan || b.maybe_nan);
}

}  // namespace

Interval bound_compare(Op op, const Interval& a, const Interval& b, bool same) {
  const bool maybe_nan = a.maybe_nan || b.maybe_nan;  // never set for ints
  Interval r;
  if (same) {
    const bool holds = op == Op::kEq || op == Op::kLe || op == Op::kGe;
    r = Interval::bools(!holds, holds);
  } else if (a.type == ValueType::kInt) {
    r = compare_ranges(op, a.int_lo, a.int_hi, b.int_lo, b.int_hi);
  } else {
    r = compare_ranges(op, a.float_lo, a.float_hi, b.float_lo, b.float_hi);
  }
  if (maybe_nan) (op == Op::kNe ? r.can_be_true : r.can_be_false) = true;
  return r;
}

Interval bound_logic(Op op, const Interval& a, const Interval& b) {
  switch (op) {
    case Op::kAnd:
      return Interval::bools(a.can_be_false || b.can_be_false, a.can_be_true && b.can_be_true);
    case Op::kOr:
      return Interval::bools(a.can_be_false && b.can_be_false, a.can_be_true || b.can_be_true);
    default:
      return Interval::bools(
          (a.can_be_false && b.can_be_false) || (a.can_be_true && b.can_be_true),
          (a.can_be_false && b.can_be_true) || (a.can_be_true && b.can_be_false));
  }
}

Interval bound_not(const Interval& a) { return Interval::bools(a.can_be_true, a.can_be_false); }

Interval bound_cast(const Interval& a, ValueType to, Precision precision) {
  if (a.type == to) return a;
  switch (to) {
    case ValueType::kInt:
      return to_int(a);
    case ValueType::kFloat:
      return to_float(a, precision);
    case ValueType::kBool:
      break;
  }
  return to_bool(a);
}

Interval bound_where(const Interval& condition, const Interval& a, const Interval& b) {
  if (!condition.can_be_false) return a;
  if (!condition.can_be_true) return b;
  return hull(a, b);
}

Interval bound_clamp(const Interval& x, const Interval& low, const Interval& high) {
  return pick(false, pick(true, x, low), high);
}

}  // namespace quire::formula

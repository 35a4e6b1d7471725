// Interval: what is known about one value of a formula: the range of an int, the range of a float
// and whether it may be NaN, or which values a bool can take. No arithmetic; the rules are in
// interval_rules.h. Formula layer.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "quire/op.h"

namespace quire::formula {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

/// Never empty (int_lo <= int_hi, float_lo <= float_hi; the float ends are never NaN). A float
/// that can only be NaN is stored as "any float". Zeros of either sign are the same number
/// here.
struct Interval {
  ValueType type = ValueType::kInt;
  bool maybe_nan = false;     // floats
  bool can_be_false = false;  // bools
  bool can_be_true = false;   // bools
  union {
    std::int64_t int_lo = std::numeric_limits<std::int64_t>::min();
    double float_lo;
  };
  union {
    std::int64_t int_hi = std::numeric_limits<std::int64_t>::max();
    double float_hi;
  };

  static Interval ints(std::int64_t lo, std::int64_t hi) {
    Interval r;
    r.int_lo = lo;
    r.int_hi = hi;
    return r;
  }
  static Interval floats(double lo, double hi, bool maybe_nan = false) {
    Interval r;
    r.type = ValueType::kFloat;
    r.maybe_nan = maybe_nan;
    r.float_lo = lo;
    r.float_hi = hi;
    return r;
  }
  static Interval bools(bool can_be_false, bool can_be_true) {
    Interval r;
    r.type = ValueType::kBool;
    r.can_be_false = can_be_false;
    r.can_be_true = can_be_true;
    return r;
  }
  static Interval any_int() { return Interval(); }
  static Interval any_float() { return floats(-kInf, kInf, true); }
  static Interval any_bool() { return bools(true, true); }

  bool is_any_int() const {
    return int_lo == std::numeric_limits<std::int64_t>::min() &&
           int_hi == std::numeric_limits<std::int64_t>::max();
  }
  bool is_single_int() const { return int_lo == int_hi; }
  bool contains_int(std::int64_t x) const { return int_lo <= x && x <= int_hi; }
  bool contains_float(double x) const {
    return x != x ? maybe_nan : float_lo <= x && x <= float_hi;
  }
  bool contains_bool(bool x) const { return x ? can_be_true : can_be_false; }
};
static_assert(sizeof(Interval) == 24);

/// The smallest interval that holds both; the types must be equal.
inline Interval hull(const Interval& a, const Interval& b) {
  switch (a.type) {
    case ValueType::kInt:
      return Interval::ints(std::min(a.int_lo, b.int_lo), std::max(a.int_hi, b.int_hi));
    case ValueType::kFloat:
      return Interval::floats(std::min(a.float_lo, b.float_lo), std::max(a.float_hi, b.float_hi),
                              a.maybe_nan || b.maybe_nan);
    case ValueType::kBool:
      break;
  }
  return Interval::bools(a.can_be_false || b.can_be_false, a.can_be_true || b.can_be_true);
}

/// Whether the index needs no check for an axis of size n: it lies in -n..n-1.
inline bool index_in_bounds(const Interval& index, std::int64_t n) {
  return index.int_lo >= -n && index.int_hi < n;
}

/// Whether the int fits into 32 bits.
inline bool fits_int32(const Interval& a) {
  return a.int_lo >= std::numeric_limits<std::int32_t>::min() &&
         a.int_hi <= std::numeric_limits<std::int32_t>::max();
}

}  // namespace quire::formula

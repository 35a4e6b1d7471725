// Interval rules for float arithmetic and for operations that do not round (floor, abs, min, max,
// remainder and the like). Formula layer.
#include <array>
#include <cmath>

#include "formula/bound/float_grid.h"
#include "formula/bound/interval_rules.h"

namespace quire::formula {
namespace {

bool has_inf(const Interval& a) { return a.float_lo == -kInf || a.float_hi == kInf; }
bool has_zero(const Interval& a) { return a.float_lo <= 0 && a.float_hi >= 0; }
bool is_single(const Interval& a) { return a.float_lo == a.float_hi; }

Interval add(const Interval& a, const Interval& b, Precision precision) {
  double lo = round_to(a.float_lo + b.float_lo, precision);
  double hi = round_to(a.float_hi + b.float_hi, precision);
  if (std::isnan(lo)) lo = -kInf;  // inf - inf: this end is unknown
  if (std::isnan(hi)) hi = kInf;
  const bool opposite =
      (a.float_hi == kInf && b.float_lo == -kInf) || (a.float_lo == -kInf && b.float_hi == kInf);
  return Interval::floats(lo, hi, a.maybe_nan || b.maybe_nan || opposite);
}

Interval negate(const Interval& a) {
  return Interval::floats(-a.float_hi, -a.float_lo, a.maybe_nan);
}

Interval magnitude(const Interval& a) {
  if (a.float_lo >= 0) return a;
  if (a.float_hi <= 0) return negate(a);
  return Interval::floats(0, std::max(-a.float_lo, a.float_hi), a.maybe_nan);
}

// The hull of f at the four corners of a rectangle in which f is monotone in each argument. NaN
// corners are ignored: values near them lie between the others.
template <class F>
Interval corners(const Interval& a, const Interval& b, bool maybe_nan, F f) {
  double lo = kInf, hi = -kInf;
  for (const double x : {a.float_lo, a.float_hi}) {
    for (const double y : {b.float_lo, b.float_hi}) {
      const double z = f(x, y);
      if (std::isnan(z)) continue;
      lo = std::min(lo, z);
      hi = std::max(hi, z);
    }
  }
  return lo <= hi ? Interval::floats(lo, hi, maybe_nan) : Interval::any_float();
}

Interval mul(const Interval& a, const Interval& b, bool same, Precision precision) {
  if (same) {
    const Interval m = magnitude(a);
    return Interval::floats(round_to(m.float_lo * m.float_lo, precision),
                            round_to(m.float_hi * m.float_hi, precision), a.maybe_nan);
  }
  const bool zero_times_inf = (has_zero(a) && has_inf(b)) || (has_zero(b) && has_inf(a));
  const bool maybe_nan = a.maybe_nan || b.maybe_nan || zero_times_inf;
  return corners(a, b, maybe_nan, [&](double x, double y) {
    // 0 * inf stands for 0 times the large numbers next to inf.
    return x == 0 || y == 0 ? 0 : round_to(x * y, precision);
  });
}

Interval div(const Interval& a, const Interval& b, Precision precision) {
  const bool maybe_nan =
      a.maybe_nan || b.maybe_nan || (has_zero(a) && has_zero(b)) || (has_inf(a) && has_inf(b));
  // A divisor of 0 may have either sign.
  if (has_zero(b)) return Interval::floats(-kInf, kInf, maybe_nan);
  return corners(a, b, maybe_nan, [&](double x, double y) { return round_to(x / y, precision); });
}

// Python's float division with remainder, each step rounded to the precision.
struct DivMod {
  double quotient, remainder;

  DivMod(double x, double y, Precision precision) {
    remainder = std::fmod(x, y);
    double div = round_to(round_to(x - remainder, precision) / y, precision);
    if (remainder != 0 && (remainder < 0) != (y < 0)) {
      remainder = round_to(remainder + y, precision);
      div = round_to(div - 1, precision);
    }
    quotient = std::floor(div);
    if (div - quotient > 0.5) quotient = round_to(quotient + 1, precision);
  }
};

// Below this the quotient is exactly the floor of the exact one, which is monotone in each
// argument; above, it is within a few ulps.
double exact_quotient(Precision precision) {
  return precision == Precision::kF32 ? 0x1p20 : 0x1p49;
}

Interval floor_div(const Interval& a, const Interval& b, Precision precision) {
  if (has_zero(b) || has_inf(a)) return Interval::any_float();
  Interval r = corners(a, b, a.maybe_nan || b.maybe_nan,
                       [&](double x, double y) { return DivMod(x, y, precision).quotient; });
  const double limit = exact_quotient(precision);
  if (std::abs(r.float_lo) >= limit) r.float_lo = step(r.float_lo, -8, precision);
  if (std::abs(r.float_hi) >= limit) r.float_hi = step(r.float_hi, 8, precision);
  return r;
}

Interval mod(const Interval& a, const Interval& b, Precision precision) {
  if (has_zero(b) || has_inf(a)) return Interval::any_float();
  const bool maybe_nan = a.maybe_nan || b.maybe_nan;
  const bool positive = b.float_lo > 0;
  if (positive ? a.float_lo >= 0 && a.float_hi < b.float_lo
               : a.float_hi <= 0 && a.float_lo > b.float_hi)
    return Interval::floats(a.float_lo, a.float_hi, maybe_nan);
  if (is_single(b)) {
    const DivMod lo(a.float_lo, b.float_lo, precision), hi(a.float_hi, b.float_lo, precision);
    if (lo.quotient == hi.quotient && std::abs(lo.quotient) < exact_quotient(precision))
      return Interval::floats(lo.remainder, hi.remainder, maybe_nan);
  }
  // The divisor itself is a possible result: -1e-20 % 3 rounds to 3.
  return positive ? Interval::floats(0, b.float_hi, maybe_nan)
                  : Interval::floats(b.float_lo, 0, maybe_nan);
}

// Widened by 8 ulps; results near the largest float may already be inf, those below the smallest
// normal one may be 0.
Interval widened_power(double lo, double hi, bool maybe_nan, Precision precision) {
  const double half = largest(precision) / 2, tiny = smallest_normal(precision);
  lo = lo > half ? half : lo < -half ? -kInf : step(lo, -8, precision);
  hi = hi < -half ? -half : hi > half ? kInf : step(hi, 8, precision);
  if (lo > 0 && lo < tiny) lo = 0;
  if (hi < 0 && hi > -tiny) hi = 0;
  return Interval::floats(lo, hi, maybe_nan);
}

Interval pow(const Interval& a, const Interval& b, Precision precision) {
  const auto power = [](double x, double y) { return std::pow(x, y); };
  const bool maybe_nan = a.maybe_nan || b.maybe_nan;
  Interval r;
  const bool integer = is_single(b) && std::nearbyint(b.float_lo) == b.float_lo;  // inf included
  const bool odd = integer && std::isfinite(b.float_lo) && std::fmod(b.float_lo, 2) != 0;
  if (a.float_lo >= 0 || odd) {
    r = corners(a, b, maybe_nan, power);
  } else if (integer) {
    r = corners(magnitude(a), b, maybe_nan, power);
  } else {
    return Interval::any_float();
  }
  // A zero of either sign to a negative power is an infinity of that sign.
  if (has_zero(a) && b.float_lo < 0) r = Interval::floats(-kInf, kInf, maybe_nan);
  // 1 ** NaN and NaN ** 0 are 1: already included, since 1 ** y and x ** 0 are.
  return widened_power(r.float_lo, r.float_hi, maybe_nan, precision);
}

double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

}  // namespace

Interval bound_float_unary(Op op, const Interval& a, Precision precision) {
  const auto monotone = [&](auto f) {
    return Interval::floats(f(a.float_lo), f(a.float_hi), a.maybe_nan);
  };
  switch (op) {
    case Op::kNeg:
      return negate(a);
    case Op::kAbs:
      return magnitude(a);
    case Op::kSign:
      return monotone([](double x) { return sign_of(x); });
    case Op::kFloor:
      return monotone([](double x) { return std::floor(x); });
    case Op::kCeil:
      return monotone([](double x) { return std::ceil(x); });
    case Op::kRound:
      return monotone([](double x) { return std::nearbyint(x); });
    case Op::kTrunc:
      return monotone([](double x) { return std::trunc(x); });
    case Op::kRelu:
      return monotone([](double x) { return std::max(x, 0.0); });
    default:
      return bound_function(op, a, precision);
  }
}

Interval bound_float_binary(Op op, const Interval& a, const Interval& b, bool same,
                            Precision precision) {
  const bool maybe_nan = a.maybe_nan || b.maybe_nan;
  switch (op) {
    case Op::kAdd:
      return add(a, b, precision);
    case Op::kSub:
      if (same) return Interval::floats(0, 0, maybe_nan || has_inf(a));
      return add(a, negate(b), precision);
    case Op::kMul:
      return mul(a, b, same, precision);
    case Op::kDiv:
      return div(a, b, precision);
    case Op::kFloorDiv:
      return floor_div(a, b, precision);
    case Op::kMod:
      return mod(a, b, precision);
    case Op::kPow:
      return pow(a, b, precision);
    case Op::kMin:
      return Interval::floats(std::min(a.float_lo, b.float_lo), std::min(a.float_hi, b.float_hi),
                              maybe_nan);
    case Op::kMax:
      return Interval::floats(std::max(a.float_lo, b.float_lo), std::max(a.float_hi, b.float_hi),
                              maybe_nan);
    default:
      return Interval::any_float();
  }
}

}  // namespace quire::formula

// Bounds on sums and dot products whose terms share one known interval. Formula layer.
#include <cmath>

#include "formula/bound/bound_buffer.h"
#include "formula/bound/float_grid.h"
#include "formula/bound/interval_rules.h"

namespace quire::formula {
namespace {

Interval int_sum(const Interval& element, std::int64_t count) {
  return bound_int_binary(Op::kMul, element, Interval::ints(count, count), false);
}

// A chain of sums of terms up to x > 0 that is rounded `roundings` times stays below count * x * (1
// + u)^roundings; for x < 0 it stays below count * x * (1 - u)^roundings. Both powers are bounded
// by exponentials. The lower end is symmetric.
Interval float_sum(const Interval& term, std::int64_t count, std::int64_t roundings,
                   Precision precision) {
  const double u = unit_roundoff(precision), n = static_cast<double>(count);
  const double exponent = u * (1 + 2 * u) * static_cast<double>(roundings);
  const double grow = std::exp(exponent), shrink = std::exp(-exponent);
  double lo = n * term.float_lo * (term.float_lo < 0 ? grow : shrink);
  double hi = n * term.float_hi * (term.float_hi > 0 ? grow : shrink);
  // Allows for the few roundings in the formulas above.
  if (lo != 0) lo = step(lo, -8, precision);
  if (hi != 0) hi = step(hi, 8, precision);
  const bool opposite =
      (hi == kInf && term.float_lo == -kInf) || (lo == -kInf && term.float_hi == kInf);
  return Interval::floats(lo, hi, term.maybe_nan || opposite);
}

}  // namespace

Interval bound_sum(const Interval& element, std::int64_t count, Precision precision) {
  if (element.type == ValueType::kInt) return int_sum(element, count);
  if (count == 0) return Interval::floats(0, 0);
  if (count == 1) return element;
  return float_sum(element, count, count - 1, precision);  // 0 + x is exact
}

Interval bound_dot(const Interval& a, const Interval& b, std::int64_t count, bool same,
                   Precision precision) {
  if (a.type == ValueType::kInt && b.type == ValueType::kInt)
    return int_sum(bound_int_binary(Op::kMul, a, b, same), count);
  if (count == 0) return Interval::floats(0, 0);
  const Interval x = bound_cast(a, ValueType::kFloat, precision);
  const Interval y = bound_cast(b, ValueType::kFloat, precision);
  // The product is not rounded separately. In double it is exact for f32 and nearly so for f64.
  const Interval product = bound_float_binary(Op::kMul, x, y, same, Precision::kF64);
  Interval term = product;
  if (precision == Precision::kF64) {
    term.float_lo = step(product.float_lo, -1, precision);
    term.float_hi = step(product.float_hi, 1, precision);
  }
  Interval r = float_sum(term, count, count, precision);
  // A subnormal result may be off by up to half the smallest subnormal.
  const double tiny = step(0, 1, precision) * static_cast<double>(count);
  r.float_lo = step(r.float_lo - tiny, -1, precision);
  r.float_hi = step(r.float_hi + tiny, 1, precision);
  if (product.float_lo >= 0) r.float_lo = std::max(r.float_lo, 0.0);  // rounding keeps signs
  if (product.float_hi <= 0) r.float_hi = std::min(r.float_hi, 0.0);
  return r;
}

}  // namespace quire::formula

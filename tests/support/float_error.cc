// Error rules per operation. Each is: how far the exact result moves when the operands move within
// their bounds, plus what the operation itself rounds. Test support.
#include "tests/support/float_error.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "reference/arithmetic.h"

namespace quire::reference {
namespace {

constexpr double kMaxF32 = std::numeric_limits<float>::max();
// The bounds are computed in f64 and rounded, and the f64 value has rounding errors of its own,
// 2^-29 of f32's. Both disappear in this.
constexpr double kSlack = 1 + 0x1p-20;

bool is_f32(double y) { return static_cast<double>(static_cast<float>(y)) == y; }

// At least half a unit in the last place of an f32 of this magnitude.
double half_ulp(double magnitude) { return magnitude * 0x1p-24 + 0x1p-150; }

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

Bound within(double y, double error) {
  error *= kSlack;
  // Also false for a NaN. Beyond f32 the one evaluation overflows and the other does not.
  if (!(std::abs(y) + error < kMaxF32)) return Bound::unknown();
  return {error, false};
}

// A correctly rounded operation whose exact result moves by at most `spread`. If it does not move
// and y is an f32 number, then the exact result is within half an f64 ulp of y, and f32 rounds it
// to y, too.
Bound rounded(double y, double spread) {
  if (spread == 0 && is_f32(y)) return Bound::exact();
  return within(y, spread + half_ulp(std::abs(y) + spread));
}

// A function good to some ulps whose exact result moves by at most `spread`.
Bound approximated(Op op, double y, double spread, const ErrorModel& model) {
  const double ulp = 2 * half_ulp(std::abs(y) + spread);
  return within(y, spread + model.ulps[static_cast<std::size_t>(op)] * ulp + model.underflow);
}

// Results that are not finite, or come of operands that are not: certain if all corners of the box
// agree.
bool agree(double y, std::initializer_list<double> corners) {
  return std::all_of(corners.begin(), corners.end(),
                     [y](double corner) { return same(corner, y); });
}

double farthest(double y, std::initializer_list<double> corners) {
  double spread = 0;
  for (const double corner : corners) spread = std::max(spread, std::abs(corner - y));
  return spread;
}

Bound sine_error(Op op, Approx x, double y, const ErrorModel& model) {
  if (std::isinf(x.value)) return Bound::exact();  // NaN
  if (std::abs(x.value) + x.error > model.sin_cos_range) return Bound::unknown();
  return approximated(op, y, x.error, model);
}

// silu and the gelus fall before they rise; their largest slopes are 1.10, 1.13 and 1.13.
Bound gated_error(Op op, Approx x, double y, const ErrorModel& model) {
  if (std::isinf(x.value)) return Bound::unknown();  // x * gate gives NaN, other forms the limit
  return approximated(op, y, 1.2 * x.error, model);
}

Bound monotone(Op op, Approx x, double y, const ErrorModel& model) {
  const double low = float_unary(op, x.low()), high = float_unary(op, x.high());
  if (!std::isfinite(low) || !std::isfinite(y) || !std::isfinite(high))
    return agree(y, {low, high}) ? Bound::exact() : Bound::unknown();
  const double spread = farthest(y, {low, high});
  return op == Op::kSqrt ? rounded(y, spread) : approximated(op, y, spread, model);
}

Bound choice(Op op, Approx a, Approx b) {
  const bool a_below = a.high() < b.low(), b_below = b.high() < a.low();
  if (a_below || b_below) return {(op == Op::kMin) == a_below ? a.error : b.error, false};
  return {std::max(a.error, b.error), false};
}

double product_spread(Approx a, Approx b) {
  return std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error;
}

bool touches_zero(Approx x) { return x.low() <= 0 && x.high() >= 0; }

// b does not touch 0.
double quotient_spread(Approx a, Approx b) {
  const double size = std::abs(b.value);
  return (std::abs(a.value) * b.error + size * a.error) / (size * (size - b.error));
}

// Whether floor(a / b) is the same for all operands in their bounds; not for huge quotients.
bool is_floor_certain(Approx a, Approx b) {
  if (a.is_exact() && b.is_exact()) return true;
  const double quotient = a.value / b.value;
  const double spread = quotient_spread(a, b) * kSlack + std::abs(quotient) * 0x1p-50;
  return std::abs(quotient) < 0x1p50 &&
         std::floor(quotient - spread) == std::floor(quotient + spread);
}

Bound floor_div_error(Approx a, Approx b, double y) {
  const double quotient = a.value / b.value, spread = quotient_spread(a, b);
  // Below 2^20 the snapping of Python's algorithm finds the integer in f32, too. Far above it the
  // steps are small against an ulp: only a size is promised.
  if (std::abs(quotient) + spread >= 0x1p20)
    return within(y, spread + 1 + 8 * half_ulp(std::abs(quotient) + spread + 1));
  return is_floor_certain(a, b) ? Bound::exact() : Bound::unknown();
}

// a % b = a - n * b with n = floor(a / b); fmod is exact, the step to the divisor's sign rounds.
Bound modulo_error(Approx a, Approx b, double y) {
  if (a.is_exact() && b.is_exact()) return rounded(y, 0);
  if (!is_floor_certain(a, b)) return Bound::unknown();
  return rounded(y, a.error + std::abs(std::floor(a.value / b.value)) * b.error);
}

Bound divided(Op op, Approx a, Approx b, double y) {
  if (touches_zero(b)) {
    // The sign of the zero decides between inf and -inf; only NaN is sure.
    const bool zeros = b.is_exact() && a.is_exact() && a.value == 0;
    return zeros || (op == Op::kMod && b.is_exact()) ? Bound::exact() : Bound::unknown();
  }
  if (op == Op::kFloorDiv) return floor_div_error(a, b, y);
  if (op == Op::kMod) return modulo_error(a, b, y);
  return rounded(y, quotient_spread(a, b));
}

// x^n for x > 0 is monotone in x and in n, so its extremes are at the corners.
Bound power_error(Approx x, Approx n, double y, const ErrorModel& model) {
  // 1 ** NaN and NaN ** 0 are 1.
  if (std::isnan(n.value) && x.low() <= 1 && x.high() >= 1) return Bound::unknown();
  if (std::isnan(x.value) && touches_zero(n)) return Bound::unknown();
  if (std::isnan(x.value) || std::isnan(n.value)) return Bound::exact();
  if (x.low() <= 0) {
    if (x.is_exact() && x.value == 0)  // 0 ** -1 has the sign of the zero
      return n.low() >= 0 && !(n.low() == 0 && n.error > 0) ? approximated(Op::kPow, y, 0, model)
                                                            : Bound::unknown();
    // A negative base needs an exponent known exactly: NaN unless it is an integer, and then |x|^n
    // is monotone.
    if (x.high() >= 0 || !n.is_exact()) return Bound::unknown();
  }
  const double ll = std::pow(x.low(), n.low()), lh = std::pow(x.low(), n.high());
  const double hl = std::pow(x.high(), n.low()), hh = std::pow(x.high(), n.high());
  if (!std::isfinite(ll + lh + hl + hh) || !std::isfinite(x.value) || !std::isfinite(n.value)) {
    if (!agree(y, {ll, lh, hl, hh})) return Bound::unknown();
    return std::isfinite(y) ? approximated(Op::kPow, y, 0, model) : Bound::exact();
  }
  return approximated(Op::kPow, y, farthest(y, {ll, lh, hl, hh}), model);
}

// + - * / // % where an operand or the result is not finite; a divisor does not touch 0.
Bound infinite_error(Op op, Approx a, Approx b, double y) {
  if (!agree(y, {float_binary(op, a.low(), b.low()), float_binary(op, a.low(), b.high()),
                 float_binary(op, a.high(), b.low()), float_binary(op, a.high(), b.high())}))
    return Bound::unknown();
  return std::isfinite(y) ? rounded(y, 0) : Bound::exact();
}

}  // namespace

Bound rounding_error(double value) {
  if (!std::isfinite(value) || is_f32(value)) return Bound::exact();
  return within(value, half_ulp(std::abs(value)));
}

Bound unary_error(Op op, Approx x, double y, const ErrorModel& model) {
  if (std::isnan(x.value)) return Bound::exact();
  switch (op) {
    case Op::kNeg:
    case Op::kAbs:
      return {x.error, false};
    case Op::kSign:
    case Op::kFloor:
    case Op::kCeil:
    case Op::kRound:
    case Op::kTrunc:
      return float_unary(op, x.low()) == float_unary(op, x.high()) ? Bound::exact()
                                                                   : Bound::unknown();
    case Op::kRelu:
      return choice(Op::kMax, x, {0, 0});
    case Op::kSin:
    case Op::kCos:
      return sine_error(op, x, y, model);
    case Op::kSilu:
    case Op::kGelu:
    case Op::kGeluTanh:
      return gated_error(op, x, y, model);
    case Op::kRsqrt:
      if (x.value == 0) return Bound::unknown();  // the sign of the zero decides
      return monotone(op, x, y, model);
    default:
      return monotone(op, x, y, model);
  }
}

Bound binary_error(Op op, Approx a, Approx b, double y, const ErrorModel& model) {
  if (op == Op::kPow) return power_error(a, b, y, model);
  if (std::isnan(a.value) || std::isnan(b.value)) return Bound::exact();
  if (op == Op::kMin || op == Op::kMax) return choice(op, a, b);
  const bool divides = op == Op::kDiv || op == Op::kFloorDiv || op == Op::kMod;
  if (divides && touches_zero(b)) return divided(op, a, b, y);
  if (!std::isfinite(a.value) || !std::isfinite(b.value) || !std::isfinite(y))
    return infinite_error(op, a, b, y);
  if (divides) return divided(op, a, b, y);
  return rounded(y, op == Op::kMul ? product_spread(a, b) : a.error + b.error);
}

Bound fma_error(Approx a, Approx b, Approx c, double y) {
  if (std::isnan(a.value) || std::isnan(b.value) || std::isnan(c.value)) return Bound::exact();
  if (!std::isfinite(y) || !std::isfinite(a.value) || !std::isfinite(b.value)) {
    // inf * (almost 0) could be NaN or either inf.
    const bool sure = (std::isfinite(a.value) || b.is_exact() || !touches_zero(b)) &&
                      (std::isfinite(b.value) || a.is_exact() || !touches_zero(a));
    return sure ? Bound::exact() : Bound::unknown();
  }
  return rounded(y, product_spread(a, b) + c.error);
}

bool is_comparison_certain(Approx a, Approx b) {
  if (std::isnan(a.value) || std::isnan(b.value)) return true;
  if (a.is_exact() && b.is_exact()) return true;
  return a.high() < b.low() || b.high() < a.low();
}

bool is_to_int_certain(Approx x) {
  return std::isnan(x.value) || float_to_int(x.low()) == float_to_int(x.high());
}

}  // namespace quire::reference

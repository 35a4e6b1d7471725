// Interval rules for exp, log, tanh and the other approximated functions: the exact values at the
// ends (and at extrema between them), widened by more than the evaluators' documented error, which
// interval_rules.h lists. Formula layer.
#include <cmath>
#include <numbers>

#include "formula/bound/float_grid.h"
#include "formula/bound/interval_rules.h"

namespace quire::formula {
namespace {

constexpr int kUlps = 8;

// The ends moved apart by kUlps, within the function's range [least, most]. A result below the
// smallest normal number may have been flushed to 0.
Interval widened(double lo, double hi, bool maybe_nan, Precision precision, double least = -kInf,
                 double most = kInf) {
  lo = step(lo, -kUlps, precision);
  hi = step(hi, kUlps, precision);
  if (lo > 0 && lo < smallest_normal(precision)) lo = 0;
  if (hi < 0 && hi > -smallest_normal(precision)) hi = 0;
  return Interval::floats(std::clamp(lo, least, most), std::clamp(hi, least, most), maybe_nan);
}

template <class F>
Interval increasing(const Interval& a, Precision precision, double least, double most, F f) {
  return widened(f(a.float_lo), f(a.float_hi), a.maybe_nan, precision, least, most);
}

// exp, exp2, expm1: near the largest float an evaluator may or may not return inf.
template <class F>
Interval exponential(const Interval& a, Precision precision, double least, F f) {
  Interval r = increasing(a, precision, least, kInf, f);
  const double half = largest(precision) / 2;
  r.float_lo = std::min(r.float_lo, half);
  if (r.float_hi > half) r.float_hi = kInf;
  return r;
}

// log, log2, log1p: NaN below `pole`, -inf at it.
template <class F>
Interval logarithm(const Interval& a, Precision precision, double pole, F f) {
  if (a.float_hi < pole) return Interval::any_float();
  return widened(f(std::max(a.float_lo, pole)), f(a.float_hi), a.maybe_nan || a.float_lo < pole,
                 precision);
}

Interval square_root(const Interval& a, Precision precision) {
  if (a.float_hi < 0) return Interval::any_float();
  return Interval::floats(round_to(std::sqrt(std::max(a.float_lo, 0.0)), precision),
                          round_to(std::sqrt(a.float_hi), precision),
                          a.maybe_nan || a.float_lo < 0);
}

Interval reciprocal_root(const Interval& a, Precision precision) {
  const auto f = [](double x) { return 1 / std::sqrt(x); };
  if (a.float_hi < 0) return Interval::any_float();
  // At a zero of unknown sign the result is an infinity of unknown sign.
  if (a.float_lo <= 0) return Interval::floats(-kInf, kInf, a.maybe_nan || a.float_lo < 0);
  return widened(f(a.float_hi), f(a.float_lo), a.maybe_nan, precision);
}

// sin(x + shift * pi / 2).
Interval sine(const Interval& a, int shift, Precision precision) {
  constexpr double kTurn = 2 * std::numbers::pi;
  const double error = precision == Precision::kF32 ? 0x1p-21 : 0x1p-44;
  const double largest_argument = 0x1p13;  // range reduction is exact up to here
  const bool infinite = a.float_lo == -kInf || a.float_hi == kInf;
  double lo = -1, hi = 1;
  if (!infinite && a.float_hi - a.float_lo < kTurn &&
      std::max(-a.float_lo, a.float_hi) <= largest_argument) {
    const double from = a.float_lo + shift * (kTurn / 4), to = a.float_hi + shift * (kTurn / 4);
    // Whether the angle passes `place` (mod a turn). If rounding misses it, the ends are
    // practically as large as the extremum.
    const auto passes = [&](double place) {
      return std::floor((to - place) / kTurn) > std::floor((from - place) / kTurn);
    };
    hi = passes(kTurn / 4) ? 1 : std::max(std::sin(from), std::sin(to));
    lo = passes(-kTurn / 4) ? -1 : std::min(std::sin(from), std::sin(to));
  }
  return Interval::floats(round_to(lo - error, precision), round_to(hi + error, precision),
                          a.maybe_nan || infinite);
}

// x times a factor that rises from 0 to 1: falls to its minimum at `at`, then rises. The factor may
// be off by some ulps of 1, and -inf * 0 is NaN.
template <class F>
Interval gate(const Interval& a, double at, Precision precision, F f) {
  const auto value = [&](double x) { return std::isinf(x) ? std::max(x, 0.0) : f(x); };
  const double x = a.float_lo, y = a.float_hi;
  const double lo = x <= at && at <= y ? value(at) : std::min(value(x), value(y));
  const double hi = std::max(value(x), value(y));
  const double error = 32 * unit_roundoff(precision) * std::max(std::abs(x), std::abs(y));
  Interval r = widened(lo, hi, a.maybe_nan || x == -kInf, precision);
  r.float_lo = step(std::isinf(error) ? -kInf : r.float_lo - error, -1, precision);
  r.float_hi = step(r.float_hi + error, 1, precision);
  return r;
}

Interval softplus(const Interval& a, Precision precision) {
  // Some definitions return x itself from 20 on.
  const auto least = [](double x) { return x >= 20 ? x : std::log1p(std::exp(x)); };
  const auto most = [](double x) {
    return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
  };
  return widened(least(a.float_lo), most(a.float_hi), a.maybe_nan, precision, 0);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double gelu(double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }
double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

}  // namespace

Interval bound_function(Op op, const Interval& a, Precision precision) {
  switch (op) {
    case Op::kExp:
      return exponential(a, precision, 0, [](double x) { return std::exp(x); });
    case Op::kExp2:
      return exponential(a, precision, 0, [](double x) { return std::exp2(x); });
    case Op::kExpm1:
      return exponential(a, precision, -kInf, [](double x) { return std::expm1(x); });
    case Op::kLog:
      return logarithm(a, precision, 0, [](double x) { return std::log(x); });
    case Op::kLog2:
      return logarithm(a, precision, 0, [](double x) { return std::log2(x); });
    case Op::kLog1p:
      return logarithm(a, precision, -1, [](double x) { return std::log1p(x); });
    case Op::kSqrt:
      return square_root(a, precision);
    case Op::kRsqrt:
      return reciprocal_root(a, precision);
    case Op::kSin:
      return sine(a, 0, precision);
    case Op::kCos:
      return sine(a, 1, precision);
    case Op::kAtan:
      return increasing(a, precision, -kInf, kInf, [](double x) { return std::atan(x); });
    case Op::kTanh:
      return increasing(a, precision, -1, 1, [](double x) { return std::tanh(x); });
    case Op::kSigmoid:
      return increasing(a, precision, 0, 1, sigmoid);
    case Op::kErf:
      return increasing(a, precision, -1, 1, [](double x) { return std::erf(x); });
    case Op::kGelu:
      return gate(a, -0.75179165, precision, gelu);
    case Op::kGeluTanh:
      return gate(a, -0.75246145, precision, gelu_tanh);
    case Op::kSilu:
      return gate(a, -1.27846454, precision, [](double x) { return x * sigmoid(x); });
    case Op::kSoftplus:
      return softplus(a, precision);
    default:
      return Interval::any_float();
  }
}

}  // namespace quire::formula

// How far an f32 evaluation can be from the f64 one, per operation on floats: given bounds on the
// operands' errors, a bound on the result's. Rules only; error_bound.h walks the graph. Sound
// first, tight second. Test support.
//
// Throughout: an operand is its f64 value and an error; the f32 program holds some f32 number
// within that distance, and error 0 says that it holds this very number (inf and NaN included).
// Signs of zeros are not followed.
#pragma once
#include <array>
#include <limits>

#include "quire/op.h"

namespace quire::reference {

/// What is assumed of the f32 program: + - * / sqrt, fma, conversions and loads of f64 are rounded
/// to nearest, subnormals included; % and // follow Python's algorithm with an exact fmod;
/// everything else is within `ulps`.
struct ErrorModel {
  ErrorModel() { ulps.fill(4); }

  /// Of the functions of one float and kPow, in units of the last place of the result.
  std::array<double, kOpCount> ulps;
  /// Results of those functions smaller than this may be off by as much: room to flush subnormals.
  double underflow = 0x1p-126;
  /// sin and cos of larger arguments are anybody's guess.
  double sin_cos_range = std::numeric_limits<double>::infinity();
};

struct Approx {
  double value = 0;
  double error = 0;

  double low() const { return value - error; }
  double high() const { return value + error; }
  bool is_exact() const { return error == 0; }
};

/// |f32 value - f64 value| <= error, unless uncertain: then nothing is known, a decision may have
/// gone the other way.
struct Bound {
  double error = 0;
  bool uncertain = false;

  static Bound exact() { return {}; }
  static Bound unknown() { return {std::numeric_limits<double>::infinity(), true}; }
};

/// Of a number that is rounded to f32 (a constant, an element of an f64 buffer, an integer made a
/// float).
Bound rounding_error(double value);

/// kNeg ... kTrunc and the functions of one float; `y` is the f64 result.
Bound unary_error(Op op, Approx x, double y, const ErrorModel& model);
/// kAdd ... kMax; `y` is the f64 result.
Bound binary_error(Op op, Approx a, Approx b, double y, const ErrorModel& model);
/// fma(a, b, c); `y` is the f64 result.
Bound fma_error(Approx a, Approx b, Approx c, double y);

/// Whether both evaluations must agree on how a and b compare.
bool is_comparison_certain(Approx a, Approx b);
/// Whether both evaluations truncate x to the same integer.
bool is_to_int_certain(Approx x);

}  // namespace quire::reference

// The interval of each operation's result, given those of its arguments. One function per family of
// operations, all pure, allocating nothing. Which argument is which node, buffers and affine forms
// are handled by bound.h. Formula layer.
//
// Sound means: whatever values the arguments take inside their intervals, the computed result lies
// in the result's interval. Ints wrap at 64 bits, so a result that could wrap is "any int". About
// floats these rules assume of every evaluator:
//   - the precision is that of the score, rounding is to nearest, subnormals are kept;
//   - + - * / sqrt, conversions and fma are correctly rounded. Rounding to nearest is monotone, so
//     the rounded ends of the exact interval are the ends of the rounded values, and nothing has to
//     be widened;
//   - other functions, pow included, are within 4 ulps of the exact value, monotone or not (here:
//     8), except that a result below the smallest normal number may be 0, and one of exp or pow
//     above half the largest number may be inf; sin and cos may be off by 2^-21 (2^-44 in f64),
//     gelu, gelu_tanh and silu by 2^-19 (2^-48) times the argument;
//   - |tanh| <= 1, |erf| <= 1, 0 <= sigmoid <= 1, exp >= 0 and softplus >= 0 hold exactly.
#pragma once
#include "formula/bound/interval.h"
#include "quire/formula.h"
#include "quire/op.h"

namespace quire::formula {

/// kNeg, kAbs, kSign, kBitNot.
Interval bound_int_unary(Op op, const Interval& a);

/// kAdd to kMax except kDiv, shifts and bit operations. `same`: both arguments are one value.
Interval bound_int_binary(Op op, const Interval& a, const Interval& b, bool same);

/// kNeg to kTrunc, and the functions of one float.
Interval bound_float_unary(Op op, const Interval& a, Precision precision);

/// kAdd to kMax.
Interval bound_float_binary(Op op, const Interval& a, const Interval& b, bool same,
                            Precision precision);

/// kLt to kNe on two ints or two floats.
Interval bound_compare(Op op, const Interval& a, const Interval& b, bool same);

/// kAnd, kOr, kXor: three-valued logic.
Interval bound_logic(Op op, const Interval& a, const Interval& b);

Interval bound_not(const Interval& a);
Interval bound_cast(const Interval& a, ValueType to, Precision precision);
Interval bound_where(const Interval& condition, const Interval& a, const Interval& b);
Interval bound_clamp(const Interval& x, const Interval& low, const Interval& high);

/// A function of one float (is_float_function) that is approximated; called by bound_float_unary.
Interval bound_function(Op op, const Interval& a, Precision precision);

}  // namespace quire::formula

// The definition of every operation on plain numbers: wrapping int64, and f64. One function per
// kind of operands; evaluate.h matches nodes with operands. Integer division by zero gives 0 here
// and is reported there. Reference layer.
#pragma once
#include <cstdint>

#include "quire/op.h"

namespace quire::reference {

/// kNeg, kAbs, kSign, kBitNot.
std::int64_t int_unary(Op op, std::int64_t a);
/// kAdd ... kMax (except kDiv), kShl ... kBitXor.
std::int64_t int_binary(Op op, std::int64_t a, std::int64_t b);

/// kNeg ... kTrunc and the functions of one float.
double float_unary(Op op, double x);
/// kAdd ... kMax.
double float_binary(Op op, double a, double b);

/// kLt ... kNe. With a NaN all are false except kNe.
bool compare(Op op, std::int64_t a, std::int64_t b);
bool compare(Op op, double a, double b);

/// Towards zero; saturates to int64; 0 for NaN.
std::int64_t float_to_int(double x);

}  // namespace quire::reference

// Partial derivatives of every operation on floats at a point. At kinks and ties the choice is
// PyTorch's. Step functions (floor, sign, //, comparisons, casts) have derivative 0. Test
// support.
#pragma once
#include <array>

#include "quire/op.h"

namespace quire::reference {

/// dy/dx of y = op(x).
double unary_derivative(Op op, double x, double y);

/// dy/da and dy/db of y = op(a, b).
std::array<double, 2> binary_derivatives(Op op, double a, double b, double y);

/// By x, low and high.
std::array<double, 3> clamp_derivatives(double x, double low, double high);

}  // namespace quire::reference

// Evaluates an operation on constants where the result is exactly defined: integers, logic,
// comparisons, casts, and the float operations that IEEE 754 rounds correctly or that do not round.
// Not exp, tanh and the like, whose bits are defined by the kernels' polynomials. Formula layer.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "formula/graph.h"
#include "formula/type_rules.h"
#include "quire/formula.h"

namespace quire::formula {

/// The value of a float constant in evaluation: rounded to the precision.
double constant_value(const Node& constant, Precision precision);

/// `op` (of type `type`) on constants, computed in `precision`, as a constant node. nullopt if the
/// result is a fault (integer division by zero), is not exactly defined, or is the minimum or
/// maximum of zeros of different sign.
std::optional<Node> fold(Op op, ValueType type, std::span<const Node> args, Precision precision);

}  // namespace quire::formula

// What mods written as Python functions work with: expressions, captured buffers, and the
// conversion of Python objects to operands. Python layer.
#pragma once
#include <nanobind/nanobind.h>

#include <optional>

#include "quire/expr.h"

namespace quire::python {

namespace nb = nanobind;

/// Any value of a formula. Its type is known to the graph, not to Python.
struct PyExpr {
  ExprBase base;
};

/// An expression, an element of a buffer, a number or a bool (Python's, NumPy's or an array of rank
/// 0); nullopt for any other object. Throws OverflowError for an int beyond 64 bits.
std::optional<ExprBase> find_operand(nb::handle object);

/// The same; throws TypeError naming `where` for anything else.
ExprBase operand(nb::handle object, const char* where);

}  // namespace quire::python

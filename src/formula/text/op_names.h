// How operations are spelled: function names, infix symbols and their binding strength. One table
// for the parser, the printer and error texts.
#pragma once
#include <optional>
#include <string_view>

#include "quire/op.h"

namespace quire::formula {

/// Binding strength of an infix operator or prefix, weak to strong, as in Python.
enum class Precedence {
  kOr,
  kAnd,
  kNot,
  kCompare,
  kBitOr,
  kBitXor,
  kBitAnd,
  kShift,
  kSum,
  kProduct,
  kPrefix,
  kPower,
  kAtom
};

struct Spelling {
  Op op;
  std::string_view name;    // as a function, a leaf or a cast: `tanh`, `q_idx`, `float`
  std::string_view symbol;  // as an operator: `+`; empty if it has none
  Precedence precedence;    // of the operator
};

const Spelling& spelling(Op op);

/// "'<<'" or "'tanh'": for error texts.
std::string_view display_name(Op op);

/// The one- or two-argument operation called `name`, aliases included (`min` is `minimum`).
std::optional<Op> find_function(std::string_view name);

}  // namespace quire::formula

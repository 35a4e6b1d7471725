// The data about operations: name, operator, precedence, number of arguments, type rule. The
// parser, the printer, the builder and error messages read it; the rows are those of
// quire/op_table.inc. Formula layer.
#pragma once
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "quire/op.h"

namespace quire::formula {

/// Precedence of an infix operator or prefix, weak to strong, as in Python.
enum class Precedence : std::uint8_t {
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

/// Types that an operation takes and returns; rules: type_rules.h in words, build.cc in code.
enum class TypeRule : std::uint8_t {
  kLeaf,      // an argument of the mod
  kConstant,  // of the type in its name
  kCast,      // anything to the type in its name
  kNumber,    // arguments and result: int, or float if one argument is
  kRounding,  // a float; an int is returned unchanged
  kFloat,     // arguments and result: float
  kPower,     // as kNumber, but int to a constant negative exponent is float
  kShift,     // ints
  kBits,      // ints; for bools, the logic operation
  kLogic,     // bools
  kCompare,   // as kNumber, giving a bool
  kChoice,    // a condition and two values of their common type
  kRead,      // from captured buffers, at integer indices
};

struct OpInfo {
  Op op;
  std::string_view name;    // as a function, leaf or cast: `tanh`, `q_idx`, `float`
  std::string_view symbol;  // as an operator: `+`; empty if it has none
  Precedence precedence;    // of the operator
  std::uint8_t arity;       // number of arguments; for reads, of buffers
  TypeRule rule;
};

inline constexpr std::array<OpInfo, kOpCount> kOps = {{
#define QUIRE_OP(name, text, symbol, precedence, arity, rule) \
  {Op::k##name, text, symbol, Precedence::k##precedence, arity, TypeRule::k##rule},
#include "quire/op_table.inc"
}};

constexpr const OpInfo& op_info(Op op) { return kOps[static_cast<std::size_t>(op)]; }

/// "<<" or "tanh": for error texts.
std::string_view display_name(Op op);

/// The one- or two-argument operation called `name`, aliases included (`min` is `minimum`).
std::optional<Op> find_function(std::string_view name);

}  // namespace quire::formula

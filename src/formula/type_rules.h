// All type rules of the formula language. build.h applies them; nothing else decides a type.
// Formula layer.
//
//   types          int (int64), float (f32, or f64 for f64 queries), bool; a bool in arithmetic
//                  counts as an int; int64 overflow wraps
//   + - * // %     int with int gives int; a float on either side makes both float. // rounds down
//                  and % has the sign of the divisor, as in Python, for ints and floats alike
//   /              float: both sides are converted first (C++: `/` on two ints does not compile)
//   **             int with int gives int: a negative exponent gives 0, or +-1 for the bases 1 and
//                  -1; a *constant* negative exponent makes it float, as in Python. Otherwise float
//   minimum maximum clamp     the common numeric type of the arguments
//   < <= > >= == != compared in the common numeric type (an int beside a float is rounded to
//                  float); bool
//   & | ^ ~        bool with bool is logic; otherwise bitwise on ints; a float is an error
//   << >>          ints only; counts outside 0..63 give 0, or -1 for a negative value shifted right
//   and or not     any type, "is not zero"; bool (`&&`, `||`, `!` in C++)
//   where          condition: any type, "is not zero"; branches: their common type, bool if both
//                  are bool
//   neg abs sign   int or float, as the argument
//   floor ceil round trunc    as the argument; an int is returned as it is
//   exp log tanh ...          float
//   int() float() bool()      casts. float -> int truncates and saturates, NaN gives 0;
//                  int -> float rounds to nearest
//   buffer[i, j]   float for f32 f64 bf16 f16, int for i8 u8 i16 i32 i64 and bool; indices must be
//                  int (or bool)
//   sum dot        over trailing axes; float if any buffer is, else int
#pragma once
#include <optional>
#include <string_view>

#include "formula/op_table.h"
#include "quire/dtype.h"
#include "quire/op.h"

namespace quire::formula {

/// int or float: the type in which arithmetic on these two is done.
constexpr ValueType numeric_type(ValueType a, ValueType b) {
  return a == ValueType::kFloat || b == ValueType::kFloat ? ValueType::kFloat : ValueType::kInt;
}

/// The type `where` gives: bool only if both branches are.
constexpr ValueType common_type(ValueType a, ValueType b) {
  return a == ValueType::kBool && b == ValueType::kBool ? ValueType::kBool : numeric_type(a, b);
}

/// The type of an element of a captured buffer.
constexpr ValueType element_type(DType dtype) {
  return is_floating(dtype) ? ValueType::kFloat : ValueType::kInt;
}

std::string_view type_name(ValueType type);

constexpr bool is_argument(Op op) { return op_info(op).rule == TypeRule::kLeaf; }
constexpr bool is_constant(Op op) { return op_info(op).rule == TypeRule::kConstant; }
constexpr bool is_cast(Op op) { return op_info(op).rule == TypeRule::kCast; }
constexpr bool is_read(Op op) { return op_info(op).rule == TypeRule::kRead; }
constexpr bool is_compare(Op op) { return op_info(op).rule == TypeRule::kCompare; }
constexpr bool is_float_function(Op op) {
  return op_info(op).rule == TypeRule::kFloat && op_info(op).arity == 1;
}
constexpr bool is_commutative(Op op) {
  return op == Op::kAdd || op == Op::kMul || op == Op::kMin || op == Op::kMax ||
         (op >= Op::kBitAnd && op <= Op::kXor) || op == Op::kEq || op == Op::kNe;
}

}  // namespace quire::formula

// The vocabulary of formulas: the operations that make a value and the types a value can have. The
// operations are listed in op_table.inc. No behaviour. Public; formula layer.
#pragma once
#include <cstdint>

namespace quire {

/// The type of a value in a formula. Integers are int64 in meaning; a float is f32, or f64 for f64
/// queries.
enum class ValueType : std::uint8_t { kInt, kFloat, kBool };

/// How a value is made: kScore, kBatch, ... kAdd, ... kDot, one per row of op_table.inc.
enum class Op : std::uint8_t {
#define QUIRE_OP(name, text, symbol, precedence, arity, rule) k##name,
#include "quire/op_table.inc"
};

inline constexpr int kOpCount = static_cast<int>(Op::kDot) + 1;

}  // namespace quire

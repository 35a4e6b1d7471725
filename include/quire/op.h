// The vocabulary of formulas: the operations a value can be made by and the types it can have.
// Shared by the tracing front end (expr.h) and by everything that reads a formula. Holds no
// behaviour; the type rules are in src/formula/type_rules.h.
#pragma once
#include <cstdint>

namespace quire {

/// The type of a value in a formula. Integers are int64 in meaning; a float is f32, or f64 for f64
/// queries.
enum class ValueType : std::uint8_t { kInt, kFloat, kBool };

/// How a value is made. The groups matter: the ranges of `is_leaf` and the tables of names follow
/// this order.
enum class Op : std::uint8_t {
  // Leaves: the five arguments of a mod, and constants.
  kScore,
  kBatch,
  kHead,
  kQIdx,
  kKvIdx,
  kIntConst,
  kFloatConst,
  kBoolConst,
  // Casts. Float to int truncates and saturates, NaN gives 0; anything to bool is "not zero".
  kToInt,
  kToFloat,
  kToBool,
  // One argument, any number.
  kNeg,
  kAbs,
  kSign,
  kFloor,
  kCeil,
  kRound,  // half to even
  kTrunc,
  // One argument, bool or int.
  kNot,
  kBitNot,
  // One argument, float.
  kExp,
  kExp2,
  kExpm1,
  kLog,
  kLog2,
  kLog1p,
  kSqrt,
  kRsqrt,
  kSin,
  kCos,
  kTanh,
  kSigmoid,
  kErf,
  kRelu,
  kGelu,
  kGeluTanh,
  kSilu,
  kSoftplus,
  // Two arguments of the same type.
  kAdd,
  kSub,
  kMul,
  kDiv,  // float only: true division
  kFloorDiv,
  kMod,  // sign of the divisor, as in Python
  kPow,
  kMin,
  kMax,
  // Two integers.
  kShl,
  kShr,
  kBitAnd,
  kBitOr,
  kBitXor,
  // Two bools.
  kAnd,
  kOr,
  kXor,
  // Two numbers of the same type to a bool.
  kLt,
  kLe,
  kGt,
  kGe,
  kEq,
  kNe,
  // Three arguments.
  kWhere,  // (condition, then, else)
  kClamp,  // (x, low, high)
  // Captured buffers. Arguments are the indices; kSum and kDot leave trailing axes and add over
  // them.
  kLoad,
  kSum,
  kDot,
};

inline constexpr int kOpCount = static_cast<int>(Op::kDot) + 1;

}  // namespace quire

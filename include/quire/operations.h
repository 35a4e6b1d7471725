// Operators and functions on traced values (expr.h): everything that a mod written in C++ can do.
// The type rules (Python's for // and %, int64 wraps, ...) are in src/formula/type_rules.h. Public;
// formula layer.
#pragma once
#include "quire/expr.h"
#include "quire/op.h"

namespace quire {

// Arithmetic.

template <class A, class B>
  requires Traced<A, B>
auto operator+(const A& a, const B& b) {
  return detail::make<detail::arithmetic_kind<A, B>>(Op::kAdd, a, b);
}
template <class A, class B>
  requires Traced<A, B>
auto operator-(const A& a, const B& b) {
  return detail::make<detail::arithmetic_kind<A, B>>(Op::kSub, a, b);
}
template <class A, class B>
  requires Traced<A, B>
auto operator*(const A& a, const B& b) {
  return detail::make<detail::arithmetic_kind<A, B>>(Op::kMul, a, b);
}

/// C++ truncates and Python does not, so `/` on integers is rejected: say which one is meant.
struct use_floor_div_or_true_div_on_integers {};
template <class A, class B>
  requires(Traced<A, B> && detail::is_integral<A> && detail::is_integral<B>)
use_floor_div_or_true_div_on_integers operator/(const A&, const B&) = delete;
template <class A, class B>
  requires(Traced<A, B> && !(detail::is_integral<A> && detail::is_integral<B>))
FloatExpr operator/(const A& a, const B& b) {
  return FloatExpr(detail::checked_divide(detail::to_base(a), detail::to_base(b)));
}
/// a / b as floats, whatever the types.
template <class A, class B>
  requires Traced<A, B>
FloatExpr true_div(const A& a, const B& b) {
  return detail::make<Kind::kFloat>(Op::kDiv, a, b);
}
/// The quotient rounded down.
template <class A, class B>
  requires Traced<A, B>
auto floor_div(const A& a, const B& b) {
  return detail::make<detail::arithmetic_kind<A, B>>(Op::kFloorDiv, a, b);
}
/// The remainder with the sign of the divisor, as in Python (not C++): -1 % 4 is 3.
template <class A, class B>
  requires Traced<A, B>
auto operator%(const A& a, const B& b) {
  return detail::make<detail::arithmetic_kind<A, B>>(Op::kMod, a, b);
}
template <class A, class B>
  requires Traced<A, B>
auto pow(const A& a, const B& b) {
  constexpr Kind kKind = detail::arithmetic_kind<A, B>;
  return detail::make < kKind == Kind::kInt ? Kind::kAny : kKind > (Op::kPow, a, b);
}
template <class A>
  requires Traced<A>
auto operator-(const A& a) {
  return detail::make<detail::numeric(detail::kind_of<A>)>(Op::kNeg, a);
}
template <class A>
  requires Traced<A>
auto operator+(const A& a) {
  return Expr<detail::kind_of<A>>(detail::to_base(a));
}

// Bits, shifts and logic.

template <class A, class B>
  requires Traced<A, B>
auto operator&(const A& a, const B& b) {
  return detail::make<detail::common_kind<A, B>>(Op::kBitAnd, a, b);
}
template <class A, class B>
  requires Traced<A, B>
auto operator|(const A& a, const B& b) {
  return detail::make<detail::common_kind<A, B>>(Op::kBitOr, a, b);
}
template <class A, class B>
  requires Traced<A, B>
auto operator^(const A& a, const B& b) {
  return detail::make<detail::common_kind<A, B>>(Op::kBitXor, a, b);
}
template <class A, class B>
  requires Traced<A, B>
auto operator<<(const A& a, const B& b) {
  return detail::make<Kind::kInt>(Op::kShl, a, b);
}
template <class A, class B>
  requires Traced<A, B>
auto operator>>(const A& a, const B& b) {
  return detail::make<Kind::kInt>(Op::kShr, a, b);
}
template <class A>
  requires Traced<A>
auto operator~(const A& a) {
  return detail::make<detail::kind_of<A>>(Op::kBitNot, a);
}
template <class A, class B>
  requires Traced<A, B>
BoolExpr operator&&(const A& a, const B& b) {
  return detail::make<Kind::kBool>(Op::kAnd, a, b);
}
template <class A, class B>
  requires Traced<A, B>
BoolExpr operator||(const A& a, const B& b) {
  return detail::make<Kind::kBool>(Op::kOr, a, b);
}
template <class A>
  requires Traced<A>
BoolExpr operator!(const A& a) {
  return detail::make<Kind::kBool>(Op::kNot, a);
}

// Comparisons.

template <class A, class B>
  requires Traced<A, B>
BoolExpr operator<(const A& a, const B& b) {
  return detail::make<Kind::kBool>(Op::kLt, a, b);
}
template <class A, class B>
  requires Traced<A, B>
BoolExpr operator<=(const A& a, const B& b) {
  return detail::make<Kind::kBool>(Op::kLe, a, b);
}
template <class A, class B>
  requires Traced<A, B>
BoolExpr operator>(const A& a, const B& b) {
  return detail::make<Kind::kBool>(Op::kGt, a, b);
}
template <class A, class B>
  requires Traced<A, B>
BoolExpr operator>=(const A& a, const B& b) {
  return detail::make<Kind::kBool>(Op::kGe, a, b);
}
template <class A, class B>
  requires Traced<A, B>
BoolExpr operator==(const A& a, const B& b) {
  return detail::make<Kind::kBool>(Op::kEq, a, b);
}
template <class A, class B>
  requires Traced<A, B>
BoolExpr operator!=(const A& a, const B& b) {
  return detail::make<Kind::kBool>(Op::kNe, a, b);
}

// Choice.

template <class C, class A, class B>
  requires Traced<C, A, B>
auto where(const C& condition, const A& a, const B& b) {
  return Expr<detail::common_kind<A, B>>(detail::ternary(Op::kWhere, detail::to_base(condition),
                                                         detail::to_base(a), detail::to_base(b)));
}
template <class A, class B>
  requires Traced<A, B>
auto minimum(const A& a, const B& b) {
  return detail::make<detail::arithmetic_kind<A, B>>(Op::kMin, a, b);
}
template <class A, class B>
  requires Traced<A, B>
auto maximum(const A& a, const B& b) {
  return detail::make<detail::arithmetic_kind<A, B>>(Op::kMax, a, b);
}
template <class A, class L, class H>
  requires Traced<A, L, H>
auto clamp(const A& x, const L& low, const H& high) {
  constexpr Kind kKind =
      detail::join(detail::arithmetic_kind<A, L>, detail::numeric(detail::kind_of<H>));
  return Expr<kKind>(
      detail::ternary(Op::kClamp, detail::to_base(x), detail::to_base(low), detail::to_base(high)));
}

// Casts.

template <class A>
  requires Traced<A>
IntExpr to_int(const A& a) {
  return detail::make<Kind::kInt>(Op::kToInt, a);
}
template <class A>
  requires Traced<A>
FloatExpr to_float(const A& a) {
  return detail::make<Kind::kFloat>(Op::kToFloat, a);
}
template <class A>
  requires Traced<A>
BoolExpr to_bool(const A& a) {
  return detail::make<Kind::kBool>(Op::kToBool, a);
}

// Functions that keep the type of their argument.

template <class A>
  requires Traced<A>
auto abs(const A& a) {
  return detail::make<detail::numeric(detail::kind_of<A>)>(Op::kAbs, a);
}
template <class A>
  requires Traced<A>
auto sign(const A& a) {
  return detail::make<detail::numeric(detail::kind_of<A>)>(Op::kSign, a);
}
template <class A>
  requires Traced<A>
auto floor(const A& a) {
  return detail::make<detail::numeric(detail::kind_of<A>)>(Op::kFloor, a);
}
template <class A>
  requires Traced<A>
auto ceil(const A& a) {
  return detail::make<detail::numeric(detail::kind_of<A>)>(Op::kCeil, a);
}
/// Half to even, as torch.round.
template <class A>
  requires Traced<A>
auto round(const A& a) {
  return detail::make<detail::numeric(detail::kind_of<A>)>(Op::kRound, a);
}
template <class A>
  requires Traced<A>
auto trunc(const A& a) {
  return detail::make<detail::numeric(detail::kind_of<A>)>(Op::kTrunc, a);
}

// Functions of floats: exp, log, sqrt, tanh, ... every QUIRE_FLOAT_FUNCTION of the table.

#define QUIRE_FLOAT_FUNCTION(name, function, ulps, meaning) \
  template <class A>                                        \
    requires Traced<A>                                      \
  FloatExpr function(const A& a) {                          \
    return detail::make<Kind::kFloat>(Op::k##name, a);      \
  }
#include "quire/op_table.inc"

// Sums over the axes of a buffer that are not indexed, in ascending order of the flattened trailing
// index.

/// sum(table[h]): over all elements of the slice.
inline AnyExpr sum(const BufferSlice& a) { return AnyExpr(detail::sum(a.buffer(), a.indices())); }
/// dot(q_rope(b, h, q), k_rope(b, 0, kv)): the remaining shapes must be equal.
inline AnyExpr dot(const BufferSlice& a, const BufferSlice& b) {
  return AnyExpr(detail::dot(a.buffer(), a.indices(), b.buffer(), b.indices()));
}

}  // namespace quire

// Tracing: the values a mod written as a C++ lambda works with. Operators and functions on them
// (found by argument-dependent lookup) do not compute, they record a node in a formula's graph.
//
//   [&](auto score, auto b, auto h, auto q, auto kv) { return where(q >= kv, score + slopes[h] *
//   (kv - q), -INFINITY); }
//
// Not a vocabulary for storing: keep a Formula, ScoreMod or MaskMod instead. Expressions of one
// graph must not be built from two threads at once. The type rules (Python's for // and %, int64
// wraps, ...) are in src/formula/type_rules.h.
#pragma once
#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "quire/buffer.h"
#include "quire/export.h"
#include "quire/op.h"

namespace quire {

namespace formula {
class Graph;
}

/// What is known of an expression's type while the program is compiled. An element of a Buffer is
/// kAny: its dtype is known when the lambda runs.
enum class Kind { kInt, kFloat, kBool, kAny };

/// A node of a graph, or a literal that has not met a graph yet.
class QUIRE_API ExprBase {
 public:
  ExprBase(std::shared_ptr<formula::Graph> graph, std::int32_t node)
      : graph_(std::move(graph)), node_(node) {}

  static ExprBase literal(bool value) { return {Op::kBoolConst, value}; }
  static ExprBase literal(std::int64_t value) { return {Op::kIntConst, value}; }
  static ExprBase literal(double value);

  const std::shared_ptr<formula::Graph>& graph() const { return graph_; }
  std::int32_t node() const { return node_; }
  Op literal_op() const { return literal_op_; }
  std::int64_t literal_bits() const { return literal_bits_; }

 private:
  ExprBase(Op op, std::int64_t bits) : literal_op_(op), literal_bits_(bits) {}

  std::shared_ptr<formula::Graph> graph_;  // null for a literal
  std::int32_t node_ = -1;
  Op literal_op_ = Op::kIntConst;
  std::int64_t literal_bits_ = 0;
};

template <Kind K>
class Expr : public ExprBase {
 public:
  static constexpr Kind kKind = K;
  explicit Expr(ExprBase base) : ExprBase(std::move(base)) {}

  explicit operator bool() const =
      delete;  // a traced value is not known yet: use where(q >= kv, a, b)
};

using IntExpr = Expr<Kind::kInt>;
using FloatExpr = Expr<Kind::kFloat>;
using BoolExpr = Expr<Kind::kBool>;
using AnyExpr = Expr<Kind::kAny>;

namespace detail {

QUIRE_API ExprBase unary(Op op, const ExprBase& a);
QUIRE_API ExprBase binary(Op op, const ExprBase& a, const ExprBase& b);
QUIRE_API ExprBase ternary(Op op, const ExprBase& a, const ExprBase& b, const ExprBase& c);
QUIRE_API ExprBase load(const Buffer& buffer, const std::vector<ExprBase>& indices);
QUIRE_API ExprBase sum(const Buffer& buffer, const std::vector<ExprBase>& indices);
QUIRE_API ExprBase dot(const Buffer& a, const std::vector<ExprBase>& a_indices, const Buffer& b,
                       const std::vector<ExprBase>& b_indices);
/// `/` where the compiler could not know the types: throws if both turn out to be integers.
QUIRE_API ExprBase checked_divide(const ExprBase& a, const ExprBase& b);

template <class T>
struct KindOf;  // undefined: not something a formula can hold
template <std::floating_point T>
struct KindOf<T> {
  static constexpr Kind value = Kind::kFloat;
};
template <std::integral T>
struct KindOf<T> {
  static constexpr Kind value = std::same_as<T, bool> ? Kind::kBool : Kind::kInt;
};
template <Kind K>
struct KindOf<Expr<K>> {
  static constexpr Kind value = K;
};
template <>
struct KindOf<BufferSlice> {
  static constexpr Kind value = Kind::kAny;
};

template <class T>
inline constexpr bool is_traced = !std::is_arithmetic_v<T>;

}  // namespace detail

/// A number, an expression or an element of a buffer.
template <class T>
concept Operand = requires { detail::KindOf<T>::value; };

/// Operands of which at least one is traced, so that built-in arithmetic is left alone.
template <class... T>
concept Traced = (Operand<T> && ...) && (detail::is_traced<T> || ...);

namespace detail {

template <Operand T>
inline constexpr Kind kind_of = KindOf<T>::value;

template <class T>
inline constexpr bool is_integral = kind_of<T> == Kind::kInt || kind_of<T> == Kind::kBool;

constexpr Kind numeric(Kind k) { return k == Kind::kBool ? Kind::kInt : k; }
constexpr Kind join(Kind a, Kind b) {
  if (a == b) return a;
  if (numeric(a) == Kind::kFloat || numeric(b) == Kind::kFloat) return Kind::kFloat;
  return a == Kind::kAny || b == Kind::kAny ? Kind::kAny : Kind::kInt;
}
template <class A, class B>
inline constexpr Kind arithmetic_kind = join(numeric(kind_of<A>), numeric(kind_of<B>));
template <class A, class B>
inline constexpr Kind common_kind = join(kind_of<A>, kind_of<B>);

template <Operand T>
ExprBase to_base(const T& x) {
  if constexpr (std::is_base_of_v<ExprBase, T>)
    return x;
  else if constexpr (std::same_as<T, bool>)
    return ExprBase::literal(x);
  else if constexpr (std::integral<T>)
    return ExprBase::literal(static_cast<std::int64_t>(x));
  else if constexpr (std::floating_point<T>)
    return ExprBase::literal(static_cast<double>(x));
  else
    return x.element();
}

template <Kind K, class A, class B>
Expr<K> make(Op op, const A& a, const B& b) {
  return Expr<K>(binary(op, to_base(a), to_base(b)));
}
template <Kind K, class A>
Expr<K> make(Op op, const A& a) {
  return Expr<K>(unary(op, to_base(a)));
}

}  // namespace detail

/// A buffer with some of its indices given.
class BufferSlice {
 public:
  BufferSlice(const Buffer& buffer, std::vector<ExprBase> indices)
      : buffer_(buffer), indices_(std::move(indices)) {}

  template <Operand Index>
  BufferSlice operator[](const Index& index) const {
    return (*this)(index);
  }
  template <Operand... Index>
  BufferSlice operator()(const Index&... index) const {
    std::vector<ExprBase> all = indices_;
    (all.push_back(detail::to_base(index)), ...);
    return BufferSlice(buffer_, std::move(all));
  }

  /// The element, once there is one index per axis.
  AnyExpr element() const { return AnyExpr(detail::load(buffer_, indices_)); }
  const Buffer& buffer() const { return buffer_; }
  const std::vector<ExprBase>& indices() const { return indices_; }

 private:
  Buffer buffer_;
  std::vector<ExprBase> indices_;
};

template <class Index>
BufferSlice Buffer::operator[](const Index& index) const {
  return BufferSlice(*this, {detail::to_base(index)});
}
template <class... Index>
BufferSlice Buffer::operator()(const Index&... index) const {
  return BufferSlice(*this, {detail::to_base(index)...});
}

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

/// C++ truncates and Python does not, so `/` on integers is neither: say which is meant.
struct use_floor_div_or_true_div_on_integers;
template <class A, class B>
  requires(Traced<A, B> && detail::is_integral<A> && detail::is_integral<B>)
use_floor_div_or_true_div_on_integers operator/(const A&, const B&) = delete;
template <class A, class B>
  requires(Traced<A, B> && !(detail::is_integral<A> && detail::is_integral<B>))
FloatExpr operator/(const A& a, const B& b) {
  return FloatExpr(detail::checked_divide(detail::to_base(a), detail::to_base(b)));
}
/// a / b in floats, whatever the types.
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
/// The remainder with the sign of the divisor, as Python's (not C++'s): -1 % 4 is 3.
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

// Functions of floats.

template <class A>
  requires Traced<A>
FloatExpr exp(const A& a) {
  return detail::make<Kind::kFloat>(Op::kExp, a);
}
template <class A>
  requires Traced<A>
FloatExpr exp2(const A& a) {
  return detail::make<Kind::kFloat>(Op::kExp2, a);
}
template <class A>
  requires Traced<A>
FloatExpr expm1(const A& a) {
  return detail::make<Kind::kFloat>(Op::kExpm1, a);
}
template <class A>
  requires Traced<A>
FloatExpr log(const A& a) {
  return detail::make<Kind::kFloat>(Op::kLog, a);
}
template <class A>
  requires Traced<A>
FloatExpr log2(const A& a) {
  return detail::make<Kind::kFloat>(Op::kLog2, a);
}
template <class A>
  requires Traced<A>
FloatExpr log1p(const A& a) {
  return detail::make<Kind::kFloat>(Op::kLog1p, a);
}
template <class A>
  requires Traced<A>
FloatExpr sqrt(const A& a) {
  return detail::make<Kind::kFloat>(Op::kSqrt, a);
}
template <class A>
  requires Traced<A>
FloatExpr rsqrt(const A& a) {
  return detail::make<Kind::kFloat>(Op::kRsqrt, a);
}
template <class A>
  requires Traced<A>
FloatExpr sin(const A& a) {
  return detail::make<Kind::kFloat>(Op::kSin, a);
}
template <class A>
  requires Traced<A>
FloatExpr cos(const A& a) {
  return detail::make<Kind::kFloat>(Op::kCos, a);
}
template <class A>
  requires Traced<A>
FloatExpr tanh(const A& a) {
  return detail::make<Kind::kFloat>(Op::kTanh, a);
}
template <class A>
  requires Traced<A>
FloatExpr sigmoid(const A& a) {
  return detail::make<Kind::kFloat>(Op::kSigmoid, a);
}
template <class A>
  requires Traced<A>
FloatExpr erf(const A& a) {
  return detail::make<Kind::kFloat>(Op::kErf, a);
}
template <class A>
  requires Traced<A>
FloatExpr relu(const A& a) {
  return detail::make<Kind::kFloat>(Op::kRelu, a);
}
template <class A>
  requires Traced<A>
FloatExpr gelu(const A& a) {
  return detail::make<Kind::kFloat>(Op::kGelu, a);
}
template <class A>
  requires Traced<A>
FloatExpr gelu_tanh(const A& a) {
  return detail::make<Kind::kFloat>(Op::kGeluTanh, a);
}
template <class A>
  requires Traced<A>
FloatExpr silu(const A& a) {
  return detail::make<Kind::kFloat>(Op::kSilu, a);
}
template <class A>
  requires Traced<A>
FloatExpr softplus(const A& a) {
  return detail::make<Kind::kFloat>(Op::kSoftplus, a);
}

// Sums over the axes of a buffer that are not indexed, in ascending order of the flattened trailing
// index.

/// sum(table[h]): all elements of what is left.
inline AnyExpr sum(const BufferSlice& a) { return AnyExpr(detail::sum(a.buffer(), a.indices())); }
/// dot(q_rope(b, h, q), k_rope(b, 0, kv)): the shapes left must be equal.
inline AnyExpr dot(const BufferSlice& a, const BufferSlice& b) {
  return AnyExpr(detail::dot(a.buffer(), a.indices(), b.buffer(), b.indices()));
}

}  // namespace quire

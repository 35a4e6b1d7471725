// Tracing: the values in a mod written as a C++ lambda. Operators and functions on them
// (operations.h, found by argument-dependent lookup) record nodes in a formula's graph. Public;
// formula layer.
//
//   [&](auto score, auto b, auto h, auto q, auto kv) {
//     return where(q >= kv, score + slopes[h] * (kv - q), -INFINITY);
//   }
//
// Not meant for storage: keep a Formula, ScoreMod or MaskMod instead. Expressions of one graph must
// be built in one thread. The type rules (// and % as in Python, ...): src/formula/type_rules.h.
#pragma once
#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "quire/buffer.h"
#include "quire/export.h"
#include "quire/float16.h"
#include "quire/op.h"

namespace quire {

namespace formula {
class Graph;
}

/// What is known of an expression's type at compile time. An element of a Buffer is kAny: its dtype
/// is known only when the lambda runs.
enum class Kind { kInt, kFloat, kBool, kAny };

/// A node of a graph, or a literal not yet in any graph.
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
      delete;  // the value is not known while tracing: use where(q >= kv, a, b)
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
/// `/` where the compiler cannot know the types: throws if both turn out to be integers.
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

/// Operands of which at least one is traced, so that built-in arithmetic is unaffected.
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
  else if constexpr (std::same_as<T, float>)
    return ExprBase::literal(detail::widen(x));
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

}  // namespace quire

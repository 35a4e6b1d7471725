// The derivative of each operation, by PyTorch's formulas, so that rounding and corner cases are
// what its users expect; those of gelu and gelu_tanh differ, because ours are cheaper. Formula
// layer.
#include <cmath>
#include <numbers>

#include "formula/build.h"
#include "formula/gradient/differentiate.h"

namespace quire::formula {
namespace {

// A node with operators.
struct Value {
  Graph* graph;
  NodeId id;
};

Value number(Graph* graph, double value) { return {graph, make_float(*graph, value)}; }
Value unary(Op op, Value a) { return {a.graph, make_unary(*a.graph, op, a.id)}; }
Value binary(Op op, Value a, Value b) { return {a.graph, make_binary(*a.graph, op, a.id, b.id)}; }
Value choose(Value condition, Value a, Value b) {
  return {a.graph, make_where(*a.graph, condition.id, a.id, b.id)};
}

Value operator+(Value a, Value b) { return binary(Op::kAdd, a, b); }
Value operator-(Value a, Value b) { return binary(Op::kSub, a, b); }
Value operator*(Value a, Value b) { return binary(Op::kMul, a, b); }
Value operator/(Value a, Value b) { return binary(Op::kDiv, a, b); }
Value operator-(Value a) { return unary(Op::kNeg, a); }
Value operator+(Value a, double b) { return a + number(a.graph, b); }
Value operator-(Value a, double b) { return a - number(a.graph, b); }
Value operator*(Value a, double b) { return a * number(a.graph, b); }
Value operator-(double a, Value b) { return number(b.graph, a) - b; }

// g where the condition holds (or does not), otherwise 0. A choice, not a product: 0 * inf is not
// 0.
Value only_if(Value condition, Value g) { return choose(condition, g, number(g.graph, 0)); }
Value not_if(Value condition, Value g) { return choose(condition, number(g.graph, 0), g); }

constexpr double kLn2 = std::numbers::ln2;
constexpr double kTwoBySqrtPi = 2 * std::numbers::inv_sqrtpi;

// y / x for y = x * F(x) with F(0) = 1/2: gives F without another erf or tanh, and with all its
// digits where it is small. Below 2^-100 the quotient of subnormals would have few.
Value half_at_zero(Value x, Value y) {
  const Value small = binary(Op::kLt, unary(Op::kAbs, x), number(x.graph, 0x1p-100));
  return choose(small, number(x.graph, 0.5), y / x);
}

// F + x * F' with the normal distribution for F.
Value gelu_slope(Value x, Value y) {
  constexpr double kDensity = kTwoBySqrtPi / std::numbers::sqrt2 / 2;  // at 0: 1 / sqrt(2 pi)
  return half_at_zero(x, y) + x * (unary(Op::kExp, x * x * -0.5) * kDensity);
}

// The same with F = sigmoid(2 u), u = kScale * (x + kCubic * x^3).
Value gelu_tanh_slope(Value x, Value y) {
  constexpr double kCubic = 0.044715;
  constexpr double kScale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  const Value f = half_at_zero(x, y);
  const Value inner_slope = x * x * (6 * kCubic * kScale) + 2 * kScale;
  return f + x * (f * (1.0 - f) * inner_slope);
}

Value silu_slope(Value x) {
  const Value s = unary(Op::kSigmoid, x);
  return s * (x * (1.0 - s) + 1.0);
}

// The cotangent of x in y = op(x).
Value pull_back_unary(Op op, Value g, Value x, Value y) {
  switch (op) {
    case Op::kNeg:
      return -g;
    case Op::kAbs:
      return g * unary(Op::kSign, x);
    case Op::kExp:
      return g * y;
    case Op::kExp2:
      return g * y * kLn2;
    case Op::kExpm1:
      return g * (y + 1.0);
    case Op::kLog:
      return g / x;
    case Op::kLog2:
      return g / (x * kLn2);
    case Op::kLog1p:
      return g / (x + 1.0);
    case Op::kSqrt:
      return g / (y * 2.0);
    case Op::kRsqrt:
      return g * -0.5 * (y * y * y);
    case Op::kSin:
      return g * unary(Op::kCos, x);
    case Op::kCos:
      return g * -unary(Op::kSin, x);
    case Op::kAtan:
      return g / (x * x + 1.0);
    case Op::kTanh:
      return g * (1.0 - y * y);
    case Op::kSigmoid:
      return g * ((1.0 - y) * y);
    case Op::kErf:
      return g * (unary(Op::kExp, -(x * x)) * kTwoBySqrtPi);
    case Op::kRelu:
      return only_if(binary(Op::kGt, x, number(x.graph, 0)), g);
    case Op::kGelu:
      return g * gelu_slope(x, y);
    case Op::kGeluTanh:
      return g * gelu_tanh_slope(x, y);
    case Op::kSilu:
      return g * silu_slope(x);
    case Op::kSoftplus:
      return g * unary(Op::kSigmoid, x);
    default:
      return {g.graph, kNoNode};
  }
}

// The cotangent is g for the winner, 0 for the loser, g / 2 for both in a tie. `loses`: the
// comparison under which this side loses.
Value pull_back_extremum(Op loses, Value g, Value self, Value other) {
  const Value tied = choose(binary(Op::kEq, self, other), g * 0.5, g);
  return not_if(binary(loses, self, other), tied);
}

Value pull_back_base(Value g, Value base, Value exponent) {
  const Value slope = exponent * binary(Op::kPow, base, exponent - 1.0);
  return not_if(binary(Op::kEq, exponent, number(g.graph, 0)), g * slope);
}

Value pull_back_exponent(Value g, Value base, Value exponent, Value power) {
  const Value zero = number(g.graph, 0);
  const Value flat = binary(Op::kAnd, binary(Op::kEq, base, zero), binary(Op::kGe, exponent, zero));
  return not_if(flat, g * (power * unary(Op::kLog, base)));
}

// The cotangent of the first or the second argument of y = op(a, b).
Value pull_back_binary(Op op, Value g, Value a, Value b, Value y, bool second) {
  switch (op) {
    case Op::kAdd:
      return g;
    case Op::kSub:
      return second ? -g : g;
    case Op::kMul:
      return g * (second ? a : b);
    case Op::kDiv:
      return second ? -g * (y / b) : g / b;
    case Op::kMod:
      return second ? -g * binary(Op::kFloorDiv, a, b) : g;
    case Op::kPow:
      return second ? pull_back_exponent(g, a, b, y) : pull_back_base(g, a, b);
    case Op::kMin:
      return second ? pull_back_extremum(Op::kGt, g, b, a) : pull_back_extremum(Op::kGt, g, a, b);
    case Op::kMax:
      return second ? pull_back_extremum(Op::kLt, g, b, a) : pull_back_extremum(Op::kLt, g, a, b);
    default:
      return {g.graph, kNoNode};
  }
}

Value pull_back_clamp(Value g, Value x, Value low, Value high, std::size_t arg) {
  const auto both = [](Value p, Value q) { return binary(Op::kAnd, p, q); };
  switch (arg) {
    case 0:
      return only_if(both(binary(Op::kGe, x, low), binary(Op::kLe, x, high)), g);
    case 1:
      return only_if(both(binary(Op::kLt, low, high), binary(Op::kLt, x, low)), g);
    default:
      return only_if(binary(Op::kOr, binary(Op::kGt, x, high), binary(Op::kLt, high, low)), g);
  }
}

}  // namespace

bool is_differentiable(const Graph& graph, NodeId id, std::size_t arg) {
  const Op op = graph[id].op;
  if (graph[id].type != ValueType::kFloat) return false;
  if (graph[graph.arg(id, arg)].type != ValueType::kFloat) return false;
  switch (op) {
    case Op::kSign:
    case Op::kFloor:
    case Op::kCeil:
    case Op::kRound:
    case Op::kTrunc:
    case Op::kFloorDiv:
      return false;
    default:
      return true;
  }
}

std::array<NodeId, 3> pull_back(Graph& graph, NodeId id, NodeId cotangent,
                                const std::array<bool, 3>& wanted) {
  const Op op = graph[id].op;
  const std::size_t count = graph[id].arg_count;
  std::array<Value, 3> x;
  for (std::size_t i = 0; i < count; ++i) x[i] = {&graph, graph.arg(id, i)};
  const Value g{&graph, cotangent}, y{&graph, id};
  std::array<NodeId, 3> result = {kNoNode, kNoNode, kNoNode};
  for (std::size_t i = 0; i < count; ++i) {
    if (!wanted[i]) continue;
    if (op == Op::kWhere) {
      result[i] = (i == 1 ? only_if(x[0], g) : not_if(x[0], g)).id;
    } else if (op == Op::kClamp) {
      result[i] = pull_back_clamp(g, x[0], x[1], x[2], i).id;
    } else if (count == 2) {
      result[i] = pull_back_binary(op, g, x[0], x[1], y, i == 1).id;
    } else {
      result[i] = pull_back_unary(op, g, x[0], y).id;
    }
  }
  return result;
}

}  // namespace quire::formula

// An evaluation of a formula in f32, as an f32 program may do it: basic operations in plain float
// code, functions rounded from f64 and then moved by a random number of ulps. What the error bounds
// of reference/ must hold for. Tests only.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "formula/type_rules.h"
#include "reference/arithmetic.h"
#include "reference/evaluate.h"

namespace quire::testing {

class PlainFloat {
 public:
  struct Value {
    std::int64_t i = 0;
    float f = 0;
  };

  /// Functions are moved by up to `ulps` (a whole number) on top of the rounding.
  PlainFloat(const reference::Evaluator& structure, std::uint64_t seed, int ulps)
      : structure_(structure), values_(structure.graph().size()), random_(seed), ulps_(ulps) {}

  void run(const reference::Point& point) {
    for (const formula::NodeId id : structure_.nodes())
      values_[static_cast<std::size_t>(id)] = compute(id, point);
  }
  const Value& operator[](formula::NodeId id) const {
    return values_[static_cast<std::size_t>(id)];
  }

 private:
  using Node = formula::Node;
  using NodeId = formula::NodeId;

  static Value of_int(std::int64_t i) { return {i, 0}; }
  static Value of_float(float f) { return {0, f}; }

  const formula::Graph& graph() const { return structure_.graph(); }
  Value arg(NodeId id, std::size_t i) const { return (*this)[graph().arg(id, i)]; }
  bool truth(NodeId id) const {
    return graph()[id].type == ValueType::kFloat ? (*this)[id].f != 0 : (*this)[id].i != 0;
  }

  Value compute(NodeId id, const reference::Point& point) {
    const Node& node = graph()[id];
    const auto args = graph().args(id);
    switch (node.op) {
      case Op::kScore:
        return of_float(static_cast<float>(point.score));
      case Op::kBatch:
        return of_int(point.b);
      case Op::kHead:
        return of_int(point.h);
      case Op::kQIdx:
        return of_int(point.q_idx);
      case Op::kKvIdx:
        return of_int(point.kv_idx);
      case Op::kIntConst:
      case Op::kBoolConst:
        return of_int(node.bits);
      case Op::kFloatConst:
        return of_float(static_cast<float>(node.float_value()));
      case Op::kToInt:
        return of_int(graph()[args[0]].type == ValueType::kFloat
                          ? reference::float_to_int(arg(id, 0).f)
                          : arg(id, 0).i);
      case Op::kToFloat:
        return of_float(static_cast<float>(arg(id, 0).i));
      case Op::kToBool:
        return of_int(truth(args[0]));
      case Op::kNot:
        return of_int(!truth(args[0]));
      case Op::kAnd:
        return of_int(truth(args[0]) && truth(args[1]));
      case Op::kOr:
        return of_int(truth(args[0]) || truth(args[1]));
      case Op::kXor:
        return of_int(truth(args[0]) != truth(args[1]));
      case Op::kWhere:
        return (*this)[truth(args[0]) ? args[1] : args[2]];
      case Op::kLoad:
      case Op::kSum:
      case Op::kDot:
        return read(id);
      default:
        return numeric(id);
    }
  }

  Value numeric(NodeId id) {
    const Node& node = graph()[id];
    const Value a = arg(id, 0);
    const bool is_float = graph()[graph().arg(id, 0)].type == ValueType::kFloat;
    const std::size_t count = graph().args(id).size();
    if (node.op == Op::kClamp) {
      if (is_float)
        return of_float(binary(Op::kMin, binary(Op::kMax, a.f, arg(id, 1).f), arg(id, 2).f));
      return of_int(std::min(std::max(a.i, arg(id, 1).i), arg(id, 2).i));
    }
    if (count == 1)
      return is_float ? of_float(unary(node.op, a.f)) : of_int(reference::int_unary(node.op, a.i));
    const Value b = arg(id, 1);
    if (formula::is_compare(node.op))
      return of_int(is_float ? reference::compare(node.op, double{a.f}, double{b.f})
                             : reference::compare(node.op, a.i, b.i));
    return is_float ? of_float(binary(node.op, a.f, b.f))
                    : of_int(reference::int_binary(node.op, a.i, b.i));
  }

  float moved(double exact) {
    float y = static_cast<float>(exact);
    if (!std::isfinite(y) || y == 0) return y;
    const int steps =
        static_cast<int>(random_() % static_cast<std::uint64_t>(2 * ulps_ + 1)) - ulps_;
    const float to = steps > 0 ? std::numeric_limits<float>::infinity()
                               : -std::numeric_limits<float>::infinity();
    for (int i = 0; i < std::abs(steps); ++i) y = std::nextafter(y, to);
    return y;
  }

  float unary(Op op, float x) {
    switch (op) {
      case Op::kNeg:
        return -x;
      case Op::kAbs:
        return std::abs(x);
      case Op::kSign:
        return x > 0 ? 1.f : x < 0 ? -1.f : x;
      case Op::kFloor:
        return std::floor(x);
      case Op::kCeil:
        return std::ceil(x);
      case Op::kRound:
        return std::nearbyint(x);
      case Op::kTrunc:
        return std::trunc(x);
      case Op::kSqrt:
        return std::sqrt(x);
      case Op::kRelu:
        return x < 0 ? 0.f : x;
      default:
        return moved(reference::float_unary(op, x));
    }
  }

  float binary(Op op, float a, float b) {
    const bool nan = std::isnan(a) || std::isnan(b);
    switch (op) {
      case Op::kAdd:
        return a + b;
      case Op::kSub:
        return a - b;
      case Op::kMul:
        return a * b;
      case Op::kDiv:
        return a / b;
      case Op::kMin:
        return nan ? a + b : b < a ? b : a;
      case Op::kMax:
        return nan ? a + b : b > a ? b : a;
      case Op::kMod: {
        const float rest = std::fmod(a, b);
        return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
      }
      case Op::kFloorDiv: {
        if (b == 0) return a / b;
        const float rest = std::fmod(a, b);
        float quotient = (a - rest) / b;
        if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
        const float down = std::floor(quotient);
        return quotient - down > 0.5f ? down + 1 : down;
      }
      default:
        return moved(std::pow(static_cast<double>(a), static_cast<double>(b)));
    }
  }

  Value read(NodeId id) const {
    const Node& node = graph()[id];
    const ConstTensorView& a = graph().buffer(node.buffers[0]).view();
    const reference::BufferIndex at = place(id, 0);
    const reference::BufferIndex at_other = node.op == Op::kDot ? place(id, 1) : at;
    Value sum;
    const std::int64_t count = at.nowhere || at_other.nowhere
                                   ? 0
                                   : reference::trailing_count(a.shape(), at.indices.rank());
    for (std::int64_t k = 0; k < count; ++k) {
      const Shape in_a = reference::with_trailing(a.shape(), at.indices, k);
      if (node.op != Op::kDot) {
        if (node.type == ValueType::kFloat)
          sum.f = node.op == Op::kSum ? sum.f + number(a, in_a) : number(a, in_a);
        else
          sum.i = reference::int_binary(Op::kAdd, sum.i, a.load_int(in_a));
        continue;
      }
      const ConstTensorView& b = graph().buffer(node.buffers[1]).view();
      const Shape in_b = reference::with_trailing(b.shape(), at_other.indices, k);
      if (node.type == ValueType::kFloat)
        sum.f = std::fma(number(a, in_a), number(b, in_b), sum.f);
      else
        sum.i = reference::int_binary(
            Op::kAdd, sum.i, reference::int_binary(Op::kMul, a.load_int(in_a), b.load_int(in_b)));
    }
    return sum;
  }

  static float number(const ConstTensorView& view, const Shape& indices) {
    return is_floating(view.dtype()) ? static_cast<float>(view.load_float(indices))
                                     : static_cast<float>(view.load_int(indices));
  }

  reference::BufferIndex place(NodeId id, std::size_t which) const {
    const Node& node = graph()[id];
    const auto args = graph().args(id);
    const std::size_t split = node.op == Op::kDot ? node.split : args.size();
    const auto own = which == 0 ? args.first(split) : args.subspan(split);
    Shape given;
    for (const NodeId index : own) given.push_back((*this)[index].i);
    return reference::buffer_index(graph().buffer(node.buffers[which]).shape(), given);
  }

  const reference::Evaluator& structure_;
  std::vector<Value> values_;
  std::mt19937_64 random_;
  int ulps_;
};

}  // namespace quire::testing

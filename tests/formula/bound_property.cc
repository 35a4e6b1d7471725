// Bounds of random formulas over random rectangles: every value of every node at every point lies
// in its interval, in f64 as the reference evaluates and in f32 with functions that are off by as
// much as interval_rules.h allows. Comparisons of affine ints are decided exactly.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>

#include "formula/bound/bound.h"
#include "formula/bound/float_grid.h"
#include "formula/build.h"
#include "formula/graph.h"
#include "formula/type_rules.h"
#include "reference/arithmetic.h"
#include "reference/buffer_index.h"
#include "reference/evaluate.h"
#include "tests/support/random_formula.h"

namespace quire::formula {
namespace {

using reference::Point;
using reference::Value;
using testing::below;
using testing::chance;
using testing::RandomFormula;

RandomFormula formula_of(std::mt19937_64& random) {
  constexpr std::array<ValueType, 3> kTypes = {ValueType::kFloat, ValueType::kInt,
                                               ValueType::kBool};
  const ValueType type = kTypes[random() % 3];
  return testing::random_formula(random, type,
                                 {.nodes = 1 + static_cast<int>(below(random, 30)),
                                  .faults = chance(random, 30),
                                  .extremes = chance(random, 40),
                                  .strided = chance(random, 50)});
}

// A few consecutive indices, mostly inside the extent, now and then outside or negative.
IndexRange range_of(std::mt19937_64& random, std::int64_t extent, std::int64_t most) {
  const std::int64_t first = chance(random, 90) ? below(random, extent) : below(random, 600) - 300;
  return {first, first + below(random, most)};
}

Rectangle rectangle_of(std::mt19937_64& random) {
  const testing::Extents e;
  return {range_of(random, e.b, 2), range_of(random, e.h, 2), range_of(random, e.q, 6),
          range_of(random, e.kv, 6)};
}

double score_of(std::mt19937_64& random) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr std::array<double, 6> kSpecial = {
      0.0, -0.0, kInf, -kInf, std::numeric_limits<double>::quiet_NaN(), 1e30};
  if (chance(random, 30)) return kSpecial[random() % kSpecial.size()];
  return static_cast<double>(below(random, 2'000'001) - 1'000'000) / 65536.0;
}

template <class Visit>
void for_points(const Rectangle& r, std::mt19937_64& random, Visit visit) {
  for (std::int64_t b = r.b.first; b <= r.b.last; ++b)
    for (std::int64_t h = r.h.first; h <= r.h.last; ++h)
      for (std::int64_t q = r.q.first; q <= r.q.last; ++q)
        for (std::int64_t kv = r.kv.first; kv <= r.kv.last; ++kv)
          visit(Point{.b = b, .h = h, .q_idx = q, .kv_idx = kv, .score = score_of(random)});
}

bool contains(const Interval& interval, const Value& value) {
  if (interval.type != value.type) return false;
  switch (value.type) {
    case ValueType::kInt:
      return interval.contains_int(value.i);
    case ValueType::kFloat:
      return interval.contains_float(value.f);
    case ValueType::kBool:
      break;
  }
  return interval.contains_bool(value.i != 0);
}

// `values[id]` is the value of node `id`.
template <class Values>
void check_nodes(const Graph& graph, const std::vector<Interval>& bounds, const Values& values,
                 const Point& point, const char* what) {
  for (NodeId id = 0; id < static_cast<NodeId>(graph.size()); ++id) {
    const Interval& bound = bounds[static_cast<std::size_t>(id)];
    const Value& value = values[id];
    if (contains(bound, value)) continue;
    RC_LOG() << what << ": node " << id << " of " << Formula(graph, id).to_string()
             << "\nat b=" << point.b << " h=" << point.h << " q_idx=" << point.q_idx
             << " kv_idx=" << point.kv_idx << " score=" << point.score << " is " << value.number();
    if (bound.type == ValueType::kInt)
      RC_LOG() << ", not in " << bound.int_lo << ".." << bound.int_hi << "\n";
    if (bound.type == ValueType::kFloat)
      RC_LOG() << ", not in " << bound.float_lo << ".." << bound.float_hi << "\n";
    RC_FAIL("outside its interval");
  }
}

RC_GTEST_PROP(BoundProperty, HoldsTheReference, ()) {
  std::mt19937_64 random(*rc::gen::noShrink(rc::gen::arbitrary<std::uint64_t>()));
  const RandomFormula made = formula_of(random);
  const Rectangle rectangle = rectangle_of(random);
  const Graph& graph = made.formula.graph();
  const Bounder with(made.formula, Precision::kF64);
  const Bounder without(made.formula, Precision::kF64, {.read_buffers = false});
  std::vector<Interval> bounds(with.size()), whatever(with.size());
  with.bound_all(rectangle, bounds);
  without.bound_all(rectangle, whatever);
  reference::Evaluator evaluator(made.formula);
  for_points(rectangle, random, [&](const Point& point) {
    evaluator.run(point);
    check_nodes(graph, bounds, evaluator, point, "f64");
    check_nodes(graph, whatever, evaluator, point, "f64, any contents");
  });
}

// ---- f32

float python_mod(float a, float b) {
  const float r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

float python_floor_div(float a, float b) {
  if (b == 0) return a / b;
  const float r = std::fmod(a, b);
  float q = (a - r) / b;
  if (r != 0 && (r < 0) != (b < 0)) q -= 1;
  const float down = std::floor(q);
  return q - down > 0.5f ? down + 1 : down;
}

// Evaluates in f32, node by node, with functions as inexact as they may be.
class NoisyF32 {
 public:
  NoisyF32(const Graph& graph, std::mt19937_64& random)
      : graph_(graph), random_(random), values_(graph.size()) {}

  const Value& operator[](NodeId id) const { return values_[static_cast<std::size_t>(id)]; }

  void run(const Point& point) {
    for (NodeId id = 0; id < static_cast<NodeId>(graph_.size()); ++id)
      values_[static_cast<std::size_t>(id)] = compute(id, point);
  }

 private:
  const Value& arg(NodeId id, std::size_t i) const { return (*this)[graph_.arg(id, i)]; }
  float real(NodeId id, std::size_t i) const { return static_cast<float>(arg(id, i).f); }

  Value compute(NodeId id, const Point& point) {
    const Node& node = graph_[id];
    switch (node.op) {
      case Op::kScore:
        return Value::of_float(static_cast<float>(point.score));
      case Op::kBatch:
        return Value::of_int(point.b);
      case Op::kHead:
        return Value::of_int(point.h);
      case Op::kQIdx:
        return Value::of_int(point.q_idx);
      case Op::kKvIdx:
        return Value::of_int(point.kv_idx);
      case Op::kIntConst:
        return Value::of_int(node.bits);
      case Op::kFloatConst:
        return Value::of_float(static_cast<float>(node.float_value()));
      case Op::kBoolConst:
        return Value::of_bool(node.bits != 0);
      case Op::kToInt:
        return Value::of_int(arg(id, 0).type == ValueType::kFloat
                                 ? reference::float_to_int(arg(id, 0).f)
                                 : arg(id, 0).i);
      case Op::kToFloat:
        return Value::of_float(static_cast<float>(arg(id, 0).i));
      case Op::kToBool:
        return Value::of_bool(arg(id, 0).truth());
      case Op::kNot:
        return Value::of_bool(!arg(id, 0).truth());
      case Op::kAnd:
        return Value::of_bool(arg(id, 0).truth() && arg(id, 1).truth());
      case Op::kOr:
        return Value::of_bool(arg(id, 0).truth() || arg(id, 1).truth());
      case Op::kXor:
        return Value::of_bool(arg(id, 0).truth() != arg(id, 1).truth());
      case Op::kWhere:
        return arg(id, arg(id, 0).truth() ? 1 : 2);
      case Op::kLoad:
      case Op::kSum:
      case Op::kDot:
        return read(id);
      default:
        break;
    }
    return arg(id, 0).type == ValueType::kFloat ? float_operation(id) : int_operation(id);
  }

  Value int_operation(NodeId id) const {
    const Op op = graph_[id].op;
    const std::int64_t a = arg(id, 0).i;
    if (graph_[id].arg_count == 1) return Value::of_int(reference::int_unary(op, a));
    const std::int64_t b = arg(id, 1).i;
    if (is_compare(op)) return Value::of_bool(reference::compare(op, a, b));
    if (op == Op::kClamp)
      return Value::of_int(
          reference::int_binary(Op::kMin, reference::int_binary(Op::kMax, a, b), arg(id, 2).i));
    return Value::of_int(reference::int_binary(op, a, b));
  }

  Value float_operation(NodeId id) {
    const Op op = graph_[id].op;
    const float a = real(id, 0);
    if (graph_[id].arg_count == 1) return Value::of_float(function(op, a));
    const float b = real(id, 1);
    if (is_compare(op)) return Value::of_bool(reference::compare(op, double{a}, double{b}));
    if (op == Op::kClamp)
      return Value::of_float(
          reference::float_binary(Op::kMin, reference::float_binary(Op::kMax, a, b), arg(id, 2).f));
    switch (op) {
      case Op::kAdd:
        return Value::of_float(a + b);
      case Op::kSub:
        return Value::of_float(a - b);
      case Op::kMul:
        return Value::of_float(a * b);
      case Op::kDiv:
        return Value::of_float(a / b);
      case Op::kFloorDiv:
        return Value::of_float(python_floor_div(a, b));
      case Op::kMod:
        return Value::of_float(python_mod(a, b));
      case Op::kPow:
        return Value::of_float(off_by_ulps(static_cast<float>(reference::float_binary(op, a, b))));
      default:
        return Value::of_float(reference::float_binary(op, a, b));
    }
  }

  // A number in -most..most, often one of the ends.
  double noise(double most) { return most * static_cast<double>(below(random_, 3) - 1); }

  double off_by_ulps(float x) {
    if (!std::isfinite(x)) return x;
    return step(x, static_cast<int>(below(random_, 9)) - 4, Precision::kF32);
  }

  float function(Op op, float x) {
    const auto exact = static_cast<float>(reference::float_unary(op, x));
    if (!is_float_function(op) || op == Op::kRelu || op == Op::kSqrt || !std::isfinite(exact))
      return exact;
    if (op == Op::kSin || op == Op::kCos) return exact + static_cast<float>(noise(0x1p-22));
    double off = off_by_ulps(exact);
    if (op == Op::kGelu || op == Op::kGeluTanh || op == Op::kSilu) off += noise(0x1p-20 * x);
    if (op == Op::kTanh || op == Op::kErf) off = std::clamp(off, -1.0, 1.0);
    if (op == Op::kSigmoid) off = std::clamp(off, 0.0, 1.0);
    if (op == Op::kExp || op == Op::kExp2 || op == Op::kSoftplus) off = std::max(off, 0.0);
    return static_cast<float>(off);
  }

  struct Slice {
    const ConstTensorView& view;
    reference::BufferIndex at;

    float real(std::int64_t k) const {
      const Shape indices = reference::with_trailing(view.shape(), at.indices, k);
      return is_floating(view.dtype()) ? static_cast<float>(view.load_float(indices))
                                       : static_cast<float>(view.load_int(indices));
    }
    std::int64_t integer(std::int64_t k) const {
      return view.load_int(reference::with_trailing(view.shape(), at.indices, k));
    }
  };

  Slice slice(std::int32_t buffer, std::span<const NodeId> ids) const {
    const ConstTensorView& view = graph_.buffer(buffer).view();
    Shape given;
    for (const NodeId index : ids) given.push_back((*this)[index].i);
    return {view, reference::buffer_index(view.shape(), given)};
  }

  Value read(NodeId id) const {
    const Node& node = graph_[id];
    const auto args = graph_.args(id);
    const bool is_dot = node.op == Op::kDot;
    const std::size_t split = is_dot ? node.split : args.size();
    const Slice a = slice(node.buffers[0], args.first(split));
    const Slice b = is_dot ? slice(node.buffers[1], args.subspan(split)) : a;
    const std::int64_t count =
        a.at.nowhere || b.at.nowhere ? 0 : reference::trailing_count(a.view.shape(), split);
    float real = 0;
    std::int64_t integer = 0;
    for (std::int64_t k = 0; k < count; ++k) {
      if (node.type == ValueType::kFloat) {
        real = is_dot ? std::fma(a.real(k), b.real(k), real) : real + a.real(k);
      } else {
        const std::int64_t x =
            is_dot ? reference::int_binary(Op::kMul, a.integer(k), b.integer(k)) : a.integer(k);
        integer = reference::int_binary(Op::kAdd, integer, x);
      }
    }
    return node.type == ValueType::kFloat ? Value::of_float(real) : Value::of_int(integer);
  }

  const Graph& graph_;
  std::mt19937_64& random_;
  std::vector<Value> values_;
};

RC_GTEST_PROP(BoundProperty, HoldsInexactF32, ()) {
  std::mt19937_64 random(*rc::gen::noShrink(rc::gen::arbitrary<std::uint64_t>()));
  const RandomFormula made = formula_of(random);
  const Rectangle rectangle = rectangle_of(random);
  const Graph& graph = made.formula.graph();
  const Bounder bounder(made.formula, Precision::kF32);
  std::vector<Interval> bounds(bounder.size());
  bounder.bound_all(rectangle, bounds);
  NoisyF32 evaluator(graph, random);
  for_points(rectangle, random, [&](const Point& point) {
    evaluator.run(point);
    check_nodes(graph, bounds, evaluator, point, "f32");
  });
}

// ---- affine ints

NodeId affine_of(std::mt19937_64& random, Graph& graph) {
  constexpr std::array kLeaves = {Op::kBatch, Op::kHead, Op::kQIdx, Op::kKvIdx};
  NodeId x = make_int(graph, below(random, 21) - 10);
  for (std::int64_t i = below(random, 5); i >= 0; --i) {
    NodeId term = make_leaf(graph, kLeaves[random() % kLeaves.size()]);
    if (chance(random, 50))
      term = make_binary(graph, Op::kMul, term, make_int(graph, below(random, 7) - 3));
    x = make_binary(graph, chance(random, 50) ? Op::kAdd : Op::kSub, x, term);
  }
  return x;
}

RC_GTEST_PROP(BoundProperty, DecidesAffineComparisons, ()) {
  std::mt19937_64 random(*rc::gen::noShrink(rc::gen::arbitrary<std::uint64_t>()));
  constexpr std::array kCompare = {Op::kLt, Op::kLe, Op::kGt, Op::kGe};
  Graph graph;
  const NodeId a = affine_of(random, graph), b = affine_of(random, graph);
  const Formula formula(graph, make_binary(graph, kCompare[random() % 4], a, b));
  const Bounder bounder(formula, Precision::kF32);
  std::vector<Interval> scratch = bounder.make_scratch();
  const Rectangle rectangle = rectangle_of(random);
  reference::Evaluator evaluator(formula);
  bool can_be_false = false, can_be_true = false;
  for_points(rectangle, random, [&](const Point& point) {
    (evaluator.run(point).truth() ? can_be_true : can_be_false) = true;
  });
  const Tri want = !can_be_false ? Tri::kTrue : !can_be_true ? Tri::kFalse : Tri::kUnknown;
  if (bounder.classify(rectangle, scratch) != want) {
    RC_LOG() << formula.to_string() << "\n";
    RC_FAIL("not decided");
  }
}

}  // namespace
}  // namespace quire::formula

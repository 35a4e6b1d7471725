// Turns a formula into a list of steps, one per node, and precomputes everything that does not
// depend on the rectangle. A query is one loop over the steps. Formula layer.
#include "formula/bound/bound.h"

#include <array>
#include <cassert>

#include "formula/bound/affine.h"
#include "formula/bound/bound_buffer.h"
#include "formula/bound/float_grid.h"
#include "formula/bound/interval_rules.h"
#include "formula/type_rules.h"

namespace quire::formula {
namespace {

// Which function bounds a node.
enum class Rule : std::uint8_t {
  kFixed,  // the same in every rectangle
  kBatch,
  kHead,
  kQuery,
  kKey,
  kAffine,         // the range of an affine form
  kAffineCompare,  // two affine ints that share a coordinate: the sign of their difference
  kIntUnary,
  kIntBinary,
  kFloatUnary,
  kFloatBinary,
  kCompare,
  kLogic,
  kNot,
  kCast,
  kWhere,
  kClamp,
  kRead,
};

struct Step {
  Rule rule = Rule::kFixed;
  Op op = Op::kIntConst;
  ValueType type = ValueType::kInt;
  bool same = false;                       // both arguments are the same node
  std::array<NodeId, 3> args = {0, 0, 0};  // unused by kRead
  std::int32_t form = -1;                  // kAffine, kAffineCompare
};

Rule rule_of(const Graph& graph, NodeId id) {
  const Node& node = graph[id];
  const bool is_int = node.type == ValueType::kInt;
  switch (node.op) {
    case Op::kScore:
    case Op::kIntConst:
    case Op::kFloatConst:
    case Op::kBoolConst:
      return Rule::kFixed;
    case Op::kBatch:
      return Rule::kBatch;
    case Op::kHead:
      return Rule::kHead;
    case Op::kQIdx:
      return Rule::kQuery;
    case Op::kKvIdx:
      return Rule::kKey;
    case Op::kToInt:
    case Op::kToFloat:
    case Op::kToBool:
      return Rule::kCast;
    case Op::kNot:
      return Rule::kNot;
    case Op::kAnd:
    case Op::kOr:
    case Op::kXor:
      return Rule::kLogic;
    case Op::kWhere:
      return Rule::kWhere;
    case Op::kClamp:
      return Rule::kClamp;
    case Op::kLoad:
    case Op::kSum:
    case Op::kDot:
      return Rule::kRead;
    default:
      break;
  }
  if (is_compare(node.op)) return Rule::kCompare;
  if (node.arg_count == 1) return is_int ? Rule::kIntUnary : Rule::kFloatUnary;
  return is_int ? Rule::kIntBinary : Rule::kFloatBinary;
}

Interval constant(const Node& node, Precision precision) {
  switch (node.op) {
    case Op::kIntConst:
      return Interval::ints(node.bits, node.bits);
    case Op::kBoolConst:
      return Interval::bools(node.bits == 0, node.bits != 0);
    case Op::kFloatConst: {
      const double value = round_to(node.float_value(), precision);
      return value != value ? Interval::any_float() : Interval::floats(value, value);
    }
    default:
      return Interval::any_float();  // the score
  }
}

Interval compare_to_zero(Op op, const Interval& difference) {
  return bound_compare(op, difference, Interval::ints(0, 0), false);
}

}  // namespace

struct Bounder::Program {
  Formula formula;  // keeps the graph alive
  Precision precision;
  std::vector<Step> steps;
  std::vector<Interval> fixed;  // of the steps that are kFixed
  std::vector<AffineForm> forms;
  std::vector<BufferBounds> buffers;

  Program(const Formula& source, Precision score_precision, BoundOptions options);
  void use_affine_forms();
  void settle_fixed();
  bool varies(NodeId id) const;
  Interval evaluate(NodeId id, const Step& step, const Rectangle& rectangle,
                    std::span<const Interval> values) const;
  Interval read(NodeId id, std::span<const Interval> values) const;
};

Bounder::Program::Program(const Formula& source, Precision score_precision, BoundOptions options)
    : formula(source), precision(score_precision) {
  const Graph& graph = formula.graph();
  for (const Buffer& buffer : graph.buffers())
    buffers.emplace_back(buffer, precision, options.read_buffers);
  steps.resize(graph.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    const auto args = graph.args(id);
    Step& step = steps[i];
    step.rule = rule_of(graph, id);
    step.op = graph[id].op;
    step.type = graph[id].type;
    if (step.rule == Rule::kRead) {
      const std::size_t split = graph[id].split;
      step.same = step.op == Op::kDot && graph[id].buffers[0] == graph[id].buffers[1] &&
                  std::equal(args.begin(), args.begin() + split, args.begin() + split, args.end());
    } else {
      std::copy(args.begin(), args.end(), step.args.begin());
      step.same = args.size() == 2 && args[0] == args[1];
    }
  }
  use_affine_forms();
  settle_fixed();
}

// Affine ints take their range from the form; comparisons of two of them that share a coordinate
// take theirs from the difference, since intervals would treat the two sides as independent.
void Bounder::Program::use_affine_forms() {
  const std::vector<AffineForm> found = affine_forms(formula.graph());
  const auto form_of = [&](NodeId id) -> const AffineForm& { return found[id]; };
  const auto use = [&](Step& step, Rule rule, const AffineForm& form) {
    step.rule = rule;
    step.form = static_cast<std::int32_t>(forms.size());
    forms.push_back(form);
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    if (step.rule == Rule::kCompare) {
      const AffineForm &a = form_of(step.args[0]), &b = form_of(step.args[1]);
      if (!a.is_exact() || !b.is_exact() || !share_coordinate(a, b)) continue;
      if (const auto d = exact_difference(a, b)) use(step, Rule::kAffineCompare, *d);
    } else if (found[i].is_exact() && step.rule > Rule::kKey) {
      use(step, Rule::kAffine, found[i]);
    }
  }
}

// Whether a node's interval depends on the rectangle, given which of its arguments' intervals do.
bool Bounder::Program::varies(NodeId id) const {
  const Step& step = steps[id];
  if (step.rule == Rule::kFixed) return false;
  if (step.rule <= Rule::kKey) return true;
  const Node& node = formula.graph()[id];
  if (step.rule == Rule::kRead) {
    bool known = true;
    for (const std::int32_t buffer : node.buffers)
      known &= buffer < 0 || buffers[buffer].is_constant();
    if (known) return false;
  }
  for (const NodeId arg : formula.graph().args(id))
    if (steps[arg].rule != Rule::kFixed) return true;
  return false;
}

void Bounder::Program::settle_fixed() {
  const Graph& graph = formula.graph();
  const Rectangle nowhere = {{0, 0}, {0, 0}, {0, 0}, {0, 0}};
  fixed.resize(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    if (varies(id)) continue;
    fixed[i] = steps[i].rule == Rule::kFixed ? constant(graph[id], precision)
                                             : evaluate(id, steps[i], nowhere, fixed);
    steps[i].rule = Rule::kFixed;
  }
}

Interval Bounder::Program::read(NodeId id, std::span<const Interval> values) const {
  const Node& node = formula.graph()[id];
  const auto args = formula.graph().args(id);
  const auto elements = [&](std::int32_t buffer, std::span<const NodeId> ids) {
    std::array<Interval, kMaxRank> indices;
    for (std::size_t i = 0; i < ids.size(); ++i) indices[i] = values[ids[i]];
    return buffers[buffer].elements({indices.data(), ids.size()});
  };
  if (node.op == Op::kLoad) return elements(node.buffers[0], args);
  const std::size_t leading = node.op == Op::kDot ? node.split : args.size();
  const std::int64_t count = buffers[node.buffers[0]].trailing_count(leading);
  const Interval a = elements(node.buffers[0], args.first(leading));
  if (node.op == Op::kSum) return bound_sum(a, count, precision);
  const Interval b = elements(node.buffers[1], args.subspan(leading));
  return bound_dot(a, b, count, steps[id].same, precision);
}

Interval Bounder::Program::evaluate(NodeId id, const Step& step, const Rectangle& rectangle,
                                    std::span<const Interval> values) const {
  const auto arg = [&](std::size_t i) -> const Interval& { return values[step.args[i]]; };
  const auto coordinate = [](const IndexRange& range) {
    return Interval::ints(range.first, range.last);
  };
  switch (step.rule) {
    case Rule::kFixed:
      return fixed[id];
    case Rule::kBatch:
      return coordinate(rectangle.b);
    case Rule::kHead:
      return coordinate(rectangle.h);
    case Rule::kQuery:
      return coordinate(rectangle.q);
    case Rule::kKey:
      return coordinate(rectangle.kv);
    case Rule::kAffine:
      return affine_range(forms[step.form], rectangle);
    case Rule::kAffineCompare: {
      // The difference equals that of the computed values only if neither side wraps.
      const Interval d = affine_range(forms[step.form], rectangle);
      if (!d.is_any_int() && !arg(0).is_any_int() && !arg(1).is_any_int())
        return compare_to_zero(step.op, d);
      return bound_compare(step.op, arg(0), arg(1), step.same);
    }
    case Rule::kIntUnary:
      return bound_int_unary(step.op, arg(0));
    case Rule::kIntBinary:
      return bound_int_binary(step.op, arg(0), arg(1), step.same);
    case Rule::kFloatUnary:
      return bound_float_unary(step.op, arg(0), precision);
    case Rule::kFloatBinary:
      return bound_float_binary(step.op, arg(0), arg(1), step.same, precision);
    case Rule::kCompare:
      return bound_compare(step.op, arg(0), arg(1), step.same);
    case Rule::kLogic:
      return bound_logic(step.op, arg(0), arg(1));
    case Rule::kNot:
      return bound_not(arg(0));
    case Rule::kCast:
      return bound_cast(arg(0), step.type, precision);
    case Rule::kWhere:
      return bound_where(arg(0), arg(1), arg(2));
    case Rule::kClamp:
      return bound_clamp(arg(0), arg(1), arg(2));
    case Rule::kRead:
      break;
  }
  return read(id, values);
}

Bounder::Bounder(const Formula& formula, Precision precision, BoundOptions options)
    : program_(std::make_unique<Program>(formula, precision, options)) {}
Bounder::Bounder(Bounder&&) noexcept = default;
Bounder& Bounder::operator=(Bounder&&) noexcept = default;
Bounder::~Bounder() = default;

std::size_t Bounder::size() const { return program_->steps.size(); }

void Bounder::bound_all(const Rectangle& rectangle, std::span<Interval> out) const {
  assert(rectangle.b.first <= rectangle.b.last && rectangle.h.first <= rectangle.h.last);
  assert(rectangle.q.first <= rectangle.q.last && rectangle.kv.first <= rectangle.kv.last);
  assert(out.size() >= size());
  for (std::size_t i = 0; i < program_->steps.size(); ++i)
    out[i] = program_->evaluate(static_cast<NodeId>(i), program_->steps[i], rectangle, out);
}

Interval Bounder::bound(const Rectangle& rectangle, std::span<Interval> scratch) const {
  bound_all(rectangle, scratch);
  return scratch[program_->formula.root()];
}

Tri Bounder::classify(const Rectangle& rectangle, std::span<Interval> scratch) const {
  const Interval r = bound(rectangle, scratch);
  assert(r.type == ValueType::kBool);
  if (r.can_be_false && r.can_be_true) return Tri::kUnknown;
  return r.can_be_true ? Tri::kTrue : Tri::kFalse;
}

}  // namespace quire::formula

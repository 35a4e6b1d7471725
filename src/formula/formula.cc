// Formula, ScoreMod and MaskMod: immutable values over compact graphs. Formula layer.
#include "quire/formula.h"

#include <bit>

#include "formula/build.h"
#include "formula/graph.h"
#include "formula/text/parse.h"
#include "formula/text/print.h"
#include "quire/error.h"
#include "quire/mod.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using formula::Graph;
using formula::NodeId;

namespace {

// The formula with its root cast to `type`.
Formula cast_root(const Formula& formula, ValueType type) {
  if (formula.type() == type) return formula;
  Graph graph = formula.graph();
  const NodeId root = make_cast(graph, formula.root(), type);
  return Formula(graph, root);
}

Formula combine(Op op, const Formula& a, const Formula& b) {
  Graph graph = a.graph();
  std::vector<NodeId> map;
  const NodeId other = copy_reachable(b.graph(), b.root(), graph, map);
  return Formula(graph, make_binary(graph, op, a.root(), other));
}

Formula require_no_score(const Formula& formula) {
  for (std::size_t i = 0; i < formula.graph().size(); ++i) {
    if (formula.graph()[static_cast<NodeId>(i)].op == Op::kScore)
      fail(ErrorKind::value, "MaskMod", "a mask may not depend on the score");
  }
  return formula;
}

}  // namespace

Formula::Formula(const Graph& graph, std::int32_t root) {
  const FloatEnv float_env;
  auto own = std::make_shared<Graph>();
  std::vector<NodeId> map;
  root_ = copy_reachable(graph, root, *own, map);
  graph_ = std::move(own);
}

Formula::Formula(const ExprBase& expr) {
  const FloatEnv float_env;
  auto own = std::make_shared<Graph>();
  if (expr.graph()) {
    std::vector<NodeId> map;
    root_ = copy_reachable(*expr.graph(), expr.node(), *own, map);
  } else if (expr.literal_op() == Op::kFloatConst) {
    root_ = make_float(*own, std::bit_cast<double>(expr.literal_bits()));
  } else if (expr.literal_op() == Op::kBoolConst) {
    root_ = make_bool(*own, expr.literal_bits() != 0);
  } else {
    root_ = make_int(*own, expr.literal_bits());
  }
  graph_ = std::move(own);
}

Formula Formula::parse(std::string_view text, const NamedBuffers& buffers) {
  const FloatEnv float_env;
  return formula::parse(text, buffers);
}

std::string Formula::to_string() const {
  const FloatEnv float_env;
  return formula::print(*graph_, root_);
}

ValueType Formula::type() const { return (*graph_)[root_].type; }
std::size_t Formula::size() const { return graph_->size(); }

std::vector<Buffer> Formula::buffers() const {
  return {graph_->buffers().begin(), graph_->buffers().end()};
}

NamedBuffers Formula::named_buffers() const { return formula::printed_names(*graph_); }

Formula Formula::with_buffers(std::vector<Buffer> buffers) const {
  const FloatEnv float_env;
  const auto old = graph_->buffers();
  if (buffers.size() != old.size()) {
    fail(ErrorKind::value, "with_buffers", "the formula reads {} buffers; got {}", old.size(),
         buffers.size());
  }
  for (std::size_t i = 0; i < old.size(); ++i) {
    const Buffer &was = old[i], &is = buffers[i];
    if (is.dtype() != was.dtype() || is.shape().rank() != was.shape().rank()) {
      fail(is.dtype() != was.dtype() ? ErrorKind::type : ErrorKind::value, "with_buffers",
           "buffer '{}' must be {} of rank {}; got {} of rank {}", was.name(),
           dtype_name(was.dtype()), was.shape().rank(), dtype_name(is.dtype()), is.shape().rank());
    }
  }
  for (NodeId id = 0; id < static_cast<NodeId>(graph_->size()); ++id) {
    const formula::Node& node = (*graph_)[id];
    if (node.op != Op::kDot) continue;
    const auto at = [&](int i) { return static_cast<std::size_t>(node.buffers[i]); };
    formula::check_dot(buffers[at(0)], node.split, buffers[at(1)],
                       std::size_t{node.arg_count} - node.split);
  }
  auto own = std::make_shared<Graph>(*graph_);
  own->replace_buffers(std::move(buffers));
  return Formula(std::move(own), root_);
}

bool operator==(const Formula& a, const Formula& b) {
  const Graph &x = a.graph(), &y = b.graph();
  if (a.root_ != b.root_ || x.size() != y.size() || x.buffers().size() != y.buffers().size())
    return false;
  for (std::size_t i = 0; i < x.buffers().size(); ++i)
    if (!x.buffers()[i].is_same(y.buffers()[i])) return false;
  for (NodeId id = 0; id < static_cast<NodeId>(x.size()); ++id) {
    const auto p = x.args(id), q = y.args(id);
    if (x[id].op != y[id].op || x[id].type != y[id].type || x[id].bits != y[id].bits ||
        x[id].split != y[id].split || x[id].buffers != y[id].buffers ||
        !std::equal(p.begin(), p.end(), q.begin(), q.end()))
      return false;
  }
  return true;
}

ScoreMod::ScoreMod(const Formula& formula)
    : formula_(in_float_env([&] { return cast_root(formula, ValueType::kFloat); })) {}

ScoreMod ScoreMod::parse(std::string_view text, const NamedBuffers& buffers) {
  const FloatEnv float_env;
  return ScoreMod(Formula::parse(text, buffers));
}

MaskMod::MaskMod(const Formula& formula)
    : formula_(
          in_float_env([&] { return cast_root(require_no_score(formula), ValueType::kBool); })) {}

MaskMod MaskMod::parse(std::string_view text, const NamedBuffers& buffers) {
  const FloatEnv float_env;
  return MaskMod(Formula::parse(text, buffers));
}

MaskMod operator&(const MaskMod& a, const MaskMod& b) {
  const FloatEnv float_env;
  return MaskMod(combine(Op::kAnd, a.formula_, b.formula_));
}
MaskMod operator|(const MaskMod& a, const MaskMod& b) {
  const FloatEnv float_env;
  return MaskMod(combine(Op::kOr, a.formula_, b.formula_));
}
MaskMod operator~(const MaskMod& a) {
  const FloatEnv float_env;
  Graph graph = a.formula_.graph();
  const NodeId root = make_unary(graph, Op::kNot, a.formula_.root());
  return MaskMod(Formula(graph, root));
}

}  // namespace quire

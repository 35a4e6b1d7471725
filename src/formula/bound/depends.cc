// Joins the dependences of the arguments in one loop over the nodes. Affine forms give sharper
// answers for integers and for comparisons of integers. Formula layer.
#include "formula/bound/depends.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formula/bound/affine.h"
#include "formula/type_rules.h"

namespace quire::formula {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
// Two values below this have a difference that does not wrap.
constexpr double kSafe = 4611686018427387904.0;  // 2^62

Dependence join(Dependence a, Dependence b) {
  if (a == b || b == Dependence::kUniform) return a;
  return a == Dependence::kUniform ? b : Dependence::kElement;
}

Depends join(const Depends& a, const Depends& b) {
  return {.b = a.b || b.b,
          .h = a.h || b.h,
          .q = a.q || b.q,
          .kv = a.kv || b.kv,
          .score = a.score || b.score,
          .dependence = join(a.dependence, b.dependence)};
}

Depends leaf(Op op) {
  switch (op) {
    case Op::kScore:
      return {.score = true, .dependence = Dependence::kElement};
    case Op::kBatch:
      return {.b = true};
    case Op::kHead:
      return {.h = true};
    case Op::kQIdx:
      return {.q = true, .dependence = Dependence::kQuery};
    case Op::kKvIdx:
      return {.kv = true, .dependence = Dependence::kKey};
    default:
      return {};
  }
}

// Replaces the dependence on q_idx, kv_idx and score by what the form says.
void sharpen(Depends& known, const AffineForm& form) {
  known.score = false;
  known.q = form.q != 0;
  known.kv = form.kv != 0;
  known.dependence = form.is_diagonal()    ? Dependence::kDiagonal
                     : known.q && known.kv ? Dependence::kElement
                     : known.q             ? Dependence::kQuery
                     : known.kv            ? Dependence::kKey
                                           : Dependence::kUniform;
  if (form.is_exact()) {
    known.b = form.b != 0;
    known.h = form.h != 0;
  }
}

double largest_element(DType dtype) {
  switch (dtype) {
    case DType::i8:
      return 128;
    case DType::u8:
      return 255;
    case DType::i16:
      return 32768;
    case DType::i32:
      return 2147483648.0;
    case DType::boolean:
      return 1;
    default:
      return kUnbounded;
  }
}

// A bound on the absolute value of an integer; unbounded from 2^62 on, so that no value with a
// bound can have wrapped. `bounds` holds those of the arguments.
double largest_magnitude(const Graph& graph, NodeId id, const std::vector<double>& bounds) {
  const Node& node = graph[id];
  const auto of = [&](std::size_t i) { return bounds[graph.arg(id, i)]; };
  switch (node.op) {
    case Op::kBatch:
    case Op::kHead:
    case Op::kQIdx:
    case Op::kKvIdx:
      return kMaxPosition;
    case Op::kIntConst:
      return std::fabs(static_cast<double>(node.bits));
    case Op::kToInt:
      return graph[graph.arg(id, 0)].type == ValueType::kBool ? 1 : kUnbounded;
    case Op::kNeg:
    case Op::kAbs:
    case Op::kFloorDiv:
      return of(0);
    case Op::kSign:
      return 1;
    case Op::kAdd:
    case Op::kSub:
      return of(0) + of(1);
    case Op::kMul:
      return of(0) * of(1);
    case Op::kMod:
      return of(1);
    case Op::kMin:
    case Op::kMax:
      return std::max(of(0), of(1));
    case Op::kWhere:
    case Op::kClamp:
      return std::max(of(1), of(2));
    case Op::kLoad:
      return largest_element(graph.buffer(node.buffers[0]).dtype());
    default:
      return kUnbounded;
  }
}

// A comparison of integers is a function of the difference of its sides: for < and the like only if
// that does not wrap; for == and != modulo 2^64.
void sharpen_compare(const Graph& graph, NodeId id, const std::vector<AffineForm>& forms,
                     const std::vector<double>& bounds, Depends& known) {
  const std::size_t a = graph.arg(id, 0);
  const std::size_t b = graph.arg(id, 1);
  const bool ordered = graph[id].op != Op::kEq && graph[id].op != Op::kNe;
  if (ordered && std::max(bounds[a], bounds[b]) >= kSafe) return;
  const AffineForm form = difference(forms[a], forms[b]);
  if (form.is_affine()) sharpen(known, form);
}

}  // namespace

std::vector<Depends> depends(const Graph& graph) {
  const std::vector<AffineForm> forms = affine_forms(graph);
  std::vector<double> bounds(graph.size(), kUnbounded);
  std::vector<Depends> all(graph.size());
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    const Node& node = graph[id];
    Depends known = leaf(node.op);
    for (const NodeId arg : graph.args(id)) known = join(known, all[arg]);
    if (node.type == ValueType::kInt) {
      const double bound = largest_magnitude(graph, id, bounds);
      if (bound < kSafe) bounds[i] = bound;  // false for the NaN of 0 * unbounded too
      if (forms[i].is_affine()) sharpen(known, forms[i]);
    } else if (is_compare(node.op) && graph[graph.arg(id, 0)].type == ValueType::kInt) {
      sharpen_compare(graph, id, forms, bounds, known);
    }
    all[i] = known;
  }
  return all;
}

std::string_view dependence_name(Dependence dependence) {
  switch (dependence) {
    case Dependence::kUniform:
      return "uniform";
    case Dependence::kQuery:
      return "query";
    case Dependence::kKey:
      return "key";
    case Dependence::kDiagonal:
      return "diagonal";
    case Dependence::kElement:
      return "element";
  }
  return "?";
}

}  // namespace quire::formula

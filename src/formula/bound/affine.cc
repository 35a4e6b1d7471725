// Finds affine forms in one loop over the nodes, with wrapping arithmetic on the coefficients.
// Formula layer.
#include "formula/bound/affine.h"

#include <algorithm>

#include "kernels/tile/wrapping.h"

namespace quire::formula {
namespace {

using kernels::wrapping_add;
using kernels::wrapping_mul;
using Kind = AffineForm::Kind;

// Unknown parts are kept at zero, so that equal forms compare equal.
AffineForm normal(AffineForm form) {
  if (form.kind == Kind::kNone) return {};
  if (form.kind == Kind::kUniform) form.b = form.h = form.c = 0;
  return form;
}

AffineForm constant(std::int64_t c) { return {.kind = Kind::kExact, .c = c}; }

AffineForm sum(const AffineForm& a, const AffineForm& b) {
  return normal({.kind = std::min(a.kind, b.kind),
                 .b = wrapping_add(a.b, b.b),
                 .h = wrapping_add(a.h, b.h),
                 .q = wrapping_add(a.q, b.q),
                 .kv = wrapping_add(a.kv, b.kv),
                 .c = wrapping_add(a.c, b.c)});
}

AffineForm scaled(const AffineForm& a, std::int64_t by) {
  if (by == 0) return constant(0);
  return {.kind = a.kind,
          .b = wrapping_mul(a.b, by),
          .h = wrapping_mul(a.h, by),
          .q = wrapping_mul(a.q, by),
          .kv = wrapping_mul(a.kv, by),
          .c = wrapping_mul(a.c, by)};
}

AffineForm product(const AffineForm& a, const AffineForm& b) {
  if (b.is_constant()) return scaled(a, b.c);
  if (a.is_constant()) return scaled(b, a.c);
  return {};
}

AffineForm shifted(const AffineForm& a, const AffineForm& count) {
  if (!count.is_constant()) return {};
  if (count.c < 0 || count.c > 63) return constant(0);
  return scaled(a, static_cast<std::int64_t>(std::uint64_t{1} << count.c));
}

// The form that follows from the operation alone; kNone where it says nothing.
AffineForm form_of(const Graph& graph, NodeId id, const std::vector<AffineForm>& forms) {
  const Node& node = graph[id];
  const auto arg = [&](std::size_t i) -> const AffineForm& { return forms[graph.arg(id, i)]; };
  switch (node.op) {
    case Op::kIntConst:
      return constant(node.bits);
    case Op::kBatch:
      return {.kind = Kind::kExact, .b = 1};
    case Op::kHead:
      return {.kind = Kind::kExact, .h = 1};
    case Op::kQIdx:
      return {.kind = Kind::kExact, .q = 1};
    case Op::kKvIdx:
      return {.kind = Kind::kExact, .kv = 1};
    case Op::kNeg:
      return scaled(arg(0), -1);
    case Op::kBitNot:
      return sum(scaled(arg(0), -1), constant(-1));
    case Op::kAdd:
      return sum(arg(0), arg(1));
    case Op::kSub:
      return difference(arg(0), arg(1));
    case Op::kMul:
      return product(arg(0), arg(1));
    case Op::kShl:
      return shifted(arg(0), arg(1));
    default:
      return {};
  }
}

}  // namespace

AffineForm difference(const AffineForm& a, const AffineForm& b) { return sum(a, scaled(b, -1)); }

void extend_affine_forms(const Graph& graph, std::vector<AffineForm>& forms) {
  const std::size_t first = forms.size();
  forms.resize(graph.size());
  for (std::size_t i = first; i < graph.size(); ++i) {
    const auto id = static_cast<NodeId>(i);
    const Node& node = graph[id];
    AffineForm form;
    if (node.type == ValueType::kInt) form = form_of(graph, id, forms);
    if (!form.is_affine() && node.op != Op::kScore) {
      const auto args = graph.args(id);
      const bool uniform = std::all_of(args.begin(), args.end(),
                                       [&](NodeId arg) { return forms[arg].is_uniform(); });
      if (uniform) form.kind = Kind::kUniform;
    }
    forms[i] = form;
  }
}

std::vector<AffineForm> affine_forms(const Graph& graph) {
  std::vector<AffineForm> forms;
  extend_affine_forms(graph, forms);
  return forms;
}

namespace {

// Adds coefficient * range to lo..hi; returns whether that overflowed.
bool add_term(std::int64_t coefficient, const IndexRange& range, std::int64_t& lo,
              std::int64_t& hi) {
  if (coefficient == 0) return false;
  const bool up = coefficient > 0;
  std::int64_t least, most;
  bool overflows = __builtin_mul_overflow(coefficient, up ? range.first : range.last, &least);
  overflows |= __builtin_mul_overflow(coefficient, up ? range.last : range.first, &most);
  overflows |= __builtin_add_overflow(lo, least, &lo);
  overflows |= __builtin_add_overflow(hi, most, &hi);
  return overflows;
}

}  // namespace

Interval affine_range(const AffineForm& form, const Rectangle& rectangle) {
  std::int64_t lo = form.c, hi = form.c;
  bool overflows = add_term(form.q, rectangle.q, lo, hi);
  overflows |= add_term(form.kv, rectangle.kv, lo, hi);
  overflows |= add_term(form.b, rectangle.b, lo, hi);
  overflows |= add_term(form.h, rectangle.h, lo, hi);
  return overflows ? Interval::any_int() : Interval::ints(lo, hi);
}

std::optional<AffineForm> exact_difference(const AffineForm& a, const AffineForm& b) {
  AffineForm d;
  d.kind = AffineForm::Kind::kExact;
  bool overflows = __builtin_sub_overflow(a.b, b.b, &d.b);
  overflows |= __builtin_sub_overflow(a.h, b.h, &d.h);
  overflows |= __builtin_sub_overflow(a.q, b.q, &d.q);
  overflows |= __builtin_sub_overflow(a.kv, b.kv, &d.kv);
  overflows |= __builtin_sub_overflow(a.c, b.c, &d.c);
  if (overflows) return std::nullopt;
  return d;
}

bool share_coordinate(const AffineForm& a, const AffineForm& b) {
  return (a.b != 0 && b.b != 0) || (a.h != 0 && b.h != 0) || (a.q != 0 && b.q != 0) ||
         (a.kv != 0 && b.kv != 0);
}

}  // namespace quire::formula

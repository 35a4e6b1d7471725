// Layer: formula.
#include "formula/bound/bound_affine.h"

namespace quire::formula {
namespace {

// Adds coefficient * range to lo..hi; whether that overflowed.
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

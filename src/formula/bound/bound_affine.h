// The exact range of an affine form over a rectangle, and the exact difference of two forms. What a
// form is and how it is found: affine.h. Formula layer.
#pragma once
#include <optional>

#include "formula/bound/affine.h"
#include "formula/bound/bound.h"
#include "formula/bound/interval.h"

namespace quire::formula {

/// All values of an exact form; "any int" if computing it overflows. When it does not, the node
/// that has this form does not wrap in the rectangle either (or wraps back), and both ends are
/// reached.
Interval affine_range(const AffineForm& form, const Rectangle& rectangle);

/// a - b as integers, not modulo 2^64; nothing if a coefficient overflows.
std::optional<AffineForm> exact_difference(const AffineForm& a, const AffineForm& b);

/// Whether both vary with one of the coordinates, so that comparing them as if they were
/// independent would lose something.
bool share_coordinate(const AffineForm& a, const AffineForm& b);

}  // namespace quire::formula

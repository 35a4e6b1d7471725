// substitute: a formula with one of its arguments replaced by another value: the score by a number,
// q_idx by q_idx + 128. Formula layer.
#pragma once
#include "quire/formula.h"

namespace quire::formula {

/// Every use of `argument` (Op::kScore, kBatch, kHead, kQIdx or kKvIdx) becomes `value`, which has
/// the argument's type and may use the argument itself.
Formula substitute(const Formula& formula, Op argument, const Formula& value);

}  // namespace quire::formula

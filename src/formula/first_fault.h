// Faults of tile programs: finds the first of several in logical order and turns it into an Error;
// tells whether a formula can fault at all within a rectangle. Formula layer.
#pragma once
#include <span>

#include "formula/bound/bound.h"
#include "kernels/tile/tile_runner.h"
#include "quire/formula.h"

namespace quire::formula {

/// Throws the Error of the first fault in the order b, h, q_idx, kv_idx; returns if there is none.
void throw_first_fault(std::span<const kernels::TileFault> faults);

/// Whether no element of the rectangle, hidden or not, reads outside a buffer or divides an integer
/// by 0. `bounds` are those of all values over the rectangle (Bounder::bound_all).
bool is_fault_free(const Formula& formula, std::span<const Interval> bounds);

}  // namespace quire::formula

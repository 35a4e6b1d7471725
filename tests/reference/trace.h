// Makes formulas of any type from lambdas for the tests of reference/. Tests only.
#pragma once
#include "quire/formula.h"
#include "quire/mod.h"
#include "reference/evaluate.h"

namespace quire::testing {

/// f(score, b, h, q_idx, kv_idx), of whatever type it has.
template <class F>
Formula trace(const F& f) {
  const detail::ModArguments a = detail::mod_arguments();
  return Formula(detail::to_base(f(a.score, a.b, a.h, a.q_idx, a.kv_idx)));
}

/// Its value at a point.
template <class F>
reference::Value value_of(const F& f, const reference::Point& point = {}) {
  return reference::Evaluator(trace(f)).run(point);
}

}  // namespace quire::testing

// Writes the depths of a step into small tables and substitutes them for positions. Plan layer.
#include "plan/tree_depth.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "formula/bound/depends.h"
#include "formula/simplify/simplify.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire::plan {
namespace {

Buffer table(std::vector<std::int64_t> numbers, const char* name) {
  if (numbers.empty()) numbers = {0};
  return Buffer(Tensor::from(numbers), {.name = name});
}

}  // namespace

StepDepths::StepDepths(std::span<const StepSequence> sequences, std::span<const std::int64_t> mod_b)
    : mod_b_(table({mod_b.begin(), mod_b.end()}, "mod_b")),
      root_(mod_b_),
      first_(mod_b_),
      depths_(mod_b_) {
  std::vector<std::int64_t> root, first, depths;
  for (const StepSequence& of : sequences) {
    // Queries and keys of a sequence without a tree lie before its root.
    root.push_back(of.parents.empty() ? std::max(of.length, of.q_begin + of.queries)
                                      : of.length - std::ssize(of.parents));
    first.push_back(std::ssize(depths));
    const std::vector<std::int64_t> some = depths_of(of);
    depths.insert(depths.end(), some.begin(), some.end());
  }
  root_ = table(std::move(root), "roots");
  first_ = table(std::move(first), "first");
  depths_ = table(std::move(depths), "depths");
}

Formula StepDepths::substituted(const Formula& formula) const {
  const detail::ModArguments of = detail::mod_arguments();
  // Both branches are evaluated, so the one that is not taken must read inside the table too: an
  // index outside is an error there as well.
  const auto depth = [&](const IntExpr& at) {
    const auto in_front = at < root_[of.b];
    return where(in_front, at, depths_[where(in_front, 0, first_[of.b] + (at - root_[of.b]))]);
  };
  return Formula(detail::apply(
      formula, {of.score, mod_b_[of.b].element(), of.h, depth(of.q_idx), depth(of.kv_idx)}));
}

bool reads_positions(const Formula& formula) {
  const Formula simple = formula::simplify(formula, Precision::kF32);
  const formula::Depends root =
      formula::depends(simple.graph())[static_cast<std::size_t>(simple.root())];
  return root.q || root.kv;
}

}  // namespace quire::plan

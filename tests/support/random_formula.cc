// Random formulas: options, buffers and the root. Tests only.
#include "tests/support/random_formula.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tests/support/random_generator.h"

namespace quire::testing {

RandomGenerator::RandomGenerator(std::mt19937_64& random, const RandomFormulaOptions& options,
                                 std::vector<Buffer> buffers)
    : random_(random), options_(options), buffers_(std::move(buffers)) {
  for (const Buffer& buffer : buffers_)
    ranges_.push_back(
        type_of(buffer) == ValueType::kInt && buffer.has_data() ? element_range(buffer) : kAnyInt);
}

Formula RandomGenerator::make(ValueType root) {
  const int budget = options_.nodes;
  if (root == ValueType::kBool) return Formula(graph_, truth(budget));
  if (root == ValueType::kInt) return Formula(graph_, integer(budget).id);
  if (!options_.floats) return Formula(graph_, as(integer(budget).id, ValueType::kFloat));
  if (allowed(Op::kWhere) && budget > 3 && chance(8)) {  // a mask inside a score mod
    const NodeId visible = truth(budget / 2), score = real(budget / 2);
    const NodeId hidden = real_constant(-std::numeric_limits<double>::infinity());
    return Formula(graph_, make_where(graph_, visible, score, hidden));
  }
  return Formula(graph_, real(budget));
}

Op RandomGenerator::choose(std::span<const Choice> choices) {
  std::int64_t total = 0;
  for (const Choice& choice : choices) total += choice.weight;
  std::int64_t place = below(total);
  for (const Choice& choice : choices)
    if ((place -= choice.weight) < 0) return choice.op;
  return choices.back().op;
}

bool RandomGenerator::allowed(Op op) const {
  return std::find(options_.without.begin(), options_.without.end(), op) == options_.without.end();
}

RandomFormula random_formula(std::mt19937_64& random, ValueType root,
                             const RandomFormulaOptions& options) {
  std::vector<Tensor> memory;
  std::vector<Buffer> buffers = options.buffers;
  if (buffers.empty()) {
    buffers = random_buffers(random, options.buffer_count,
                             {.extents = options.extents,
                              .floats = options.floats,
                              .wants_gradient = options.wants_gradient,
                              .memory = options.strided ? &memory : nullptr});
  }
  Formula formula = RandomGenerator(random, options, std::move(buffers)).make(root);
  std::vector<Buffer> used = formula.buffers();
  return {std::move(formula), std::move(used), std::move(memory)};
}

}  // namespace quire::testing

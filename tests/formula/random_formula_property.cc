// What random_formula promises: the same formula for the same state, of the wanted type, without
// faults inside the extents unless asked for. (Other properties rest on it.)
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>

#include "formula/graph.h"
#include "quire/formula.h"
#include "reference/evaluate.h"
#include "tests/support/random_formula.h"

namespace quire::testing {
namespace {

reference::Point random_point(std::mt19937_64& random, const Extents& e) {
  reference::Point point;
  point.score = static_cast<double>(below(random, 2001) - 1000) / 100;
  point.b = below(random, e.b);
  point.h = below(random, e.h);
  point.q_idx = chance(random, 20) ? e.q - 1 : below(random, e.q);
  point.kv_idx = chance(random, 20) ? e.kv - 1 : below(random, e.kv);
  return point;
}

RandomFormulaOptions random_options(std::mt19937_64& random) {
  RandomFormulaOptions options;
  options.nodes = static_cast<int>(below(random, 35));
  options.floats = chance(random, 85);
  options.extremes = chance(random, 30);
  options.strided = chance(random, 30);
  options.extents = {1 + below(random, 3), 1 + below(random, 4), 1 + below(random, 60),
                     1 + below(random, 90)};
  return options;
}

RC_GTEST_PROP(RandomFormula, HasTheTypeAndNoFaults, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  const RandomFormulaOptions options = random_options(random);
  const auto type = static_cast<ValueType>(below(random, 3));
  const RandomFormula made = random_formula(random, type, options);
  RC_LOG() << made.formula.to_string() << std::endl;
  RC_ASSERT(made.formula.type() == type);
  reference::Evaluator evaluator(made.formula);
  for (int i = 0; i < 20; ++i) {
    const reference::Point point = random_point(random, options.extents);
    evaluator.run(point);
    if (evaluator.fault()) RC_FAIL(reference::fault_text(*evaluator.fault(), point));
  }
}

RC_GTEST_PROP(RandomFormula, IsTheSameForTheSameState, (std::uint64_t seed)) {
  std::mt19937_64 random(seed);
  RandomFormulaOptions options = random_options(random);
  options.faults = chance(random, 50);
  const auto type = static_cast<ValueType>(below(random, 3));
  std::mt19937_64 again = random;
  const std::string text = random_formula(random, type, options).formula.to_string();
  RC_ASSERT(random_formula(again, type, options).formula.to_string() == text);
  RC_ASSERT(random == again);
}

TEST(RandomFormula, UsesEveryOperationAndFaultsIfAsked) {
  std::array<int, kOpCount> uses{};
  int faults = 0;
  constexpr int kFormulas = 3000;
  std::mt19937_64 random(1);
  for (int i = 0; i < kFormulas; ++i) {
    const RandomFormula made =
        random_formula(random, static_cast<ValueType>(i % 3), {.nodes = 15, .faults = true});
    const formula::Graph& graph = made.formula.graph();
    for (std::size_t id = 0; id < graph.size(); ++id)
      ++uses[static_cast<std::size_t>(graph[static_cast<formula::NodeId>(id)].op)];
    reference::Evaluator evaluator(made.formula);
    evaluator.run(random_point(random, {}));
    faults += evaluator.fault().has_value();
  }
  for (int op = 0; op < kOpCount; ++op)
    EXPECT_GT(uses[static_cast<std::size_t>(op)], 20) << "operation " << op;
  EXPECT_GT(faults, kFormulas / 50);
  EXPECT_LT(faults, kFormulas / 2);
}

}  // namespace
}  // namespace quire::testing

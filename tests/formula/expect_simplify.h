// Rules of simplification as pairs of texts. Tests only.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "formula/simplify/simplify.h"
#include "quire/formula.h"

namespace quire::testing {

inline const NamedBuffers& rule_buffers() {
  // One set for all: equal formulas read the same buffers.
  static const NamedBuffers all = {{"x", Buffer(std::vector<float>(8), {.name = "x"})},
                                   {"y", Buffer(std::vector<float>(8), {.name = "y"})},
                                   {"n", Buffer(std::vector<std::int64_t>(8), {.name = "n"})},
                                   {"m", Buffer(std::vector<std::int64_t>(8), {.name = "m"})}};
  return all;
}

inline Formula rule_formula(const std::string& text) {
  return Formula::parse(text, rule_buffers());
}

struct SimplifyRule {
  std::string before, after;
};

inline void expect_rules(const std::vector<SimplifyRule>& rules,
                         Precision precision = Precision::kF32) {
  for (const auto& [before, after] : rules) {
    const Formula simple = formula::simplify(rule_formula(before), precision);
    EXPECT_EQ(simple, rule_formula(after)) << before << " became " << simple.to_string() << ", not "
                                           << rule_formula(after).to_string();
  }
}

inline void expect_unchanged(const std::vector<std::string>& texts,
                             Precision precision = Precision::kF32) {
  for (const std::string& text : texts) expect_rules({{text, text}}, precision);
}

}  // namespace quire::testing

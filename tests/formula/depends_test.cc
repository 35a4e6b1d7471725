// Dependences of single values; random ones are in depends_property.cc.
#include "formula/bound/depends.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "formula/simplify/simplify.h"
#include "quire/formula.h"

namespace quire::formula {
namespace {

NamedBuffers buffers() {
  const auto named = [](const std::string& name, auto values) {
    return std::pair(name, Buffer(std::move(values), {.name = name}));
  };
  return {named("slopes", std::vector<float>(8)), named("doc", std::vector<std::int64_t>(16)),
          named("narrow", std::vector<std::int32_t>(16)),
          named("bytes", std::vector<std::uint8_t>(16)),
          named("wide", std::vector<std::int64_t>(16))};
}

Depends depends_of(const std::string& text) {
  const Formula formula = simplify(Formula::parse(text, buffers()), Precision::kF32);
  return depends(formula.graph())[static_cast<std::size_t>(formula.root())];
}

Dependence class_of(const std::string& text) { return depends_of(text).dependence; }

TEST(Depends, Arguments) {
  EXPECT_EQ(depends_of("3"), Depends{});
  EXPECT_EQ(depends_of("b"), (Depends{.b = true}));
  EXPECT_EQ(depends_of("h"), (Depends{.h = true}));
  EXPECT_EQ(depends_of("q_idx"), (Depends{.q = true, .dependence = Dependence::kQuery}));
  EXPECT_EQ(depends_of("kv_idx"), (Depends{.kv = true, .dependence = Dependence::kKey}));
  EXPECT_EQ(depends_of("score"), (Depends{.score = true, .dependence = Dependence::kElement}));
}

TEST(Depends, KnownMods) {
  EXPECT_EQ(
      depends_of("score + slopes[h] * (kv_idx - q_idx)"),
      (Depends{
          .h = true, .q = true, .kv = true, .score = true, .dependence = Dependence::kElement}));
  EXPECT_EQ(depends_of("slopes[h] * (kv_idx - q_idx)"),
            (Depends{.h = true, .q = true, .kv = true, .dependence = Dependence::kDiagonal}));
  EXPECT_EQ(depends_of("q_idx >= kv_idx"),
            (Depends{.q = true, .kv = true, .dependence = Dependence::kDiagonal}));
  EXPECT_EQ(depends_of("doc[q_idx] == doc[kv_idx]"),
            (Depends{.q = true, .kv = true, .dependence = Dependence::kElement}));
  EXPECT_EQ(depends_of("kv_idx < doc[b]"),
            (Depends{.b = true, .kv = true, .dependence = Dependence::kKey}));
}

TEST(Depends, Classes) {
  EXPECT_EQ(class_of("slopes[h] * 2.0 + exp(slopes[b])"), Dependence::kUniform);
  EXPECT_EQ(class_of("slopes[doc[q_idx] % 8] + b"), Dependence::kQuery);
  EXPECT_EQ(class_of("where(b > 0, kv_idx // 2, h)"), Dependence::kKey);
  EXPECT_EQ(class_of("abs(kv_idx - q_idx) // 3 + doc[b]"), Dependence::kDiagonal);
  EXPECT_EQ(class_of("slopes[kv_idx - q_idx + 7] * tanh(float(q_idx - kv_idx))"),
            Dependence::kDiagonal);
  EXPECT_EQ(class_of("kv_idx + q_idx"), Dependence::kElement);
  EXPECT_EQ(class_of("(kv_idx - q_idx) * q_idx"), Dependence::kElement);
  EXPECT_EQ(class_of("float(kv_idx) - float(q_idx)"), Dependence::kElement);  // rounds
}

TEST(Depends, AffineValuesAreSharpened) {
  EXPECT_EQ(class_of("(kv_idx + 2 * q_idx) - 3 * q_idx"), Dependence::kDiagonal);
  EXPECT_EQ(class_of("(kv_idx + doc[b]) - q_idx"), Dependence::kDiagonal);
  EXPECT_EQ(depends_of("2 * q_idx + kv_idx - kv_idx + 3 + b - b"),
            (Depends{.q = true, .dependence = Dependence::kQuery}));
  EXPECT_EQ(depends_of("2 * (h + b + q_idx) - 2 * h - 2 * b"),
            (Depends{.q = true, .dependence = Dependence::kQuery}));
  EXPECT_EQ(depends_of("(q_idx + doc[h]) - q_idx"), (Depends{.h = true}));
}

TEST(Depends, ValuesMultipliedByZeroDependOnNothing) {
  // Not simplified: the product is still there.
  const Formula formula = Formula::parse("int(score) * 0");
  EXPECT_EQ(depends(formula.graph())[static_cast<std::size_t>(formula.root())], Depends{});
}

TEST(Depends, Comparisons) {
  EXPECT_EQ(class_of("q_idx + 128 > kv_idx"), Dependence::kDiagonal);
  EXPECT_EQ(class_of("q_idx + h * 4 - 5 <= kv_idx + b"), Dependence::kDiagonal);
  EXPECT_EQ(class_of("2 * q_idx < kv_idx"), Dependence::kElement);
  EXPECT_EQ(class_of("q_idx + kv_idx < kv_idx + 7"), Dependence::kQuery);
  EXPECT_EQ(class_of("q_idx + b < q_idx + h"), Dependence::kUniform);
  EXPECT_EQ(class_of("float(q_idx) > float(kv_idx)"), Dependence::kElement);
}

TEST(Depends, ComparisonsThatMayWrap) {
  EXPECT_EQ(class_of("q_idx + narrow[b] >= kv_idx"), Dependence::kDiagonal);
  EXPECT_EQ(class_of("q_idx + 4 * bytes[b] >= kv_idx"), Dependence::kDiagonal);
  EXPECT_EQ(class_of("q_idx + wide[b] % 64 >= kv_idx"), Dependence::kDiagonal);
  EXPECT_EQ(class_of("q_idx + clamp(wide[b], 0, 9) >= kv_idx"), Dependence::kDiagonal);
  // An offset of 2^63 - 1 makes q_idx + wide[b] negative from q_idx = 1 on.
  EXPECT_EQ(class_of("q_idx + wide[b] >= kv_idx"), Dependence::kElement);
  EXPECT_EQ(class_of("wide[b] >= kv_idx - q_idx"), Dependence::kDiagonal);
  EXPECT_EQ(class_of("q_idx + wide[b] == kv_idx"), Dependence::kDiagonal);
  EXPECT_EQ(class_of("q_idx + wide[b] != kv_idx"), Dependence::kDiagonal);
  EXPECT_EQ(class_of("q_idx * 4611686018427387904 < kv_idx * 4611686018427387904"),
            Dependence::kElement);
  EXPECT_EQ(class_of("q_idx + wide[b] * bytes[h] >= kv_idx"), Dependence::kElement);
}

TEST(Depends, Names) {
  EXPECT_EQ(dependence_name(Dependence::kUniform), "uniform");
  EXPECT_EQ(dependence_name(Dependence::kQuery), "query");
  EXPECT_EQ(dependence_name(Dependence::kKey), "key");
  EXPECT_EQ(dependence_name(Dependence::kDiagonal), "diagonal");
  EXPECT_EQ(dependence_name(Dependence::kElement), "element");
}

}  // namespace
}  // namespace quire::formula

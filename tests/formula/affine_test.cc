// Affine forms of single values; random ones are in depends_property.cc.
#include "formula/bound/affine.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "formula/build.h"
#include "quire/formula.h"

namespace quire::formula {
namespace {

using Kind = AffineForm::Kind;

NamedBuffers buffers() {
  return {{"offset", Buffer(std::vector<std::int64_t>{4, 5}, {.name = "offset"})},
          {"position", Buffer(std::vector<std::int32_t>{7, 8, 9}, {.name = "position"})}};
}

AffineForm form_of(const std::string& text) {
  const Formula formula = Formula::parse(text, buffers());
  return affine_forms(formula.graph())[static_cast<std::size_t>(formula.root())];
}

TEST(Affine, ArgumentsAndConstants) {
  EXPECT_EQ(form_of("b"), (AffineForm{.kind = Kind::kExact, .b = 1}));
  EXPECT_EQ(form_of("h"), (AffineForm{.kind = Kind::kExact, .h = 1}));
  EXPECT_EQ(form_of("q_idx"), (AffineForm{.kind = Kind::kExact, .q = 1}));
  EXPECT_EQ(form_of("kv_idx"), (AffineForm{.kind = Kind::kExact, .kv = 1}));
  EXPECT_EQ(form_of("-7"), (AffineForm{.kind = Kind::kExact, .c = -7}));
  EXPECT_TRUE(form_of("-7").is_constant());
  EXPECT_FALSE(form_of("b - 7").is_constant());
}

TEST(Affine, Arithmetic) {
  EXPECT_EQ(form_of("3 * (kv_idx - q_idx) + 2 * b - h * 5 + 1"),
            (AffineForm{.kind = Kind::kExact, .b = 2, .h = -5, .q = -3, .kv = 3, .c = 1}));
  EXPECT_EQ(form_of("~(q_idx << 4)"), (AffineForm{.kind = Kind::kExact, .q = -16, .c = -1}));
  EXPECT_EQ(form_of("q_idx << 64"), (AffineForm{.kind = Kind::kExact}));
  EXPECT_EQ(form_of("q_idx << -1"), (AffineForm{.kind = Kind::kExact}));
  EXPECT_EQ(form_of("(q_idx + kv_idx) * (3 - 1)"),
            (AffineForm{.kind = Kind::kExact, .q = 2, .kv = 2}));
}

TEST(Affine, CoefficientsWrap) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(form_of("(q_idx << 63) + (q_idx << 63)"), (AffineForm{.kind = Kind::kExact}));
  EXPECT_EQ(form_of("q_idx << 63"), (AffineForm{.kind = Kind::kExact, .q = kMin}));
  EXPECT_EQ(form_of("9223372036854775807 + 1 + h"),
            (AffineForm{.kind = Kind::kExact, .h = 1, .c = kMin}));
}

TEST(Affine, UniformRest) {
  EXPECT_EQ(form_of("kv_idx - q_idx + offset[b]"),
            (AffineForm{.kind = Kind::kUniform, .q = -1, .kv = 1}));
  EXPECT_EQ(form_of("2 * (offset[b] % 3 - q_idx)"), (AffineForm{.kind = Kind::kUniform, .q = -2}));
  EXPECT_EQ(form_of("b * h"), (AffineForm{.kind = Kind::kUniform}));
  EXPECT_EQ(form_of("where(offset[b] > 3, h, 2)"), (AffineForm{.kind = Kind::kUniform}));
  EXPECT_EQ(form_of("int(exp(float(h)))"), (AffineForm{.kind = Kind::kUniform}));
  EXPECT_TRUE(form_of("float(h) * 2.0").is_uniform());
  EXPECT_TRUE(form_of("h > 3").is_uniform());
}

TEST(Affine, NotAffine) {
  for (const std::string text :
       {"q_idx * kv_idx", "q_idx * b", "q_idx // 2", "q_idx % 2", "position[q_idx]", "abs(q_idx)",
        "q_idx << b", "int(score)", "q_idx >> 1", "minimum(q_idx, kv_idx)", "score", "float(q_idx)",
        "q_idx > 3", "where(b > 0, q_idx, kv_idx)"}) {
    EXPECT_EQ(form_of(text), AffineForm{}) << text;
  }
  // Nothing is left of what is multiplied by 0.
  EXPECT_EQ(form_of("position[q_idx] * 0"), (AffineForm{.kind = Kind::kExact}));
}

TEST(Affine, Diagonal) {
  EXPECT_TRUE(form_of("kv_idx - q_idx").is_diagonal());
  EXPECT_TRUE(form_of("4 * q_idx - 4 * kv_idx + offset[b]").is_diagonal());
  EXPECT_TRUE(form_of("(q_idx << 63) + (kv_idx << 63)").is_diagonal());  // -2^63 is 2^63
  EXPECT_FALSE(form_of("kv_idx + q_idx").is_diagonal());
  EXPECT_FALSE(form_of("2 * kv_idx - q_idx").is_diagonal());
  EXPECT_FALSE(form_of("b").is_diagonal());
  EXPECT_FALSE(form_of("q_idx * kv_idx").is_diagonal());
}

TEST(Affine, Difference) {
  const AffineForm apart = difference(form_of("q_idx + h + 3"), form_of("kv_idx + h"));
  EXPECT_EQ(apart, (AffineForm{.kind = Kind::kExact, .q = 1, .kv = -1, .c = 3}));
  EXPECT_EQ(difference(form_of("q_idx + offset[b]"), form_of("q_idx")),
            (AffineForm{.kind = Kind::kUniform}));
  EXPECT_EQ(difference(form_of("q_idx"), form_of("q_idx // 2")), AffineForm{});
}

TEST(Affine, ExtendsAGrowingGraph) {
  Graph graph;
  std::vector<AffineForm> forms;
  const NodeId q = make_leaf(graph, Op::kQIdx);
  extend_affine_forms(graph, forms);
  ASSERT_EQ(forms.size(), 1u);
  const NodeId twice = make_binary(graph, Op::kAdd, q, q);
  extend_affine_forms(graph, forms);
  ASSERT_EQ(forms.size(), 2u);
  EXPECT_EQ(forms[static_cast<std::size_t>(twice)], (AffineForm{.kind = Kind::kExact, .q = 2}));
}

}  // namespace
}  // namespace quire::formula

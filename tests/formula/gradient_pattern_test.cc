// Which pattern each kind of read gets: the table of examples.
#include "formula/gradient/gradient_pattern.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "formula/gradient/compile_gradient.h"

namespace quire::formula {
namespace {

using kernels::GradientPattern;
using kernels::SlopeKind;
using kernels::TileClass;

constexpr std::int64_t kQ = 130, kKv = 200;

Buffer wanted(const Shape& shape, const char* name) {
  return Buffer(Tensor(shape, DType::f32), {.name = name, .wants_gradient = true});
}

CompiledGradient compiled(const std::string& text, std::int64_t batches = 2) {
  const NamedBuffers buffers = {
      {"bias", wanted({3}, "bias")},
      {"by_q", wanted({3, kQ}, "by_q")},
      {"by_kv", wanted({3, kKv}, "by_kv")},
      {"table", wanted({kQ + kKv}, "table")},
      {"pos", wanted({kQ, kKv}, "pos")},
      {"turned", wanted({kKv, kQ}, "turned")},
      {"full", wanted({2, 3, kQ, kKv}, "full")},
      {"w", wanted({9}, "w")},
      {"type", Buffer(Tensor({2, kQ, kKv}, DType::i32), {.name = "type"})},
      {"q_rope", wanted({2, 3, kQ, 8}, "q_rope")},
      {"k_rope", wanted({2, 1, kKv, 8}, "k_rope")}};
  return compile_gradient(
      Formula::parse(text, buffers),
      {.extents = {{0, batches - 1}, {0, 2}, {0, kQ - 1}, {0, kKv - 1}}, .max_rows = 96});
}

struct Row {
  const char* text;
  std::vector<GradientPattern> patterns;
  SlopeKind slope = SlopeKind::kOne;
};

TEST(GradientPattern, OfFormulas) {
  using enum GradientPattern;
  const Row rows[] = {
      {"score + bias[h]", {kUniform}},
      {"score + bias[h] * (kv_idx - q_idx)", {kUniform}},
      {"score * bias[h]", {kUniform}, SlopeKind::kUniform},
      {"tanh(score) * bias[0]", {kUniform}, SlopeKind::kElement},
      {"score + by_q[h, q_idx]", {kLane}},
      {"score + w[type[b, q_idx, 0]]", {kLane}},
      {"score + by_kv[h, kv_idx]", {kRow}},
      {"score + table[q_idx - kv_idx + 199]", {kDiagonal}},
      {"score + w[clamp(kv_idx - q_idx, -4, 4) + 4]", {kDiagonal}},
      {"score + table[q_idx + kv_idx]", {kGather}},
      {"score + pos[q_idx, kv_idx]", {kShared}},
      {"score + turned[kv_idx, q_idx]", {kShared}},
      {"score + full[b, h, q_idx, kv_idx]", {kOwned}},
      {"score + full[0, h, q_idx, kv_idx]", {kShared}},
      {"score + full[b, h, q_idx, kv_idx] + full[b, h, q_idx // 2, kv_idx]", {kGather, kGather}},
      {"score + w[type[b, q_idx, kv_idx]]", {kGather}},
      {"score + w[2 * (kv_idx % 2)]", {kRow}},
      {"score + sum(by_q[h])", {kUniform}},
      {"score + sum(pos[q_idx])", {kLane}},
      {"score + dot(q_rope[b, h, q_idx], k_rope[b, 0, kv_idx])", {kDotLane, kDotRow}},
      {"score + dot(q_rope[b, h, q_idx], q_rope[b, 0, q_idx])", {kLane, kLane}},
      {"score + dot(q_rope[b, h, 0], k_rope[b, 0, kv_idx])", {kRow, kRow}},
      {"score + dot(q_rope[b, h, type[b, q_idx, kv_idx]], k_rope[b, 0, kv_idx])",
       {kGather, kGather}},
      {"score + 1.0", {}},
      {"where(q_idx > 3, score, 0.0)", {}, SlopeKind::kElement},
  };
  for (const Row& row : rows) {
    const CompiledGradient made = compiled(row.text);
    std::vector<GradientPattern> patterns;
    for (const kernels::GradientSite& site : made.program.sites) patterns.push_back(site.pattern);
    EXPECT_EQ(patterns, row.patterns) << row.text;
    EXPECT_EQ(made.program.slope, row.slope) << row.text;
  }
}

TEST(GradientPattern, OneBatchEntryNeedsNoIndexToOwn) {
  const CompiledGradient made = compiled("score + full[0, h, q_idx, kv_idx]", 1);
  ASSERT_EQ(made.program.sites.size(), 1u);
  EXPECT_EQ(made.program.sites[0].pattern, GradientPattern::kOwned);
}

TEST(GradientPattern, StepsThatMeetAreGathered) {
  ReadForm read{.index = TileClass::kElement,
                .is_affine = true,
                .lane_step = 200,
                .row_step = 1,
                .queries = kQ,
                .keys = kKv};
  EXPECT_EQ(choose_pattern(read), GradientPattern::kShared);
  read.lane_step = 199;
  EXPECT_EQ(choose_pattern(read), GradientPattern::kGather);
  read.lane_step = -200;
  EXPECT_EQ(choose_pattern(read), GradientPattern::kShared);
  read.lane_step = -1;
  read.row_step = -130;
  EXPECT_EQ(choose_pattern(read), GradientPattern::kShared);
  read.row_step = std::int64_t{1} << 62;
  EXPECT_EQ(choose_pattern(read), GradientPattern::kGather);
}

TEST(GradientPattern, EmptyBuffersHaveNoSites) {
  const NamedBuffers buffers = {{"none", wanted({0}, "none")}, {"bias", wanted({3}, "bias")}};
  const CompiledGradient made =
      compile_gradient(Formula::parse("score + bias[h] * none[q_idx]", buffers),
                       {.extents = {{0, 0}, {0, 2}, {0, 4}, {0, 4}}});
  for (const kernels::GradientSite& site : made.program.sites)
    EXPECT_EQ(made.targets[static_cast<std::size_t>(site.target)].name(), "bias");
}

}  // namespace
}  // namespace quire::formula

// explain(): the lines a reader looks for, for score mods, masks, decode and declared buffers.
#include "quire/explain.h"

#include <gtest/gtest.h>

#include <string>

#include "quire/mod.h"

namespace quire {
namespace {

void expect_lines(const std::string& text, std::initializer_list<const char*> lines) {
  for (const char* line : lines)
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n--- in\n" << text;
}

std::string explained(const char* text, const ExplainOptions& options = {}) {
  return explain(parse_undeclared(text, {}, options), options);
}

TEST(Explain, Alibi) {
  expect_lines(explained("score + slopes[h] * (kv_idx - q_idx) + 0 * q_idx"),
               {"score mod\n  score + slopes[h] * (kv_idx - q_idx) + 0 * q_idx\n",
                "simplified\n  score + slopes[h] * (kv_idx - q_idx) + 0.0\n",
                "slopes f32[8]  (declared, no data)", "d score            = 1.0",
                "d slopes[h]        = float(kv_idx - q_idx)", "uniform   float  slopes[h]",
                "diagonal  int    kv_idx - q_idx", "query     int    q_idx",
                "key       int    kv_idx", "element   float  score\n", "= strided slopes at u0",
                "d0.i32   = iota", "d2.f32   = mul u1, d1", "(store; max)"});
}

TEST(Explain, Masks) {
  const std::string text = explained("(doc[q_idx] == doc[kv_idx]) & (q_idx >= kv_idx)");
  expect_lines(text, {"mask mod\n", "diagonal  bool   q_idx >= kv_idx", "= expand diagonals",
                      "result    mask     = t0"});
  EXPECT_EQ(text.find("derivatives"), std::string::npos);
}

TEST(Explain, DecodeListsHeadsAndQueries) {
  expect_lines(
      explained("score + slopes[h] * (kv_idx - q_idx)", {.decode = true}),
      {"256 keys across the lanes", "row       r0.i64   = list of h", "list of q_idx", "iota"});
}

TEST(Explain, F64AndChecks) {
  expect_lines(explained("score + table[int(score)]", {.precision = Precision::kF64}),
               {"table f32[64]", "t0.i64   = to_int score", "check index t0 of 64", "f64 ",
                "checks of reads and divisions: 1"});
}

TEST(Explain, DeclaresWhatIsMissing) {
  const Formula formula = parse_undeclared(
      "score + w[kind[b, q_idx]] * dot(q_rope[b, h, q_idx], k_rope[b, 0, kv_idx]) + sum(extra[h])",
      {}, {.batch = 2, .heads = 4, .q_len = 10, .kv_len = 20});
  std::string all;
  for (const Buffer& buffer : formula.buffers())
    all += buffer.name() + " " + dtype_name(buffer.dtype()) + to_string(buffer.shape()) + "\n";
  EXPECT_EQ(all,
            "kind i64[2, 10]\nw f32[64]\nq_rope f32[2, 4, 10, 64]\nk_rope f32[2, 1, 20, 64]\nextra "
            "f32[4, 64]\n");
}

TEST(Explain, DeclaresNestedReadsOfOneBuffer) {
  const auto shape_of = [](const char* text) {
    return to_string(parse_undeclared(text, {}, {.q_len = 10, .kv_len = 20}).buffers()[0].shape());
  };
  EXPECT_EQ(shape_of("score + parent[parent[q_idx]]"), "[64]");
  EXPECT_EQ(shape_of("score + x[0, 0][q_idx][0, kv_idx]"), "[1, 1, 10, 1, 20]");
  EXPECT_EQ(shape_of("score + sum (x[q_idx])"), "[10, 64]");
  EXPECT_EQ(shape_of("score + sum(x)"), "[64]");
  EXPECT_EQ(shape_of("checksum = 1; score + (x[kv_idx] + checksum)"), "[20]");
}

TEST(Explain, KeepsGivenBuffers) {
  const NamedBuffers given{{"doc", Buffer::declare(DType::u8, {300})}};
  const Formula formula =
      parse_undeclared("doc[q_idx] == other[kv_idx - q_idx]", given, {.q_len = 5, .kv_len = 9});
  ASSERT_EQ(formula.buffers().size(), 2u);
  EXPECT_EQ(formula.buffers()[0].dtype(), DType::u8);
  EXPECT_EQ(to_string(formula.buffers()[1].shape()), "[9]");
}

TEST(Explain, LongFormulasAreCut) {
  std::string text = "score";
  for (int i = 0; i < 300; ++i) text += " + " + std::to_string(i) + ".5";
  expect_lines(explained(text.c_str()), {"... and 401 more"});
}

}  // namespace
}  // namespace quire

// Rules over the slots of a pool of pages, rewritten as rules over the keys of a sequence.
#include "formula/logical_keys.h"

#include <gtest/gtest.h>

#include "formula/simplify/simplify.h"

namespace quire::formula {
namespace {

const Buffer kTable(Tensor(Shape{3, 50}, DType::i64), {.name = "table"});
const Buffer kLengths(Tensor(Shape{3}, DType::i32), {.name = "len"});
const Buffer kRows(Tensor(Shape{3}, DType::i64), {.name = "rows"});

Formula parse(const char* text) {
  return Formula::parse(text, {{"table", kTable}, {"len", kLengths}, {"rows", kRows}});
}

// The logical formula, simplified; "" where no page is translated, "slot" where it cannot be
// rewritten.
std::string logical(const char* text) {
  const Formula formula = parse(text);
  const std::optional<PagePattern> pattern = find_page_pattern(formula);
  if (!pattern.has_value()) return "";
  const std::optional<Formula> result = to_logical(formula, *pattern);
  return result.has_value() ? simplify(*result, Precision::kF32).to_string() : "slot";
}

bool is_hidden_if_dead(const char* text) {
  const Formula formula = parse(text);
  return is_hidden(for_dead_pages(formula, *find_page_pattern(formula)), Precision::kF32);
}

TEST(LogicalKeys, AreFoundInAnySurroundings) {
  EXPECT_EQ(logical("p = table[b, kv_idx // 16]; j = p * 16 + kv_idx % 16; "
                    "where((p >= 0) & (j < len[b]) & (j >= 0), q_idx >= j, False)"),
            "(kv_idx < len[b]) & (q_idx >= kv_idx)");
  EXPECT_EQ(logical("p = table[b, kv_idx // 16]; j = kv_idx % 16 + 16 * p; (0 <= p) & (j > 3)"),
            "kv_idx > 3");
  EXPECT_EQ(logical("p = table[rows[b], kv_idx // 7]; score + (7 * p + kv_idx % 7) - (kv_idx % 7)"),
            logical("p = table[1, kv_idx // 7]; score + (p * 7 + kv_idx % 7) - (kv_idx % 7)"));
  EXPECT_EQ(logical("p = table[b, kv_idx // 1]; (p * 1 + kv_idx % 1 <= q_idx) | (h == 2)"),
            "(kv_idx <= q_idx) | (h == 2)");
  EXPECT_EQ(logical("p = table[b, kv_idx // 16]; (p * 16 + kv_idx % 16 > 2) & (p != 4)"),
            "(kv_idx > 2) & (kv_idx // 16 != 4)");
}

TEST(LogicalKeys, OfARuleThatAsksForThePageAlone) {
  EXPECT_EQ(logical("where(table[b, kv_idx // 16] >= 0, True, False)"), "True");
  EXPECT_EQ(logical("where(table[b, kv_idx // 16] < 0, -inf, 2.0 * score)"), "2.0 * score");
  EXPECT_EQ(logical("(table[b, kv_idx // 16] >= 0) & (kv_idx > 3)"), "slot");
}

TEST(LogicalKeys, AreNotFoundWhereTheyAreNot) {
  EXPECT_EQ(logical("table[b, kv_idx // 16] == 3"), "");
  EXPECT_EQ(logical("table[b, kv_idx] <= q_idx"), "");
  EXPECT_EQ(logical("p = table[b, kv_idx // 16]; p * 8 + kv_idx % 16 > q_idx"), "");
  EXPECT_EQ(logical("p = table[h, kv_idx // 16]; p * 16 + kv_idx % 16 > q_idx"), "");
  EXPECT_EQ(logical("p = table[b, kv_idx // 16]; (p * 16 + kv_idx % 16 > q_idx) & (kv_idx > 3)"),
            "slot");
  EXPECT_EQ(logical("p = table[b, kv_idx // 16]; j = p * 16 + kv_idx % 16; "
                    "(j > q_idx) & (table[b, kv_idx // 8] > 3)"),
            "slot");
}

TEST(LogicalKeys, DeadPagesAreHiddenOnlyIfAskedAbout) {
  EXPECT_TRUE(
      is_hidden_if_dead("p = table[b, kv_idx // 16]; "
                        "where(p >= 0, q_idx >= p * 16 + kv_idx % 16, False)"));
  EXPECT_TRUE(
      is_hidden_if_dead("j = table[b, kv_idx // 16] * 16 + kv_idx % 16; "
                        "where(j < 0, -inf, score + j)"));
  EXPECT_FALSE(is_hidden_if_dead("q_idx >= table[b, kv_idx // 16] * 16 + kv_idx % 16"));
  EXPECT_FALSE(
      is_hidden_if_dead("j = table[b, kv_idx // 16] * 16 + kv_idx % 16; (j >= 0) | (h == 1)"));
}

TEST(LogicalKeys, BoundsAreThoseWithoutWhichNothingIsSeen) {
  const auto bound = [](const char* text) {
    return find_key_bound(parse(text), Precision::kF32).has_value();
  };
  EXPECT_TRUE(bound("(kv_idx < len[b]) & (kv_idx <= q_idx)"));
  EXPECT_TRUE(bound("where(len[b] > kv_idx, score, -inf)"));
  EXPECT_FALSE(bound("(kv_idx < len[b]) | (kv_idx <= q_idx)"));
  EXPECT_FALSE(bound("kv_idx < len[h]"));
  EXPECT_FALSE(bound("where(kv_idx < len[b], score, 0.0)"));
}

TEST(LogicalKeys, AMarkIsOnTheTableOfAConvertedRule) {
  const Formula converted = parse("p = table[rows[b], kv_idx // 7]; p * 7 + kv_idx % 7 > len[b]");
  EXPECT_FALSE(reads_page_table(converted));
  const Formula marked = mark_page_table(converted);
  EXPECT_TRUE(reads_page_table(marked));
  for (const Buffer& buffer : marked.buffers())
    EXPECT_EQ(buffer.is_page_table(), buffer.name() == "table");
  EXPECT_EQ(marked.to_string(), converted.to_string());
  EXPECT_FALSE(reads_page_table(mark_page_table(parse("table[b, kv_idx] <= q_idx"))));
}

TEST(LogicalKeys, WithinABoundItsQuestionIsAnswered) {
  const auto within = [](const char* text) {
    return simplify(within_key_bound(parse(text), kLengths), Precision::kF32).to_string();
  };
  EXPECT_EQ(within("where(len[b] > kv_idx, score, -inf)"), "score");
  EXPECT_EQ(within("where((kv_idx < len[b]) & (kv_idx < rows[b]), score, -inf)"),
            "where(kv_idx < rows[b], score, -inf)");
}

}  // namespace
}  // namespace quire::formula

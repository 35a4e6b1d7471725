// The parser: what texts mean (against the same formula traced from C++, or fully parenthesised),
// and its limits.
#include "formula/text/parse.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "formula/graph.h"
#include "quire/error.h"
#include "quire/formula.h"
#include "quire/mod.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

const Buffer kSlopes(std::vector<float>{1, 2, 3}, {.name = "slopes"});
const Buffer kDoc(std::vector<std::int32_t>{0, 0, 1, 1}, {.name = "doc"});
const Buffer kTable(Tensor({3, 4}, DType::f32), {.name = "table"});
const Buffer kGate(Tensor({}, DType::f32), {.name = "gate"});
const NamedBuffers kBuffers = {
    {"slopes", kSlopes}, {"doc", kDoc}, {"table", kTable}, {"gate", kGate}};

Formula parse(const std::string& text) { return Formula::parse(text, kBuffers); }

// The same from C++: f(score, b, h, q, kv).
template <class F>
Formula traced(F f) {
  const auto a = detail::mod_arguments();
  return Formula(detail::to_base(f(a.score, a.b, a.h, a.q_idx, a.kv_idx)));
}
#define TRACED(expression)                                                                  \
  traced([&]([[maybe_unused]] auto score, [[maybe_unused]] auto b, [[maybe_unused]] auto h, \
             [[maybe_unused]] auto q, [[maybe_unused]] auto kv) { return expression; })

void expect_parse_error(const std::string& text, const std::string& error,
                        ErrorKind kind = ErrorKind::value) {
  testing::expect_error(kind, "[parse] " + error, [&] { parse(text); });
}

void expect_same(const std::string& a, const std::string& b) {
  EXPECT_TRUE(parse(a) == parse(b))
      << a << " is " << parse(a).to_string() << " and not " << parse(b).to_string();
}

double float_value(const Formula& f) { return f.graph()[f.root()].float_value(); }
std::int64_t int_value(const Formula& f) {
  EXPECT_EQ(f.graph()[f.root()].op, Op::kIntConst);
  return f.graph()[f.root()].bits;
}

TEST(Parse, MeansWhatTracingMeans) {
  EXPECT_EQ(parse("score + slopes[h] * (kv_idx - q_idx)"), TRACED(score + kSlopes[h] * (kv - q)));
  EXPECT_EQ(parse("where(q_idx >= kv_idx, score, -inf)"), TRACED(where(q >= kv, score, -INFINITY)));
  EXPECT_EQ(parse("(q_idx >= kv_idx) & (doc[q_idx] == doc[kv_idx])"),
            TRACED((q >= kv) & (kDoc[q] == kDoc[kv])));
  EXPECT_EQ(parse("20 * tanh(score / 20)"), TRACED(20 * tanh(score / 20)));
  EXPECT_EQ(parse("q_idx / 2 // 3 % 5"), TRACED(floor_div(true_div(q, 2), 3) % 5));
  EXPECT_EQ(parse("clamp(q_idx, 0, h) + minimum(b, 1) + max(b, 2)"),
            TRACED(clamp(q, 0, h) + minimum(b, 1) + maximum(b, 2)));
  EXPECT_EQ(parse("int(score) + bool(q_idx) + float(b)"),
            TRACED(to_int(score) + to_bool(q) + to_float(b)));
  EXPECT_EQ(parse("q_idx and not kv_idx or score"), TRACED((q && !kv) || score));
  EXPECT_EQ(parse("q_idx ^ ~kv_idx | h << 2 >> b"), TRACED((q ^ ~kv) | ((h << 2) >> b)));
  EXPECT_EQ(parse("sum(table[h]) + dot(table[h], table[b]) + sum(slopes)"),
            TRACED(sum(kTable[h]) + dot(kTable[h], kTable[b]) + sum(BufferSlice(kSlopes, {}))));
  EXPECT_EQ(parse("table[h, b] * gate"), TRACED(kTable(h, b) * kGate()));
}

TEST(Parse, Numbers) {
  EXPECT_EQ(int_value(parse("1_000_000")), 1000000);
  EXPECT_EQ(int_value(parse("0")), 0);
  EXPECT_EQ(int_value(parse("00")), 0);
  EXPECT_EQ(int_value(parse("0x1F_ff")), 0x1fff);
  EXPECT_EQ(int_value(parse("9223372036854775807")), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(int_value(parse("-9223372036854775808")), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(int_value(parse("-0x8000000000000000")), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(int_value(parse("- 5")), -5);
  EXPECT_EQ(int_value(parse("--5")), 5);
  EXPECT_EQ(int_value(parse("+5")), 5);
  EXPECT_EQ(float_value(parse("1.5")), 1.5);
  EXPECT_EQ(float_value(parse(".5")), 0.5);
  EXPECT_EQ(float_value(parse("2.")), 2.0);
  EXPECT_EQ(float_value(parse("1e-3")), 1e-3);
  EXPECT_EQ(float_value(parse("1_0.2_5E+1")), 102.5);
  EXPECT_EQ(float_value(parse("5e-324")), 5e-324);
  EXPECT_EQ(float_value(parse("1e-999")), 0.0);
  EXPECT_EQ(float_value(parse("0." + std::string(400, '0') + "1e10")), 0.0);
  EXPECT_EQ(float_value(parse("0." + std::string(400, '0') + "1e401")), 1.0);
  EXPECT_EQ(float_value(parse("-inf")), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(float_value(parse("nan"))));
  EXPECT_TRUE(std::signbit(float_value(parse("-0.0"))));
  EXPECT_EQ(parse("True"), parse("true"));
  EXPECT_EQ(parse("False"), parse("false"));
  EXPECT_FALSE(parse("True") == parse("False"));
  EXPECT_EQ(parse("1").type(), ValueType::kInt);
  EXPECT_EQ(parse("1.0").type(), ValueType::kFloat);
}

TEST(Parse, PrecedenceIsPythons) {
  // Weak to strong, each beside its neighbour, on both sides.
  expect_same("b or h and q_idx", "b or (h and q_idx)");
  expect_same("b and h or q_idx", "(b and h) or q_idx");
  expect_same("not b and h", "(not b) and h");
  expect_same("b and not h", "b and (not h)");
  expect_same("not b < h", "not (b < h)");
  expect_same("b < h | q_idx", "b < (h | q_idx)");
  expect_same("b | h < q_idx", "(b | h) < q_idx");
  expect_same("b | h ^ q_idx", "b | (h ^ q_idx)");
  expect_same("b ^ h & q_idx", "b ^ (h & q_idx)");
  expect_same("b & h << q_idx", "b & (h << q_idx)");
  expect_same("b << h + q_idx", "b << (h + q_idx)");
  expect_same("b + h * q_idx", "b + (h * q_idx)");
  expect_same("b * h + q_idx", "(b * h) + q_idx");
  expect_same("-b * h", "(-b) * h");
  expect_same("b * -h", "b * (-h)");
  expect_same("-b ** h", "-(b ** h)");
  expect_same("~b ** h", "~(b ** h)");
  expect_same("b ** -h", "b ** (-h)");
  expect_same("b ** -h ** q_idx * kv_idx", "(b ** (-(h ** q_idx))) * kv_idx");
  expect_same("-2 ** h", "-(2 ** h)");
  expect_same("-doc[h]", "-(doc[h])");
  // Equal ones group to the left, ** to the right.
  expect_same("b - h - q_idx", "(b - h) - q_idx");
  expect_same("b / h // q_idx % kv_idx", "((b / h) // q_idx) % kv_idx");
  expect_same("b << h >> q_idx", "(b << h) >> q_idx");
  expect_same("b ** h ** q_idx", "b ** (h ** q_idx)");
  expect_same("not not b", "not (not b)");
  expect_same("~-+b", "~(-b)");
  EXPECT_FALSE(parse("b - (h - q_idx)") == parse("b - h - q_idx"));
  EXPECT_FALSE(parse("(b ** h) ** q_idx") == parse("b ** h ** q_idx"));
}

TEST(Parse, OtherSpellings) {
  expect_same("b && !h || q_idx", "b and not h or q_idx");
  expect_same("min(b, h) + mod(b, 3)", "minimum(b, h) + b % 3");
  expect_same("add(b, 1)", "b + 1");
  expect_same("neg(score)", "-score");
  expect_same("-True", "-1");  // a constant bool in arithmetic is a constant integer
  expect_same("b ** True", "b ** 1");
  expect_same("table[h][b]", "table[h, b]");
  expect_same("plain_pow(b, h)", "b ** h");
  EXPECT_EQ(parse("plain_pow(b, -2)").type(), ValueType::kInt);
  EXPECT_EQ(parse("b ** -2").type(), ValueType::kFloat);
}

TEST(Parse, BindingsAndLines) {
  expect_same("d = kv_idx - q_idx; score + d * d", "score + (kv_idx - q_idx) * (kv_idx - q_idx)");
  expect_same("\n a = b + 1\n\n;c = a * 2;\r\n c - a ;\n", "(b + 1) * 2 - (b + 1)");
  expect_same("unused = tanh(score); b", "b");
  // Inside brackets the ends of lines are blanks.
  expect_same("where(\n  q_idx >= kv_idx,\n  score,\n  (0\n)\n)",
              "where(q_idx >= kv_idx, score, 0)");
  expect_same("doc[\nh\n]\t", "doc[h]");
  EXPECT_EQ(parse("x = h; x").buffers().size(), 0u);
}

TEST(Parse, BuffersAreKnownByTheNameTheyAreBoundTo) {
  const Formula f = Formula::parse("mine[h]", {{"mine", kSlopes}, {"unused", kDoc}});
  ASSERT_EQ(f.buffers().size(), 1u);
  EXPECT_EQ(f.buffers()[0].name(), "mine");
  EXPECT_TRUE(f.buffers()[0].is_same(kSlopes.renamed("mine")));
}

// ---- Limits.

std::string repeated(const std::string& text, std::size_t times) {
  std::string result;
  result.reserve(text.size() * times);
  for (std::size_t i = 0; i < times; ++i) result += text;
  return result;
}

TEST(ParseLimits, TextSize) {
  const std::string size = std::to_string(formula::kMaxTextSize);
  expect_parse_error(std::string(formula::kMaxTextSize + 1, '$'),
                     "a text may have at most " + size + " bytes; got " +
                         std::to_string(formula::kMaxTextSize + 1));
  expect_parse_error(repeated("score + ", 1310720),
                     "a text may have at most " + size + " bytes; got 10485760");
  EXPECT_EQ(parse(std::string(formula::kMaxTextSize - 1, ' ') + "1"), parse("1"));
}

TEST(ParseLimits, Depth) {
  // Each kind of nesting, at the limit and one beyond.
  struct Case {
    std::string open, inside, close;
  };
  const std::vector<Case> cases = {{"(", "b", ")"},  {"not ", "b", ""},  {"-", "b", ""},
                                   {"~", "b", ""},   {"+", "b", ""},     {"tanh(", "b", ")"},
                                   {"2**", "h", ""}, {"doc[", "b", "]"}, {"where(b,", "b", ",1)"}};
  const std::size_t limit = formula::kMaxDepth;
  for (const Case& c : cases) {
    EXPECT_NO_THROW(parse(repeated(c.open, limit) + c.inside + repeated(c.close, limit))) << c.open;
    for (const std::size_t depth : {limit + 1, std::size_t{10000}, std::size_t{500000}}) {
      const std::string text = repeated(c.open, depth) + c.inside + repeated(c.close, depth);
      try {
        parse(text);
        ADD_FAILURE() << "no error for " << depth << " of " << c.open;
      } catch (const Error& error) {
        EXPECT_TRUE(
            std::string(error.what()).starts_with("[parse] nested deeper than 1000 levels\n  ..."))
            << error.what();
      }
    }
  }
  // Chains are not nesting.
  EXPECT_NO_THROW(parse(repeated("b+", 20000) + "b"));
  EXPECT_NO_THROW(parse(repeated("(b)+", 20000) + "b"));
  expect_parse_error(repeated("(", 1001), "nested deeper than 1000 levels\n  ..." +
                                              repeated("(", 72) + "\n  " + std::string(74, ' ') +
                                              "^");
}

TEST(ParseLimits, Values) {
  // A million characters: far more values than a formula may have, found out in linear time.
  const std::string text = repeated("score+", 166666) + "b";
  const auto begin = std::chrono::steady_clock::now();
  try {
    parse(text);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_TRUE(
        std::string(error.what())
            .starts_with("[parse] a formula may have at most 65536 different values\n  ..."))
        << error.what();
    EXPECT_EQ(error.kind(), ErrorKind::value);
  }
  // The same values again are no new ones.
  std::string long_text = "a0 = score*score; ";
  for (int i = 1; i < 50000; ++i) long_text += "a" + std::to_string(i) + " = score*score;";
  EXPECT_EQ(parse(long_text + "a49999"), parse("score * score"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin,
            std::chrono::seconds(20));  // a quadratic one takes minutes
}

}  // namespace
}  // namespace quire

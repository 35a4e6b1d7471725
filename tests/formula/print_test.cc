// The printer: exact texts, that they parse back to the same formula, and that size and depth of
// the text stay bounded.
#include "formula/text/print.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "formula/build.h"
#include "formula/graph.h"
#include "formula/text/parse.h"
#include "formula/type_rules.h"
#include "quire/formula.h"
#include "quire/mod.h"

namespace quire {
namespace {

using formula::Graph;
using formula::NodeId;

const Buffer kSlopes(std::vector<float>{1, 2, 3}, {.name = "slopes"});
const Buffer kDoc(std::vector<std::int32_t>{0, 0, 1, 1}, {.name = "doc"});
const Buffer kTable(Tensor({3, 4}, DType::f32), {.name = "table"});
const Buffer kGate(Tensor({}, DType::f32), {.name = "gate"});
const NamedBuffers kBuffers = {
    {"slopes", kSlopes}, {"doc", kDoc}, {"table", kTable}, {"gate", kGate}};

// The formula f(score, b, h, q, kv) is printed as `text`, and that is read as the formula.
template <class F>
void expect_text(F f, const std::string& text) {
  const auto a = detail::mod_arguments();
  const Formula formula(detail::to_base(f(a.score, a.b, a.h, a.q_idx, a.kv_idx)));
  EXPECT_EQ(formula.to_string(), text);
  EXPECT_TRUE(Formula::parse(text, kBuffers) == formula) << text;
}
#define EXPECT_TEXT(expression, text)                                                            \
  expect_text([&]([[maybe_unused]] auto score, [[maybe_unused]] auto b, [[maybe_unused]] auto h, \
                  [[maybe_unused]] auto q, [[maybe_unused]] auto kv) { return expression; },     \
              text)

// A text that is printed as it was read.
void expect_kept(const std::string& text) {
  EXPECT_EQ(Formula::parse(text, kBuffers).to_string(), text);
}

TEST(Print, Mods) {
  EXPECT_TEXT(score + kSlopes[h] * (kv - q), "score + slopes[h] * (kv_idx - q_idx)");
  EXPECT_TEXT(where(q >= kv, score, -INFINITY), "where(q_idx >= kv_idx, score, -inf)");
  EXPECT_TEXT((q >= kv) & (q - kv < 256), "(q_idx >= kv_idx) & (q_idx - kv_idx < 256)");
  EXPECT_TEXT(q >= kv && (kDoc[q] == kDoc[kv] || !(h > 2)),
              "(q_idx >= kv_idx) & ((doc[q_idx] == doc[kv_idx]) | ~(h > 2))");
  EXPECT_TEXT(20 * tanh(score / 20), "20.0 * tanh(score / 20.0)");
  EXPECT_TEXT(kTable(h, b) * kGate() + sum(kTable[h]), "table[h, b] * gate + sum(table[h])");
  EXPECT_TEXT(dot(kTable[h], kTable[b + 1]) - sum(BufferSlice(kSlopes, {})),
              "dot(table[h], table[b + 1]) - sum(slopes)");
  EXPECT_TEXT(kDoc[kDoc[q]], "doc[doc[q_idx]]");
}

TEST(Print, Constants) {
  EXPECT_TEXT(q + 5, "q_idx + 5");
  EXPECT_TEXT(q - -5, "q_idx - -5");
  EXPECT_TEXT(score + 5.0, "score + 5.0");
  EXPECT_TEXT(score + 1e15, "score + 1000000000000000.0");
  EXPECT_TEXT(score + 1e22, "score + 1e+22");
  EXPECT_TEXT(score + 0.1, "score + 0.1");
  EXPECT_TEXT(score + 0.1f, "score + 0.10000000149011612");
  EXPECT_TEXT(score + 5e-324, "score + 5e-324");
  EXPECT_TEXT(score - -0.0, "score - -0.0");
  EXPECT_TEXT(score * INFINITY, "score * inf");
  EXPECT_TEXT(score * -NAN, "score * nan");
  EXPECT_TEXT((q > 1) | true, "(q_idx > 1) | True");
  EXPECT_TEXT((q > 1) ^ false, "(q_idx > 1) ^ False");
  EXPECT_TEXT(q + std::numeric_limits<std::int64_t>::min(), "q_idx + -9223372036854775808");
  EXPECT_TEXT(pow(-2.0, score), "(-2.0) ** score");
  EXPECT_TEXT(pow(score, -4.0), "score ** -4.0");
  EXPECT_TEXT(pow(std::numeric_limits<std::int64_t>::min(), q), "(-9223372036854775808) ** q_idx");
  EXPECT_TEXT(-pow(2.0, score), "-2.0 ** score");
}

TEST(Print, AsFewParenthesesAsPossible) {
  for (const char* text : {"b - h - q_idx",
                           "b - (h - q_idx)",
                           "b + h * q_idx",
                           "(b + h) * q_idx",
                           "b * (h // q_idx)",
                           "b * h // q_idx",
                           "b ** h ** q_idx",
                           "(b ** h) ** q_idx",
                           "-b ** h",
                           "(-b) ** h",
                           "b ** -h",
                           "b ** -h ** q_idx",
                           "--b",
                           "-~b",
                           "~(b + h)",
                           "-b * h",
                           "-(b * h)",
                           "b << h + 1 >> 2",
                           "b << (h >> 1)",
                           "b & h << 1",
                           "(b & h) << 1",
                           "b & h ^ q_idx | kv_idx",
                           "b & (h ^ (q_idx | kv_idx))",
                           "b < h + 1",
                           "(b < h) + 1",
                           "(b < h) < q_idx",
                           "(b < h) == (h < q_idx)",
                           "(b < h) & (h < 3)",
                           "~(b < h)",
                           "-(b < h)",
                           "doc[b < h]",
                           "abs(b < h)",
                           "where(b < h, b, h)",
                           "minimum(b | h, b & h)",
                           "score / (score / 2.0)"})
    expect_kept(text);
}

TEST(Print, HidesTheCastsThatParsingPutsBack) {
  EXPECT_TEXT(score + q, "score + q_idx");
  EXPECT_TEXT(q * score, "q_idx * score");
  EXPECT_TEXT(true_div(q, kv), "q_idx / kv_idx");
  EXPECT_TEXT(exp(q) + exp(q > kv), "exp(q_idx) + exp(q_idx > kv_idx)");
  EXPECT_TEXT(q + (q > kv), "q_idx + (q_idx > kv_idx)");
  EXPECT_TEXT((q > kv) + (q > h), "(q_idx > kv_idx) + (q_idx > h)");
  EXPECT_TEXT((q > kv) == (q > h), "(q_idx > kv_idx) == (q_idx > h)");
  EXPECT_TEXT(score < q, "score < q_idx");
  EXPECT_TEXT(where(q, score, kv), "where(q_idx, score, kv_idx)");
  EXPECT_TEXT(where(score, q > kv, kv), "where(score, q_idx > kv_idx, kv_idx)");
  EXPECT_TEXT(clamp(q, 0.5, kv), "clamp(q_idx, 0.5, kv_idx)");
  EXPECT_TEXT(minimum(q > kv, h > 1), "minimum(q_idx > kv_idx, h > 1)");
  EXPECT_TEXT(pow(q, score) + pow(score, q), "q_idx ** score + score ** q_idx");
  EXPECT_TEXT((q > kv) & h, "(q_idx > kv_idx) & h");
  EXPECT_TEXT(h << (q > kv), "h << (q_idx > kv_idx)");
  EXPECT_TEXT(kDoc[q > kv], "doc[q_idx > kv_idx]");
  EXPECT_TEXT(score * ((std::int64_t{1} << 53) + 1), "score * 9007199254740993");
}

TEST(Print, ShowsTheCastsThatParsingWouldNotPutBack) {
  EXPECT_TEXT(to_float(q), "float(q_idx)");
  EXPECT_TEXT(to_float(q) + to_float(kv), "float(q_idx) + kv_idx");
  EXPECT_TEXT(to_float(q) == to_float(kv), "float(q_idx) == kv_idx");
  EXPECT_TEXT(clamp(to_float(q), to_float(h), to_float(kv)), "clamp(float(q_idx), h, kv_idx)");
  EXPECT_TEXT(where(q > kv, to_float(q), to_float(kv)),
              "where(q_idx > kv_idx, float(q_idx), kv_idx)");
  EXPECT_TEXT(where(q > kv, to_int(q > 1), to_int(h > 1)),
              "where(q_idx > kv_idx, int(q_idx > 1), h > 1)");
  EXPECT_TEXT(where(q > kv, to_bool(q), h > 1), "where(q_idx > kv_idx, bool(q_idx), h > 1)");
  EXPECT_TEXT(-to_float(q), "-float(q_idx)");
  EXPECT_TEXT(floor(to_float(q)), "floor(float(q_idx))");
  EXPECT_TEXT(~to_int(q > kv), "~int(q_idx > kv_idx)");
  EXPECT_TEXT(to_int(q > kv) & to_int(h > 1), "int(q_idx > kv_idx) & (h > 1)");
  EXPECT_TEXT(q && (h > 1), "bool(q_idx) & (h > 1)");
  EXPECT_TEXT(!score, "~bool(score)");
  EXPECT_TEXT(q + to_int(score), "q_idx + int(score)");
  EXPECT_TEXT(score + to_float(to_int(q > kv)), "score + int(q_idx > kv_idx)");
  EXPECT_TEXT(where(to_bool(to_int(q > kv)), 1, 2), "where(int(q_idx > kv_idx), 1, 2)");
  EXPECT_TEXT(to_int(FloatExpr(ExprBase::literal(2.5))), "int(2.5)");
}

// Passes over graphs make powers that ** would be read differently for.
TEST(Print, PowersThatTracingRewrites) {
  const auto expect = [](NodeId (*exponent)(Graph&), Op base, const std::string& text) {
    Graph graph;
    const NodeId x = make_leaf(graph, base), n = exponent(graph);
    const std::vector<NodeId> args = {make_cast(graph, x, graph[n].type), n};
    const formula::Node power = {.op = Op::kPow, .type = graph[n].type};
    const Formula f(graph, make_binary(graph, Op::kMul, make_like(graph, graph, power, args), n));
    EXPECT_EQ(f.to_string(), text);
    EXPECT_TRUE(Formula::parse(text) == f) << text;
  };
  expect([](Graph& g) { return make_int(g, -2); }, Op::kQIdx, "plain_pow(q_idx, -2) * -2");
  expect([](Graph& g) { return make_int(g, 3); }, Op::kQIdx, "plain_pow(q_idx, 3) * 3");
  expect([](Graph& g) { return make_float(g, 2); }, Op::kScore, "plain_pow(score, 2.0) * 2.0");
  expect([](Graph& g) { return make_float(g, 0.5); }, Op::kQIdx, "plain_pow(q_idx, 0.5) * 0.5");
  expect([](Graph& g) { return make_float(g, 2.5); }, Op::kScore, "score ** 2.5 * 2.5");
  expect([](Graph& g) { return make_leaf(g, Op::kHead); }, Op::kQIdx, "q_idx ** h * h");
}

TEST(Print, NamesOfBuffers) {
  const Buffer other(std::vector<float>{1}, {.name = "slopes"}),
      third(std::vector<float>{1}, {.name = "slopes_1"});
  const Buffer reserved(std::vector<float>{1}, {.name = "tanh"}),
      odd(std::vector<float>{1}, {.name = "2 ä"});
  const Buffer unnamed(std::vector<float>{1}), leaf(std::vector<float>{1}, {.name = "b"});
  const auto a = detail::mod_arguments();
  const Formula f(kSlopes[a.h] + other[a.h] + third[a.h] + reserved[a.h] + odd[a.h] + unnamed[a.h] +
                  leaf[a.h]);
  const std::string text =
      "slopes[h] + slopes_2[h] + slopes_1[h] + tanh_1[h] + _2___[h] + buffer[h] + b_1[h]";
  EXPECT_EQ(f.to_string(), text);
  const auto names = formula::printed_names(f.graph());
  ASSERT_EQ(names.size(), 7u);
  EXPECT_EQ(names[1].first, "slopes_2");
  EXPECT_TRUE(names[1].second.is_same(other));
  const Formula back = Formula::parse(text, names);
  EXPECT_EQ(back.to_string(), text);
  EXPECT_EQ(back.size(), f.size());
}

// ---- Size and depth.

// Levels of brackets of a text, prefixes apart.
int bracket_depth(const std::string& text) {
  int depth = 0, deepest = 0;
  for (const char c : text) {
    if (c == '(' || c == '[') deepest = std::max(deepest, ++depth);
    if (c == ')' || c == ']') --depth;
  }
  return deepest;
}

void expect_round_trip(const Formula& f) {
  const std::string text = f.to_string();
  const Formula back = Formula::parse(text, kBuffers);
  EXPECT_TRUE(back == f) << text.substr(0, 200);
  EXPECT_EQ(back.to_string(), text);
}

TEST(Print, SharedValuesAreWrittenOutWhileThatIsShort) {
  const auto a = detail::mod_arguments();
  FloatExpr x = a.score;
  for (int i = 0; i < 3; ++i) x = x * x;
  const Formula f(x);
  EXPECT_EQ(f.to_string(), "score * score * (score * score) * (score * score * (score * score))");
  expect_round_trip(f);
}

TEST(Print, SharedValuesGetNamesWhereTextWouldExplode) {
  const auto a = detail::mod_arguments();
  FloatExpr x = a.score;
  for (int i = 0; i < 40; ++i) x = x * x;  // written out: 2**40 factors
  const Formula f(x);
  const std::string text = f.to_string();
  EXPECT_TRUE(text.starts_with("t0 = score * score; t1 = t0 * t0; t2 = t1 * t1; ")) << text;
  EXPECT_TRUE(text.ends_with("t38 = t37 * t37; t38 * t38")) << text;
  expect_round_trip(f);
}

TEST(Print, NamesOfSharedValuesAvoidThoseOfBuffers) {
  const auto a = detail::mod_arguments();
  const Buffer t1(std::vector<float>{1}, {.name = "t1"});
  FloatExpr x = a.score + t1[a.h];
  for (int i = 0; i < 12; ++i) x = x * x;
  const Formula f(x);
  const std::string text = f.to_string();
  EXPECT_TRUE(text.starts_with("t0 = score + t1[h]; t2 = t0 * t0; t3 = t2 * t2; ")) << text;
  EXPECT_TRUE(Formula::parse(text, {{"t1", t1}}) == f);
}

TEST(Print, CastsAreNamedByWhatIsCast) {
  const auto a = detail::mod_arguments();
  const FloatExpr d = to_float(a.kv_idx - a.q_idx);
  FloatExpr x = a.score;
  for (int i = 0; i < 300; ++i) x = x * d + i;
  const Formula f(x);
  EXPECT_TRUE(f.to_string().starts_with("t0 = kv_idx - q_idx; ")) << f.to_string().substr(0, 100);
  expect_round_trip(f);
}

TEST(Print, DeepGraphs) {
  const auto check = [](Op op, int depth, std::size_t per_node) {
    Graph graph;
    NodeId x = make_leaf(graph, Op::kScore);
    const NodeId one = make_float(graph, 1.5);
    for (int i = 0; i < depth; ++i) {
      if (op == Op::kToInt)
        x = make_cast(graph, x, i % 2 == 0 ? ValueType::kInt : ValueType::kFloat);
      else
        x = formula::op_info(op).arity == 1 ? make_unary(graph, op, x)
                                            : make_binary(graph, op, one, x);
    }
    const Formula f(graph, x);
    const std::string text = f.to_string();
    EXPECT_LE(bracket_depth(text), formula::kMaxLevels);
    EXPECT_LE(text.size(), per_node * static_cast<std::size_t>(depth));
    expect_round_trip(f);
  };
  check(Op::kTanh, 60000, 12);   // tanh(tanh(...))
  check(Op::kNeg, 20000, 4);     // ---...
  check(Op::kNeg, 1500, 4);      // short, and still too deep for the parser without names
  check(Op::kToInt, 20000, 12);  // int(float(int(...)))
  check(Op::kSub, 20000, 12);    // 1.5 - (1.5 - ...)
  check(Op::kPow, 20000, 12);    // 1.5 ** 1.5 ** ...
}

TEST(Print, LongChainsAreWrittenInOnePiece) {
  Graph graph;
  NodeId x = make_leaf(graph, Op::kScore);
  const NodeId b = make_leaf(graph, Op::kBatch);
  for (int i = 0; i < 60000; ++i) x = make_binary(graph, Op::kAdd, x, b);
  const Formula f(graph, x);
  const std::string text = f.to_string();
  EXPECT_EQ(bracket_depth(text), 0);
  EXPECT_EQ(text.find('='), std::string::npos);
  EXPECT_EQ(text.size(), 5u + 60000 * 4);
  expect_round_trip(f);
}

// The largest graphs must still be readable: names instead of arguments, for the operation with the
// longest text.
TEST(Print, WideGraphsAreReadBack) {
  Graph graph;
  const NodeId score = make_leaf(graph, Op::kScore);
  std::vector<NodeId> values = {score, make_unary(graph, Op::kGeluTanh, score)};
  for (std::size_t i = 2; graph.size() + 2 < formula::kMaxNodes; ++i)
    values.push_back(make_clamp(graph, values[i - 1], values[i - 2], values[i / 2]));
  const Formula f(graph, values.back());
  EXPECT_LT(f.to_string().size(), formula::kMaxTextSize);
  expect_round_trip(f);
}

// The text depends on the formula alone, not on how its graph came about.
TEST(Print, DoesNotDependOnTheOrderOfNodes) {
  Graph graph;
  const NodeId kv = make_leaf(graph, Op::kKvIdx), unused = make_int(graph, 7),
               q = make_leaf(graph, Op::kQIdx);
  NodeId x = make_binary(graph, Op::kSub, q, kv);
  for (int i = 0; i < 14; ++i)
    x = make_binary(graph, Op::kAdd, make_binary(graph, Op::kMul, x, x), x);
  make_binary(graph, Op::kAdd, unused, x);
  const Formula f(graph, x);
  EXPECT_EQ(formula::print(graph, x), f.to_string());
  EXPECT_TRUE(f.to_string().starts_with("t0 = q_idx - kv_idx; "));
}

}  // namespace
}  // namespace quire

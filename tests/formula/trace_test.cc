// Tracing C++ lambdas: what they record, what does not compile, what is an error when the lambda
// runs.
#include <gtest/gtest.h>

#include <cmath>
#include <concepts>
#include <vector>

#include "quire/mod.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using testing::expect_error;

const Buffer& slopes() {
  static const Buffer buffer(std::vector<float>{1, 2, 3}, {.name = "slopes"});
  return buffer;
}
const Buffer& doc() {
  static const Buffer buffer(std::vector<std::int32_t>{0, 0, 1, 1}, {.name = "doc"});
  return buffer;
}
const Buffer& table() {
  static const Buffer buffer(Tensor({2, 3, 4}, DType::f32), {.name = "table"});
  return buffer;
}

template <class F>
std::string traced(F f) {
  return ScoreMod(f).to_string();
}
template <class F>
std::string traced_mask(F f) {
  return MaskMod(f).to_string();
}

TEST(Trace, RecordsArithmetic) {
  EXPECT_EQ(
      traced([](auto s, auto b, auto h, auto q, auto kv) { return s * 2 + b - h * q - (-kv); }),
      "score * 2.0 + b - h * q_idx - -kv_idx");
  EXPECT_EQ(traced([](auto s, auto, auto, auto q, auto kv) {
              return floor_div(q, 4) % 3 + true_div(q, kv) + s;
            }),
            "q_idx // 4 % 3 + q_idx / kv_idx + score");
  EXPECT_EQ(traced([](auto s, auto, auto, auto, auto) { return 1.5 / s - s / 2; }),
            "1.5 / score - score / 2.0");
  EXPECT_EQ(traced([](auto s, auto, auto, auto q, auto) { return pow(s, 1.5) + pow(q, 2); }),
            "score ** 1.5 + q_idx * q_idx");
}

TEST(Trace, RecordsLogicBitsAndComparisons) {
  EXPECT_EQ(
      traced_mask([](auto, auto, auto q, auto kv) { return ((q >= kv) && !(q > 7)) || kv == 3; }),
      "(q_idx >= kv_idx) & ~(q_idx > 7) | (kv_idx == 3)");
  EXPECT_EQ(traced_mask([](auto, auto h, auto q, auto kv) { return ((q ^ kv) & 3) == (~h | 1); }),
            "(q_idx ^ kv_idx) & 3 == ~h | 1");
  EXPECT_EQ(traced_mask([](auto, auto, auto q, auto kv) { return (q << 2) < (kv >> 1); }),
            "q_idx << 2 < kv_idx >> 1");
  EXPECT_EQ(traced_mask([](auto, auto, auto q, auto) { return q; }), "bool(q_idx)");
  EXPECT_EQ(traced_mask([](auto, auto, auto, auto) { return true; }), "True");
}

TEST(Trace, RecordsChoicesCastsAndFunctions) {
  EXPECT_EQ(
      traced([](auto s, auto, auto, auto q, auto kv) { return where(q >= kv, s, -INFINITY); }),
      "where(q_idx >= kv_idx, score, -inf)");
  EXPECT_EQ(traced([](auto s, auto, auto, auto q, auto kv) {
              return clamp(q - kv, -8, 8) + minimum(s, maximum(q, 1));
            }),
            "clamp(q_idx - kv_idx, -8, 8) + minimum(score, maximum(q_idx, 1))");
  EXPECT_EQ(
      traced([](auto s, auto, auto, auto q, auto) { return to_int(s) + to_bool(q) + to_float(q); }),
      "float(int(score) + bool(q_idx)) + q_idx");
  EXPECT_EQ(traced([](auto s, auto, auto, auto, auto) {
              return exp(s) + exp2(s) + expm1(s) + log(s) + log2(s) + log1p(s) + sqrt(s) +
                     rsqrt(s) + sin(s) + cos(s);
            }),
            "exp(score) + exp2(score) + expm1(score) + log(score) + log2(score) + log1p(score) + "
            "sqrt(score) + "
            "rsqrt(score) + sin(score) + cos(score)");
  EXPECT_EQ(traced([](auto s, auto, auto, auto, auto) {
              return tanh(s) + sigmoid(s) + erf(s) + relu(s) + gelu(s) + gelu_tanh(s) + silu(s) +
                     softplus(s);
            }),
            "tanh(score) + sigmoid(score) + erf(score) + relu(score) + gelu(score) + "
            "gelu_tanh(score) + silu(score) + "
            "softplus(score)");
  EXPECT_EQ(traced([](auto s, auto, auto, auto, auto) {
              return abs(s) + sign(s) + floor(s) + ceil(s) + round(s) + trunc(s) + (+s);
            }),
            "abs(score) + sign(score) + floor(score) + ceil(score) + round(score) + trunc(score) + "
            "score");
}

TEST(Trace, ReadsBuffers) {
  EXPECT_EQ(
      traced([](auto s, auto, auto h, auto q, auto kv) { return s + slopes()[h] * (kv - q); }),
      "score + slopes[h] * (kv_idx - q_idx)");
  EXPECT_EQ(traced_mask([](auto, auto, auto q, auto kv) { return doc()[q] == doc()[kv]; }),
            "doc[q_idx] == doc[kv_idx]");
  EXPECT_EQ(traced([](auto s, auto b, auto h, auto q, auto) {
              return s + table()(b, h, q) + table()[b][h][0];
            }),
            "score + table[b, h, q_idx] + table[b, h, 0]");
  EXPECT_EQ(
      traced([](auto s, auto, auto, auto q, auto) { return s + slopes()[doc()[q]] + slopes()[0]; }),
      "score + slopes[doc[q_idx]] + slopes[0]");
  EXPECT_EQ(traced([](auto s, auto b, auto h, auto, auto) {
              return s + sum(table()(b)) + dot(table()(b, h), table()(0, 1));
            }),
            "score + sum(table[b]) + dot(table[b, h], table[0, 1])");
}

TEST(Trace, SharesEqualValues) {
  const ScoreMod mod = [](auto s, auto, auto, auto q, auto kv) { return s * (q - kv) + (q - kv); };
  EXPECT_EQ(mod.formula().size(), 7u);  // score, q, kv, q - kv, its float, the product, the sum
}

TEST(Trace, AnyResultIsCast) {
  EXPECT_EQ(ScoreMod([](auto, auto, auto, auto q, auto) { return q; }).formula().type(),
            ValueType::kFloat);
  EXPECT_EQ(ScoreMod([](auto, auto, auto, auto, auto) { return 3; }).to_string(), "3.0");
  EXPECT_EQ(MaskMod([](auto, auto, auto q, auto) { return q - 1; }).formula().type(),
            ValueType::kBool);
}

TEST(Trace, MasksCombine) {
  const MaskMod causal = [](auto, auto, auto q, auto kv) { return q >= kv; };
  const MaskMod window = [](auto, auto, auto q, auto kv) { return q - kv <= 256; };
  EXPECT_EQ((causal & window).to_string(), "(q_idx >= kv_idx) & (q_idx - kv_idx <= 256)");
  EXPECT_EQ((causal | ~window).to_string(), "(q_idx >= kv_idx) | ~(q_idx - kv_idx <= 256)");
  EXPECT_TRUE((causal & causal).formula() == (causal & causal).formula());
}

// What must not compile.
template <class A, class B>
concept Divides = requires(A a, B b) { a / b; };
static_assert(!Divides<IntExpr, IntExpr> && !Divides<IntExpr, int> && !Divides<int, IntExpr> &&
              !Divides<BoolExpr, IntExpr>);
static_assert(Divides<FloatExpr, IntExpr> && Divides<IntExpr, double> &&
              Divides<FloatExpr, float> && Divides<AnyExpr, int>);
template <class A>
concept ConvertsToBool = requires(A a) { a ? 1 : 0; };
static_assert(!ConvertsToBool<BoolExpr> && !ConvertsToBool<IntExpr> && !ConvertsToBool<FloatExpr>);
static_assert(!std::convertible_to<BoolExpr, bool>);
static_assert(
    std::same_as<decltype(std::declval<IntExpr>() + std::declval<FloatExpr>()), FloatExpr>);
static_assert(std::same_as<decltype(std::declval<BoolExpr>() + std::declval<BoolExpr>()), IntExpr>);
static_assert(std::same_as<decltype(std::declval<IntExpr>() < 1.5), BoolExpr>);
static_assert(
    std::same_as<decltype(std::declval<BoolExpr>() & std::declval<BoolExpr>()), BoolExpr>);
static_assert(!std::constructible_from<MaskMod, void (*)(int)>);
using TwoArguments = decltype([](auto a, auto b) { return a + b; });
static_assert(!std::constructible_from<ScoreMod, TwoArguments>);
static_assert(!std::constructible_from<MaskMod, TwoArguments>);

TEST(Trace, ErrorsNameWhatIsWrong) {
  expect_error(ErrorKind::value, "[MaskMod] a mask may not depend on the score", [] {
    MaskMod(ScoreMod([](auto s, auto, auto, auto, auto) { return s; }).formula());
  });
  expect_error(ErrorKind::type,
               "[formula] '/' on two integers is ambiguous; use floor_div or true_div",
               [] { MaskMod([](auto, auto, auto q, auto) { return doc()[q] / 2; }); });
  expect_error(ErrorKind::type, "[formula] '<<' needs integers; got float and int",
               [] { ScoreMod([](auto s, auto, auto, auto, auto) { return s << 2; }); });
  expect_error(ErrorKind::type, "[formula] '&' needs integers or bools; got float and int",
               [] { ScoreMod([](auto s, auto, auto, auto q, auto) { return s & q; }); });
  expect_error(ErrorKind::type, "[formula] '~' needs an integer or a bool; got float",
               [] { ScoreMod([](auto s, auto, auto, auto, auto) { return ~s; }); });
  expect_error(ErrorKind::type,
               "[formula] an index of buffer 'slopes' must be an integer; got float",
               [] { ScoreMod([](auto s, auto, auto, auto, auto) { return s + slopes()[s]; }); });
  expect_error(
      ErrorKind::value,
      "[formula] buffer 'table' has rank 3 (shape [2, 3, 4]) and needs 3 indices; got 2",
      [] { ScoreMod([](auto s, auto b, auto h, auto, auto) { return s + table()(b, h); }); });
  expect_error(
      ErrorKind::value,
      "[formula] 'sum' needs a buffer with axes left to add over; buffer 'slopes' has shape [3] "
      "and got 1 indices",
      [] { ScoreMod([](auto s, auto, auto h, auto, auto) { return s + sum(slopes()(h)); }); });
  expect_error(ErrorKind::value,
               "[formula] 'dot' needs equal shapes; 'table' leaves [4] and 'slopes' leaves [3]",
               [] {
                 ScoreMod([](auto s, auto b, auto h, auto, auto) {
                   return s + dot(table()(b, h), slopes()());
                 });
               });
  expect_error(ErrorKind::type, "[Buffer] only floats have a gradient; buffer 'ids' is i32", [] {
    Buffer(std::vector<std::int32_t>{1}, {.name = "ids", .wants_gradient = true});
  });
}

TEST(Trace, AMillionOperationsAreAnErrorNotACrash) {
  expect_error(ErrorKind::value, "[formula] a formula may have at most 65536 different values", [] {
    ScoreMod([](auto s, auto, auto, auto, auto) {
      auto x = s + 1;
      for (int i = 0; i < 1000000; ++i) x = x * s + i;
      return x;
    });
  });
}

TEST(Trace, DeepChainsAreFine) {
  const ScoreMod mod = [](auto s, auto, auto, auto, auto) {
    auto x = s + 1;
    for (int i = 0; i < 20000; ++i) x = x * s;
    return x;
  };
  EXPECT_EQ(mod.formula().size(), 20003u);
}

TEST(Trace, BuffersShareOrBorrow) {
  std::vector<float> memory{1, 2, 3, 4};
  const Buffer borrowed =
      Buffer::borrow(ConstTensorView(memory.data(), DType::f32, {2, 2}), {.name = "m"});
  EXPECT_TRUE(borrowed.has_data());
  EXPECT_EQ(borrowed.view().data(), memory.data());
  EXPECT_FALSE(Buffer::declare(DType::i64, {5}, {.name = "later"}).has_data());
  const Buffer copy = borrowed;
  EXPECT_TRUE(copy.is_same(borrowed));
  EXPECT_FALSE(copy.renamed("n").is_same(borrowed));
  EXPECT_EQ(Buffer(std::vector<bool>{true, false}).dtype(), DType::boolean);
}

}  // namespace
}  // namespace quire

// Formulas at single points: every argument, casts, choices, and reads of buffers of every dtype
// and shape.
#include "reference/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "formula/build.h"
#include "tests/reference/trace.h"
#include "tests/support/expect_error.h"

namespace quire::reference {
namespace {

using testing::expect_error;
using testing::trace;
using testing::value_of;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
const Point kPoint{.b = 1, .h = 2, .q_idx = 5, .kv_idx = 7, .score = 0.25};

TEST(Evaluate, Arguments) {
  EXPECT_EQ(value_of([](auto s, auto, auto, auto, auto) { return s; }, kPoint).f, 0.25);
  const Value all = value_of(
      [](auto, auto b, auto h, auto q, auto kv) { return b * 1000 + h * 100 + q * 10 + kv; },
      kPoint);
  EXPECT_EQ(all.type, ValueType::kInt);
  EXPECT_EQ(all.i, 1257);
}

TEST(Evaluate, Alibi) {
  const Buffer slopes(std::vector<float>{0.5f, 0.25f, 0.125f});
  const Value v = value_of(
      [&](auto s, auto, auto h, auto q, auto kv) { return s + slopes[h] * (kv - q); }, kPoint);
  EXPECT_EQ(v.type, ValueType::kFloat);
  EXPECT_EQ(v.f, 0.25 + 0.125 * 2);
}

TEST(Evaluate, Casts) {
  const auto at = [](double score) { return Point{.score = score}; };
  const auto as_int = [](auto s, auto, auto, auto, auto) { return to_int(s); };
  EXPECT_EQ(value_of(as_int, at(-2.9)).i, -2);
  EXPECT_EQ(value_of(as_int, at(1e300)).i, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(value_of(as_int, at(kNaN)).i, 0);
  const auto as_bool = [](auto s, auto, auto, auto, auto) { return to_bool(s); };
  EXPECT_FALSE(value_of(as_bool, at(-0.0)).truth());
  EXPECT_TRUE(value_of(as_bool, at(kNaN)).truth());
  const auto as_float = [](auto, auto, auto, auto q, auto) { return to_float(q); };
  EXPECT_EQ(value_of(as_float, {.q_idx = (std::int64_t{1} << 53) + 1}).f, 0x1p53);
}

TEST(Evaluate, LogicAndChoice) {
  const auto xor_of = [](auto, auto, auto, auto q, auto kv) { return (q > 3) ^ (kv > 3); };
  EXPECT_FALSE(value_of(xor_of, {.q_idx = 4, .kv_idx = 4}).truth());
  EXPECT_TRUE(value_of(xor_of, {.q_idx = 4, .kv_idx = 3}).truth());
  const auto choice = [](auto s, auto, auto, auto q, auto kv) {
    return where(q >= kv && !(q == 9), s, -1.0);
  };
  EXPECT_EQ(value_of(choice, {.q_idx = 3, .kv_idx = 2, .score = 5}).f, 5);
  EXPECT_EQ(value_of(choice, {.q_idx = 9, .kv_idx = 2, .score = 5}).f, -1);
  EXPECT_EQ(value_of(choice, {.q_idx = 1, .kv_idx = 2, .score = 5}).f, -1);
}

TEST(Evaluate, Clamp) {
  const auto f = [](auto s, auto, auto, auto, auto) { return clamp(s, -1.0, 1.0); };
  EXPECT_EQ(value_of(f, {.score = 3}).f, 1);
  EXPECT_EQ(value_of(f, {.score = -3}).f, -1);
  EXPECT_TRUE(std::isnan(value_of(f, {.score = kNaN}).f));
  const auto i = [](auto, auto, auto, auto q, auto kv) { return clamp(q, 2, kv); };
  EXPECT_EQ(value_of(i, {.q_idx = 1, .kv_idx = 5}).i, 2);
  EXPECT_EQ(value_of(i, {.q_idx = 1, .kv_idx = 0}).i, 0);  // minimum last: the high end wins
}

template <class T>
double first_element(const std::vector<T>& values) {
  const Buffer buffer(Tensor::from(values));
  return value_of([&](auto, auto, auto, auto q, auto) { return buffer[q]; }).number();
}

TEST(Evaluate, LoadsEveryDType) {
  EXPECT_EQ(first_element<float>({1.5f}), 1.5);
  EXPECT_EQ(first_element<double>({0.1}), 0.1);
  EXPECT_EQ(first_element<BFloat16>({BFloat16(1.5)}), 1.5);
  EXPECT_EQ(first_element<Float16>({Float16(-0.25)}), -0.25);
  EXPECT_EQ(first_element<std::int8_t>({-128}), -128);
  EXPECT_EQ(first_element<std::uint8_t>({255}), 255);
  EXPECT_EQ(first_element<std::int16_t>({-300}), -300);
  EXPECT_EQ(first_element<std::int32_t>({1 << 30}), 1 << 30);
  EXPECT_EQ(first_element<std::int64_t>({-7}), -7);
  const Buffer flags(Tensor::from(std::vector<bool>{true}));
  const Value flag = value_of([&](auto, auto, auto, auto q, auto) { return flags[q]; });
  EXPECT_EQ(flag.type, ValueType::kInt);
  EXPECT_EQ(flag.i, 1);
}

TEST(Evaluate, NegativeIndicesWrapOnce) {
  const Buffer table(std::vector<std::int32_t>{10, 20, 30});
  const Formula f = trace([&](auto, auto, auto, auto q, auto) { return table[q]; });
  Evaluator evaluator(f);
  for (const auto& [index, value] : {std::pair{-1, 30}, {-3, 10}, {2, 30}}) {
    EXPECT_EQ(evaluator.run({.q_idx = index}).i, value);
    EXPECT_FALSE(evaluator.fault()) << index;
  }
}

TEST(Evaluate, StridedAndNestedLoads) {
  const Tensor numbers = Tensor::from<float>({0, 1, 2, 3, 4, 5}, {2, 3});
  const Buffer transposed = Buffer::borrow(numbers.view().transpose(0, 1));  // [3, 2]
  const Buffer which(std::vector<std::int64_t>{1, 0});
  const auto f = [&](auto, auto, auto, auto q, auto kv) { return transposed(q, which[kv]); };
  EXPECT_EQ(value_of(f, {.q_idx = 2, .kv_idx = 0}).f, 5);
  EXPECT_EQ(value_of(f, {.q_idx = 2, .kv_idx = 1}).f, 2);
}

TEST(Evaluate, SumAndDotOverTrailingAxes) {
  const Tensor numbers = Tensor::from<double>({1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 2});
  const Buffer a(numbers);
  const Buffer b = Buffer::borrow(numbers.view().transpose(1, 2));
  const Buffer ints(Tensor::from<std::int32_t>({1, -1, 2, -2}, {2, 2}));
  EXPECT_EQ(value_of([&](auto, auto, auto, auto q, auto) { return sum(a[q]); }, {.q_idx = 1}).f,
            26);
  EXPECT_EQ(value_of([&](auto, auto, auto, auto q, auto) { return sum(ints[q]); }, {.q_idx = 1}).i,
            0);
  // a[0] is 1 2 / 3 4 and b[-1] is 5 7 / 6 8.
  const auto product = [&](auto, auto, auto, auto q, auto) { return dot(a[q], b[-1]); };
  EXPECT_EQ(value_of(product).f, 1 * 5 + 2 * 7 + 3 * 6 + 4 * 8);
  const auto mixed = [&](auto, auto, auto, auto q, auto) { return dot(a(q, 1), ints[0]); };
  EXPECT_EQ(value_of(mixed).f, 3 - 4);
  const auto whole = [&](auto, auto, auto, auto, auto) { return dot(ints[1], ints[1]); };
  EXPECT_EQ(value_of(whole).i, 8);
}

TEST(Evaluate, EmptyTrailingAxesGiveZeroWithoutFault) {
  const Buffer empty(Tensor({3, 0}, DType::f32));
  Evaluator evaluator(trace([&](auto, auto, auto, auto q, auto) { return sum(empty[q]); }));
  EXPECT_EQ(evaluator.run({.q_idx = 1}).f, 0);
  EXPECT_FALSE(evaluator.fault());
  evaluator.run({.q_idx = 3});
  EXPECT_TRUE(evaluator.fault());
}

TEST(Evaluate, DeclaredBufferIsAnError) {
  const Buffer slopes = Buffer::declare(DType::f32, {8}, {.name = "slopes"});
  const Formula f = trace([&](auto, auto, auto h, auto, auto) { return slopes[h]; });
  expect_error(ErrorKind::value,
               "[formula] buffer 'slopes' is only declared: it has no data to evaluate",
               [&] { Evaluator evaluator(f); });
}

TEST(Evaluate, SeveralRootsOfAGraph) {
  formula::Graph graph;
  const auto q = make_leaf(graph, Op::kQIdx), one = formula::make_int(graph, 1);
  const auto next = make_binary(graph, Op::kAdd, q, one),
             twice = make_binary(graph, Op::kMul, q, q);
  const formula::NodeId roots[] = {twice, next};
  Evaluator evaluator(graph, roots);
  EXPECT_EQ(evaluator.run({.q_idx = 5}).i, 25);
  EXPECT_EQ(evaluator[next].i, 6);
}

TEST(Evaluate, DeepFormulasNeedNoStack) {
  formula::Graph graph;
  formula::NodeId id = make_leaf(graph, Op::kQIdx);
  const formula::NodeId kv = make_leaf(graph, Op::kKvIdx);
  constexpr int kDepth = 60000;
  for (int i = 0; i < kDepth; ++i) id = make_binary(graph, Op::kAdd, id, kv);
  Evaluator evaluator(Formula(graph, id));
  EXPECT_EQ(evaluator.run({.q_idx = 7, .kv_idx = 2}).i, 7 + 2 * kDepth);
}

}  // namespace
}  // namespace quire::reference

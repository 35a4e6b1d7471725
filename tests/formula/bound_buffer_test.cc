// Reads of buffers over rectangles: wrapping and clamping of indices, several axes, strides, sums,
// and what is known without the contents.
#include "formula/bound/bound_buffer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "formula/bound/bound.h"
#include "quire/mod.h"
#include "quire/tensor.h"
#include "tests/support/expect_interval.h"

namespace quire::formula {
namespace {

using testing::expect_floats;
using testing::expect_ints;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr double kInf = std::numeric_limits<double>::infinity();

Rectangle rectangle(IndexRange q, IndexRange kv) { return {{0, 0}, {0, 0}, q, kv}; }

// The formula that `f` makes of (score, b, h, q, kv).
template <class F>
Formula traced(F f) {
  const quire::detail::ModArguments a = quire::detail::mod_arguments();
  return Formula(quire::detail::to_base(f(a.score, a.b, a.h, a.q_idx, a.kv_idx)));
}

Interval bound_of(const Formula& formula, const Rectangle& r, BoundOptions options = {}) {
  const Bounder bounder(formula, Precision::kF32, options);
  std::vector<Interval> scratch = bounder.make_scratch();
  return bounder.bound(r, scratch);
}

Tri classified(const MaskMod& mask, const Rectangle& r) {
  const Bounder bounder(mask.formula(), Precision::kF32);
  std::vector<Interval> scratch = bounder.make_scratch();
  return bounder.classify(r, scratch);
}

TEST(BoundBuffer, IndicesWrapAndClamp) {
  const Buffer table(std::vector<std::int64_t>{10, 11, 12, 13, 14});
  const Formula f = traced([&](auto, auto, auto, auto q, auto) { return table[q]; });
  expect_ints(bound_of(f, rectangle({1, 3}, {0, 0})), 11, 13);
  expect_ints(bound_of(f, rectangle({-2, -1}, {0, 0})), 13, 14);
  expect_ints(bound_of(f, rectangle({-5, -5}, {0, 0})), 10, 10);
  expect_ints(bound_of(f, rectangle({-9, -5}, {0, 0})), 10, 10);   // below: the first
  expect_ints(bound_of(f, rectangle({7, kMax}, {0, 0})), 14, 14);  // beyond: the last
  expect_ints(bound_of(f, rectangle({kMin, kMax}, {0, 0})), 10, 14);
  const Buffer ends(std::vector<std::int64_t>{1, 5, 99, 98, 3});
  const Formula g = traced([&](auto, auto, auto, auto q, auto) { return ends[q]; });
  expect_ints(bound_of(g, rectangle({-1, 1}, {0, 0})), 1, 5);  // both ends, not the middle
  expect_ints(bound_of(g, rectangle({-2, 1}, {0, 0})), 1, 98);
  const Buffer rows(Tensor::from<std::int64_t>({1, 2, 99, 98, 97, 96, 3, 4}, {4, 2}));
  const Formula h = traced([&](auto, auto, auto, auto q, auto) { return sum(rows[q]); });
  expect_ints(bound_of(h, rectangle({-1, 0}, {0, 0})), 2 * 1, 2 * 4);
}

TEST(BoundBuffer, SeveralIndices) {
  std::vector<std::int64_t> values(4 * 5 * 6);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i);
  const Buffer table(Tensor::from(values, {4, 5, 6}));
  const Formula f = traced([&](auto, auto, auto h, auto q, auto kv) { return table(h, q, kv); });
  expect_ints(bound_of(f, {{0, 0}, {2, 2}, {3, 3}, {1, 4}}), 2 * 30 + 3 * 6 + 1,
              2 * 30 + 3 * 6 + 4);
  expect_ints(bound_of(f, {{0, 0}, {1, 2}, {1, 3}, {2, 3}}), 30 + 6 + 2, 60 + 18 + 3);
  expect_ints(bound_of(f, {{0, 0}, {1, 1}, {0, 4}, {0, 5}}), 30, 59);
  expect_ints(bound_of(f, {{0, 0}, {0, 3}, {0, 4}, {0, 5}}), 0, 119);
  const Formula nested =
      traced([&](auto, auto, auto h, auto q, auto) { return table(h, table(0, 0, q) - 1, 5); });
  expect_ints(bound_of(nested, {{0, 0}, {1, 1}, {1, 3}, {0, 0}}), 30 + 5, 30 + 2 * 6 + 5);
}

TEST(BoundBuffer, RowsAreLookedUpOneByOneWhileTheyAreFew) {
  // 1 in the left half of each row, 0 in the right half.
  std::vector<bool> values(300 * 64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 64 < 32;
  const Buffer dense(Tensor::from(values, {300, 64}));
  const MaskMod mask = [&](auto, auto, auto q, auto kv) { return dense(q, kv) != 0; };
  EXPECT_EQ(classified(mask, rectangle({0, 127}, {0, 31})), Tri::kTrue);
  EXPECT_EQ(classified(mask, rectangle({128, 255}, {32, 63})), Tri::kFalse);
  EXPECT_EQ(classified(mask, rectangle({0, 127}, {31, 32})), Tri::kUnknown);
  EXPECT_EQ(classified(mask, rectangle({0, 128}, {0, 31})), Tri::kUnknown);  // too many rows
}

TEST(BoundBuffer, AnyStrides) {
  Tensor tensor = Tensor::from<std::int32_t>({0, 1, 2, 3, 4, 5}, {2, 3});
  const Buffer transposed = Buffer::borrow(tensor.view().transpose(0, 1));
  const Formula f = traced([&](auto, auto, auto, auto q, auto kv) { return transposed(q, kv); });
  expect_ints(bound_of(f, rectangle({1, 2}, {0, 0})), 1, 2);
  expect_ints(bound_of(f, rectangle({1, 1}, {0, 1})), 1, 4);
  // A view far larger than its memory: one row repeated 2^40 times.
  const Buffer repeated =
      Buffer::borrow(tensor.view().slice(0, 1, 2).expand({std::int64_t{1} << 40, 3}));
  const Formula g = traced([&](auto, auto, auto, auto q, auto kv) { return repeated(q, kv); });
  expect_ints(bound_of(g, rectangle({0, (std::int64_t{1} << 40) - 1}, {0, 1})), 3, 4);
}

TEST(BoundBuffer, OnlyDeclaredOrNotToBeRead) {
  const Rectangle r = rectangle({0, 2}, {0, 0});
  const auto load = [](const Buffer& buffer) {
    return traced([&](auto, auto, auto, auto q, auto) { return buffer[q]; });
  };
  const auto declared = [&](DType dtype) {
    return bound_of(load(Buffer::declare(dtype, Shape{3})), r);
  };
  expect_ints(declared(DType::boolean), 0, 1);
  expect_ints(declared(DType::u8), 0, 255);
  expect_ints(declared(DType::i8), -128, 127);
  expect_ints(declared(DType::i16), -32768, 32767);
  expect_ints(declared(DType::i32), -(std::int64_t{1} << 31), (std::int64_t{1} << 31) - 1);
  expect_ints(declared(DType::i64), kMin, kMax);
  expect_floats(declared(DType::bf16), -kInf, kInf, true);
  const Buffer bytes(Tensor::from<std::uint8_t>({7, 8, 9}));
  expect_ints(bound_of(load(bytes), r), 7, 9);
  expect_ints(bound_of(load(bytes), r, {.read_buffers = false}), 0, 255);
}

TEST(BoundBuffer, EmptyBuffersGiveZero) {
  const Rectangle r = rectangle({0, 2}, {0, 0});
  for (const bool read : {false, true}) {
    const Buffer ints(Tensor(Shape{0}, DType::i64)), rows(Tensor(Shape{0, 3}, DType::f32)),
        columns(Tensor(Shape{3, 0}, DType::f32));
    const BoundOptions options{.read_buffers = read};
    const auto load = [&](auto, auto, auto, auto q, auto) { return ints[q]; };
    expect_ints(bound_of(traced(load), r, options), 0, 0);
    const auto sum_rows = [&](auto, auto, auto, auto q, auto) { return sum(rows[q]); };
    expect_floats(bound_of(traced(sum_rows), r, options), 0, 0);
    const auto sum_columns = [&](auto, auto, auto, auto q, auto) { return sum(columns[q]); };
    expect_floats(bound_of(traced(sum_columns), r, options), 0, 0);
    const auto dot_columns = [&](auto, auto, auto, auto q, auto kv) {
      return dot(columns[q], columns[kv]);
    };
    expect_floats(bound_of(traced(dot_columns), r, options), 0, 0);
  }
}

TEST(BoundBuffer, ASnapshotOfTheContents) {
  Tensor tensor = Tensor::from<std::int64_t>({1, 2, 3});
  const Buffer buffer(tensor);
  const Bounder bounder(traced([&](auto, auto, auto, auto q, auto) { return buffer[q]; }),
                        Precision::kF32);
  tensor.at<std::int64_t>({0}) = 50;
  std::vector<Interval> scratch = bounder.make_scratch();
  expect_ints(bounder.bound(rectangle({0, 2}, {0, 0}), scratch), 1, 3);
}

TEST(BoundBuffer, NanInARange) {
  const Buffer buffer(std::vector<float>{1, 2, std::nanf(""), 4});
  const Formula f = traced([&](auto, auto, auto, auto q, auto) { return buffer[q]; });
  expect_floats(bound_of(f, rectangle({0, 1}, {0, 0})), 1, 2);
  expect_floats(bound_of(f, rectangle({1, 3}, {0, 0})), 2, 4, true);
}

TEST(BoundSum, Ints) {
  const Buffer table(Tensor::from<std::int64_t>({1, 2, 3, -4, 5, 6}, {2, 3}));
  const Formula f = traced([&](auto, auto, auto, auto q, auto) { return sum(table[q]); });
  expect_ints(bound_of(f, rectangle({0, 0}, {0, 0})), 3, 9);
  expect_ints(bound_of(f, rectangle({0, 1}, {0, 0})), -12, 18);
  const Buffer large(Tensor::from<std::int64_t>({kMax / 2, 1, 0, 1}, {2, 2}));
  const Formula g = traced([&](auto, auto, auto, auto q, auto) { return sum(large[q]); });
  expect_ints(bound_of(g, rectangle({0, 0}, {0, 0})), 2, kMax - 1);
  const Formula h = traced([&](auto, auto, auto, auto q, auto) { return dot(large[q], large[1]); });
  expect_ints(bound_of(h, rectangle({0, 0}, {0, 0})), 0, kMax - 1);
  const Formula wraps =
      traced([&](auto, auto, auto, auto q, auto) { return dot(large[q], large[0]); });
  expect_ints(bound_of(wraps, rectangle({0, 0}, {0, 0})), kMin, kMax);
  const Formula squares =
      traced([&](auto, auto, auto, auto q, auto) { return dot(table[q], table[q]); });
  expect_ints(bound_of(squares, rectangle({1, 1}, {0, 0})), 0, 108);
}

TEST(BoundSum, Floats) {
  const Buffer table(Tensor::from<float>({0.1f, 0.1f, 0.3f, 0.1f, 0.1f, 0.1f}, {2, 3}));
  const Formula f = traced([&](auto, auto, auto, auto q, auto) { return sum(table[q]); });
  const Interval r = bound_of(f, rectangle({0, 1}, {0, 0}));
  EXPECT_FALSE(r.maybe_nan);
  EXPECT_NEAR(r.float_lo, 0.3, 1e-5);
  EXPECT_NEAR(r.float_hi, 0.9, 1e-5);
  EXPECT_LE(r.float_lo, 0.1f + 0.1f + 0.1f);
  EXPECT_GE(r.float_hi, 0.3f + 0.3f + 0.3f);
  const Formula g = traced([&](auto, auto, auto, auto q, auto) { return dot(table[q], table[q]); });
  const Interval squares = bound_of(g, rectangle({0, 0}, {0, 0}));
  EXPECT_NEAR(squares.float_lo, 0.03, 1e-6);
  EXPECT_NEAR(squares.float_hi, 0.27, 1e-6);
  const float big = 3e38f;
  const Buffer huge(Tensor::from<float>({big, -big, big, big}, {1, 4}));
  const Formula h = traced([&](auto, auto, auto, auto q, auto) { return sum(huge[q]); });
  expect_floats(bound_of(h, rectangle({0, 0}, {0, 0})), -kInf, kInf);
  const Buffer infinite(Tensor::from<float>({HUGE_VALF, -HUGE_VALF}, {1, 2}));
  const Formula i = traced([&](auto, auto, auto, auto q, auto) { return sum(infinite[q]); });
  EXPECT_TRUE(bound_of(i, rectangle({0, 0}, {0, 0})).maybe_nan);
}

// A long chain of equal terms is rounded the same way each time; the bound has room for that.
TEST(BoundSum, AccumulatedRounding) {
  const std::int64_t n = 100000;
  const float x = 0.7f;
  const Buffer table(Tensor::from(std::vector<float>(static_cast<std::size_t>(n), x), {1, n}));
  float chain = 0, squares = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    chain += x;
    squares = std::fma(x, x, squares);
  }
  const Formula f = traced([&](auto, auto, auto, auto q, auto) { return sum(table[q]); });
  const Formula g = traced([&](auto, auto, auto, auto q, auto) { return dot(table[q], table[q]); });
  EXPECT_NE(chain, static_cast<float>(static_cast<double>(x) * n));
  EXPECT_TRUE(bound_of(f, rectangle({0, 0}, {0, 0})).contains_float(chain));
  EXPECT_TRUE(bound_of(g, rectangle({0, 0}, {0, 0})).contains_float(squares));
}

}  // namespace
}  // namespace quire::formula

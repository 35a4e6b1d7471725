// The score mods of the library against plain arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "quire/mods.h"
#include "tests/mods/expect_mod.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using testing::expect_error;
using testing::expect_scores;

std::vector<float> waves(std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(std::cos(static_cast<double>(i))));
  return values;
}

double element(const std::vector<float>& values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}

TEST(Alibi, SlopesOfThePaper) {
  EXPECT_EQ(mods::alibi_slopes(1), (std::vector<float>{0x1p-8f}));
  EXPECT_EQ(mods::alibi_slopes(8), (std::vector<float>{0x1p-1f, 0x1p-2f, 0x1p-3f, 0x1p-4f, 0x1p-5f,
                                                       0x1p-6f, 0x1p-7f, 0x1p-8f}));
  // 16 heads: the geometric sequence from 2^-0.5.
  const std::vector<float> sixteen = mods::alibi_slopes(16);
  ASSERT_EQ(sixteen.size(), 16u);
  for (int i = 0; i < 16; ++i)
    EXPECT_FLOAT_EQ(sixteen[static_cast<std::size_t>(i)], std::pow(0.5f, 0.5f * (i + 1)));
}

// Not a power of two: those of the power below, then the first, third, ... of twice that power.
TEST(Alibi, SlopesOfOtherCounts) {
  const std::vector<float> four = mods::alibi_slopes(4), eight = mods::alibi_slopes(8);
  for (const int heads : {5, 6, 7}) {
    std::vector<float> expected = four;
    for (int i = 0; i < heads - 4; ++i) expected.push_back(eight[static_cast<std::size_t>(2 * i)]);
    EXPECT_EQ(mods::alibi_slopes(heads), expected);
  }
  EXPECT_EQ(mods::alibi_slopes(3).size(), 3u);
}

TEST(Alibi, AddsTheDistance) {
  const std::vector<float> slopes = mods::alibi_slopes(6);
  expect_scores(mods::alibi(6), {2, 6, 67, 131}, 1, [&](double s, auto, auto h, auto q, auto kv) {
    return s - element(slopes, h) * static_cast<double>(q - kv);
  });
  const std::vector<float> own = {0.5f, 3.0f};
  expect_scores(mods::alibi(own), {1, 2, 5, 257}, 1, [&](double s, auto, auto h, auto q, auto kv) {
    return s - element(own, h) * static_cast<double>(q - kv);
  });
  EXPECT_EQ(mods::alibi(own).to_string(), "score + slopes[h] * (kv_idx - q_idx)");
}

TEST(Alibi, Errors) {
  expect_error(ErrorKind::value, "[alibi] heads must be at least 1; got 0", [] { mods::alibi(0); });
  expect_error(ErrorKind::value, "[alibi_slopes] heads must be at least 1; got -1",
               [] { mods::alibi_slopes(-1); });
  for (const std::int64_t heads : {(std::int64_t{1} << 20) + 1, std::int64_t{1} << 62}) {
    const std::string text =
        "[alibi_slopes] heads must be in 1..1048576; got " + std::to_string(heads);
    expect_error(ErrorKind::value, text, [&] { mods::alibi_slopes(heads); });
    expect_error(ErrorKind::value, text, [&] { mods::alibi(heads); });
  }
  expect_error(ErrorKind::type, "[alibi] slopes must be floats; got i32",
               [] { mods::alibi(std::vector<int>{1}); });
  expect_error(ErrorKind::value, "[alibi] slopes must have the shape [heads]; got [2, 1]", [] {
    mods::alibi(Tensor({2, 1}, DType::f32));
  });
}

TEST(Softcap, IsATanh) {
  for (const double cap : {0.5, 20.0})
    expect_scores(mods::softcap(cap), {1, 2, 67, 131}, 4,
                  [cap](double s, auto...) { return cap * std::tanh(s / cap); });
}

TEST(Softcap, Errors) {
  expect_error(ErrorKind::value, "[softcap] cap must be positive and finite; got 0",
               [] { mods::softcap(0); });
  expect_error(ErrorKind::value, "[softcap] cap must be positive and finite; got inf",
               [] { mods::softcap(INFINITY); });
  expect_error(ErrorKind::value, "[softcap] cap must be positive and finite; got nan",
               [] { mods::softcap(NAN); });
}

TEST(RelativeBias, DistancesAreClipped) {
  const std::int64_t max = 50, count = 2 * max - 1;
  const auto place = [&](std::int64_t q, std::int64_t kv) {
    std::int64_t distance = kv - q;
    if (distance >= max) distance = max - 1;
    if (distance <= -max) distance = 1 - max;
    return distance + max - 1;
  };
  const std::vector<float> one = waves(count), per_head = waves(3 * count);
  const Shape shape = {2, 3, 113, 203};
  expect_scores(mods::relative_bias(one), shape, 1, [&](double s, auto, auto, auto q, auto kv) {
    return s + element(one, place(q, kv));
  });
  expect_scores(
      mods::relative_bias(Tensor::from(one, {1, count})), shape, 1,
      [&](double s, auto, auto, auto q, auto kv) { return s + element(one, place(q, kv)); });
  expect_scores(mods::relative_bias(Tensor::from(per_head, {3, count})), shape, 1,
                [&](double s, auto, auto h, auto q, auto kv) {
                  return s + element(per_head, h * count + place(q, kv));
                });
}

TEST(RelativeBias, Errors) {
  expect_error(ErrorKind::value,
               "[relative_bias] table must have the shape [2 * max - 1] or [heads, 2 * max - 1], "
               "an odd number of distances; got [2, 4]",
               [] {
                 mods::relative_bias(Tensor({2, 4}, DType::f32));
               });
  expect_error(ErrorKind::value,
               "[relative_bias] table must have the shape [2 * max - 1] or [heads, 2 * max - 1]; "
               "got [1, 2, 3]",
               [] {
                 mods::relative_bias(Tensor({1, 2, 3}, DType::f32));
               });
  expect_error(ErrorKind::type, "[relative_bias] table must be floats; got i64",
               [] { mods::relative_bias(Tensor({3}, DType::i64)); });
}

TEST(Bias2d, OfEachRank) {
  const Shape shape = {2, 3, 17, 29};
  const std::int64_t plane = 17 * 29;
  const std::vector<float> values = waves(6 * plane);
  const auto bias = [&](const Shape& of) {
    return Tensor::from(std::vector<float>(values.begin(), values.begin() + element_count(of)), of);
  };
  const auto expect = [&](const Shape& of, auto head) {  // head(b, h): which plane is read
    expect_scores(mods::bias_2d(bias(of)), shape, 1,
                  [&](double s, auto b, auto h, auto q, auto kv) {
                    return s + element(values, head(b, h) * plane + q * 29 + kv);
                  });
  };
  expect({17, 29}, [](auto, auto) { return 0; });
  expect({3, 17, 29}, [](auto, auto h) { return h; });
  expect({1, 17, 29}, [](auto, auto) { return 0; });
  expect({2, 3, 17, 29}, [](auto b, auto h) { return b * 3 + h; });
  expect({1, 3, 17, 29}, [](auto, auto h) { return h; });
  expect({2, 1, 17, 29}, [](auto b, auto) { return b; });
}

TEST(Bias2d, Errors) {
  expect_error(ErrorKind::value,
               "[bias_2d] bias must have the shape [q_len, kv_len], [heads, q_len, kv_len] or "
               "[batch, heads, q_len, kv_len]; got [4]",
               [] { mods::bias_2d(Tensor({4}, DType::f32)); });
  expect_error(ErrorKind::type, "[bias_2d] bias must be floats; got bool", [] {
    mods::bias_2d(Tensor({4, 4}, DType::boolean));
  });
}

TEST(Tables, KeepTheirNameAndTheWishForAGradient) {
  const Buffer table(waves(7), {.name = "learnt", .wants_gradient = true});
  const ScoreMod mod = mods::relative_bias(table);
  const std::vector<Buffer> buffers = mod.formula().buffers();
  ASSERT_EQ(buffers.size(), 1u);
  EXPECT_TRUE(buffers[0].is_same(table));
  const Buffer unnamed(waves(7), {.wants_gradient = true});
  const Buffer read = mods::relative_bias(unnamed).formula().buffers().at(0);
  EXPECT_EQ(read.name(), "table");
  EXPECT_TRUE(read.wants_gradient());
}

}  // namespace
}  // namespace quire

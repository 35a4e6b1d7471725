// Forward: cases worked out by hand, shapes, and the corners of the contract.
#include "reference/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/expect_error.h"
#include "tests/support/random_tensor.h"

namespace quire::reference {
namespace {

using testing::expect_error;
using testing::random_tensor;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<double> values(const Tensor& tensor) {
  const double* data = tensor.data_as<double>();
  return {data, data + tensor.numel()};
}

// One query, two keys whose scores differ by log 3: weights 1/4 and 3/4.
struct Small {
  Tensor q = Tensor::from<double>({1, 0}, {1, 1, 1, 2});
  Tensor k = Tensor::from<double>({0, 5, std::log(3.0), 7}, {1, 1, 2, 2});
  Tensor v = Tensor::from<double>({4, 40, 8, 80}, {1, 1, 2, 2});
  AttentionInputs inputs() const { return {q, k, v}; }
};

TEST(Attention, ByHand) {
  const AttentionOutput r = attention(Small().inputs(), {.scale = 1});
  EXPECT_NEAR(r.out.at<double>({0, 0, 0, 0}), 7, 1e-14);
  EXPECT_NEAR(r.out.at<double>({0, 0, 0, 1}), 70, 1e-13);
  EXPECT_NEAR(r.lse.at<double>({0, 0, 0}), std::log(4.0), 1e-15);
  EXPECT_EQ(r.max_scores.at<double>({0, 0, 0}), std::log(3.0));
}

TEST(Attention, DefaultScaleIsOneOverRootE) {
  const AttentionOutput r = attention(Small().inputs());
  EXPECT_DOUBLE_EQ(r.max_scores.at<double>({0, 0, 0}), std::log(3.0) / std::sqrt(2.0));
}

TEST(Attention, ScoreModAndMask) {
  const ScoreMod mod = [](auto s, auto, auto, auto q, auto kv) { return -s + 2 * (kv - q); };
  const AttentionOutput r =
      attention(Small().inputs(), {.score_mod = mod, .scale = 1, .q_begin = {1}});
  EXPECT_DOUBLE_EQ(r.lse.at<double>({0, 0, 0}), std::log(std::exp(-2.0) + 1 / 3.0));
  const MaskMod mask = [](auto, auto, auto q, auto kv) { return kv < q; };
  const AttentionOutput masked =
      attention(Small().inputs(), {.mask_mod = mask, .scale = 1, .q_begin = {1}});
  EXPECT_EQ(masked.out.at<double>({0, 0, 0, 1}), 40);
  EXPECT_EQ(masked.lse.at<double>({0, 0, 0}), 0);
}

// Against a loop written out here, with every size different.
TEST(Attention, ShapesGroupsAndBroadcastKeys) {
  const std::int64_t batches = 2, q_heads = 6, kv_heads = 2, q_len = 3, kv_len = 5, e = 4, ev = 3;
  const Tensor q = random_tensor({batches, q_heads, q_len, e}, DType::f32, 1);
  const Tensor k = random_tensor({1, kv_heads, kv_len, e}, DType::f32, 2);
  const Tensor v = random_tensor({batches, kv_heads, kv_len, ev}, DType::f32, 3);
  const ScoreMod mod = [](auto s, auto b, auto h, auto, auto) { return s * (1.0 + b) + h; };
  const AttentionOutput r = attention({q, k, v}, {.score_mod = mod, .q_begin = {0, 10}});
  EXPECT_EQ(r.out.shape(), (Shape{batches, q_heads, q_len, ev}));
  for (std::int64_t b = 0; b < batches; ++b)
    for (std::int64_t h = 0; h < q_heads; ++h)
      for (std::int64_t i = 0; i < q_len; ++i) {
        std::vector<double> weights;
        double total = 0;
        for (std::int64_t j = 0; j < kv_len; ++j) {
          double score = 0;
          for (std::int64_t d = 0; d < e; ++d)
            score += double{q.at<float>({b, h, i, d})} * k.at<float>({0, h / 3, j, d});
          weights.push_back(
              std::exp(score / 2 * static_cast<double>(1 + b) + static_cast<double>(h)));
          total += weights.back();
        }
        EXPECT_NEAR(r.lse.at<double>({b, h, i}), std::log(total), 1e-12);
        for (std::int64_t d = 0; d < ev; ++d) {
          double out = 0;
          for (std::int64_t j = 0; j < kv_len; ++j)
            out += weights[static_cast<std::size_t>(j)] / total * v.at<float>({b, h / 3, j, d});
          EXPECT_NEAR(r.out.at<double>({b, h, i, d}), out, 1e-12);
        }
      }
}

TEST(Attention, QBeginPerBatch) {
  const Tensor q = random_tensor({2, 1, 2, 1}, DType::f32, 1),
               kv = random_tensor({2, 1, 6, 1}, DType::f32, 2);
  const MaskMod only_own = [](auto, auto, auto q_idx, auto kv_idx) { return q_idx == kv_idx; };
  const AttentionOutput r = attention({q, kv, kv}, {.mask_mod = only_own, .q_begin = {1, 4}});
  EXPECT_EQ(r.out.at<double>({0, 0, 1, 0}), kv.at<float>({0, 0, 2, 0}));
  EXPECT_EQ(r.out.at<double>({1, 0, 0, 0}), kv.at<float>({1, 0, 4, 0}));
}

TEST(Attention, StridesAndDTypes) {
  const Tensor q = random_tensor({1, 3, 2, 4}, DType::f32, 1),
               k = random_tensor({1, 5, 2, 4}, DType::f32, 2);
  const Tensor v = random_tensor({1, 2, 5, 3}, DType::f32, 3).to(DType::bf16);
  const ConstTensorView q_view = q.view().transpose(1, 2), k_view = k.view().transpose(1, 2);
  const AttentionOutput strided = attention({q_view, k_view, v});
  const AttentionOutput plain =
      attention({contiguous(q_view), to(k_view, DType::f64), v.to(DType::f32)});
  EXPECT_EQ(values(strided.out), values(plain.out));
  EXPECT_EQ(values(strided.lse), values(plain.lse));
}

TEST(Attention, EmptyKeysAndEmptyQueries) {
  const AttentionOutput no_keys =
      attention({random_tensor({1, 2, 3, 4}, DType::f32, 1), Tensor({1, 1, 0, 4}, DType::f32),
                 Tensor({1, 1, 0, 2}, DType::f32)});
  EXPECT_EQ(values(no_keys.out), std::vector<double>(12, 0));
  EXPECT_EQ(values(no_keys.lse), std::vector<double>(6, -kInf));
  EXPECT_EQ(values(no_keys.max_scores), std::vector<double>(6, -kInf));
  const AttentionOutput no_queries =
      attention({Tensor({1, 2, 0, 4}, DType::f32), random_tensor({1, 1, 5, 4}, DType::f32, 1),
                 random_tensor({1, 1, 5, 2}, DType::f32, 2)});
  EXPECT_EQ(no_queries.out.shape(), (Shape{1, 2, 0, 2}));
}

TEST(Attention, RowsWithNothingToAttendTo) {
  const Tensor x = random_tensor({1, 1, 4, 2}, DType::f32, 1);
  const AttentionOptions masks[] = {
      {.mask_mod = MaskMod([](auto, auto, auto q, auto kv) { return q > kv; })},
      {.score_mod =
           ScoreMod([](auto s, auto, auto, auto q, auto kv) { return where(q > kv, s, -kInf); })}};
  for (const AttentionOptions& options : masks) {
    const AttentionOutput r = attention({x, x, x}, options);
    EXPECT_EQ(r.out.at<double>({0, 0, 0, 0}), 0);
    EXPECT_EQ(r.lse.at<double>({0, 0, 0}), -kInf);
    EXPECT_EQ(r.max_scores.at<double>({0, 0, 0}), -kInf);
    EXPECT_EQ(r.out.at<double>({0, 0, 1, 0}), x.at<float>({0, 0, 0, 0}));
  }
}

TEST(Attention, HiddenKeysMayHoldAnything) {
  const Tensor q = random_tensor({1, 1, 3, 2}, DType::f32, 1);
  Tensor k = random_tensor({1, 1, 4, 2}, DType::f32, 2),
         v = random_tensor({1, 1, 4, 2}, DType::f32, 3);
  const MaskMod mask = [](auto, auto, auto, auto kv) { return kv != 2; };
  const ScoreMod minus_inf = [](auto s, auto, auto, auto, auto kv) {
    return where(kv != 2, s, -kInf);
  };
  const AttentionOutput clean = attention({q, k, v}, {.mask_mod = mask});
  k.at<float>({0, 0, 2, 1}) = kNaN;
  v.at<float>({0, 0, 2, 0}) = kNaN;
  for (const AttentionOptions& options :
       {AttentionOptions{.mask_mod = mask}, AttentionOptions{.score_mod = minus_inf}}) {
    const AttentionOutput dirty = attention({q, k, v}, options);
    EXPECT_EQ(values(dirty.out), values(clean.out));
    EXPECT_EQ(values(dirty.lse), values(clean.lse));
  }
}

TEST(Attention, VisibleNaNOrInfinityMakesItsRowNaN) {
  const Tensor x = random_tensor({1, 1, 3, 2}, DType::f32, 1);
  for (const double bad : {double{kNaN}, kInf}) {
    const ScoreMod mod = [bad](auto s, auto, auto, auto q, auto kv) {
      return where(q == 1 && kv == 2, bad, s);
    };
    const AttentionOutput r = attention({x, x, x}, {.score_mod = mod});
    EXPECT_FALSE(std::isnan(r.out.at<double>({0, 0, 0, 0})));
    EXPECT_TRUE(std::isnan(r.out.at<double>({0, 0, 1, 0})));
    EXPECT_TRUE(std::isnan(r.lse.at<double>({0, 0, 1})));
    EXPECT_FALSE(std::isnan(r.lse.at<double>({0, 0, 2})));
  }
}

TEST(Attention, FaultsOfVisibleElementsAreErrors) {
  const Tensor x = random_tensor({2, 1, 4, 2}, DType::f32, 1);
  const Buffer table(std::vector<float>{1, 2}, {.name = "table"});
  const ScoreMod mod = [&](auto s, auto, auto, auto q, auto kv) { return s + table[q - kv]; };
  const std::string text =
      "[formula] index -3 is outside buffer 'table' of size 2 (axis 0) at b=0, h=0, q_idx=0, "
      "kv_idx=3";
  expect_error(ErrorKind::index, text, [&] { attention({x, x, x}, {.score_mod = mod}); });
  const MaskMod band = [](auto, auto, auto q, auto kv) { return abs(q - kv) < 2; };
  EXPECT_NO_THROW(attention({x, x, x}, {.score_mod = mod, .mask_mod = band}));
}

TEST(Attention, FaultsOfTheMaskCountWhereItSaysVisible) {
  const Tensor x = random_tensor({1, 2, 4, 2}, DType::f32, 1);
  const Buffer flags(std::vector<std::int32_t>{1, 1, 0}, {.name = "flags"});
  const MaskMod hidden = [&](auto, auto, auto, auto kv) { return flags[kv]; };
  EXPECT_NO_THROW(attention({x, x, x}, {.mask_mod = hidden}));
  const MaskMod visible = [&](auto, auto, auto, auto kv) { return flags[kv] == 0; };
  expect_error(ErrorKind::index,
               "[formula] index 3 is outside buffer 'flags' of size 3 (axis 0) at b=0, h=0, "
               "q_idx=0, kv_idx=3",
               [&] {
                 attention({x, x, x}, {.mask_mod = visible});
               });
  const MaskMod divides = [](auto, auto h, auto, auto kv) { return floor_div(kv, h) >= 0; };
  expect_error(ErrorKind::value,
               "[formula] integer division by zero at b=0, h=0, q_idx=0, kv_idx=0", [&] {
                 attention({x, x, x}, {.mask_mod = divides});
               });
}

TEST(Attention, ShapeErrors) {
  const Tensor q({2, 6, 3, 4}, DType::f32), k({2, 2, 5, 4}, DType::f32),
      v({2, 2, 5, 3}, DType::f32);
  const auto expect = [](ErrorKind kind, const std::string& text, const AttentionInputs& inputs) {
    expect_error(kind, text, [&] { attention(inputs); });
  };
  expect(ErrorKind::value, "[attention] q must have 4 axes; got shape [6, 4]",
         {Tensor({6, 4}, DType::f32), k, v});
  expect(ErrorKind::type, "[attention] k must be floating; got i32",
         {q, Tensor({2, 2, 5, 4}, DType::i32), v});
  expect(ErrorKind::value, "[attention] q_heads must be a multiple of kv_heads; got 6 and 4",
         {q, Tensor({2, 4, 5, 4}, DType::f32), Tensor({2, 4, 5, 3}, DType::f32)});
  expect(ErrorKind::value, "[attention] k must have shape [2, 2, 5, 4]; got [2, 2, 5, 7]",
         {q, Tensor({2, 2, 5, 7}, DType::f32), v});
  expect(ErrorKind::value, "[attention] v must have shape [2, 2, 5, 3]; got [2, 2, 6, 3]",
         {q, k, Tensor({2, 2, 6, 3}, DType::f32)});
  expect(ErrorKind::value, "[attention] v must have the batch size of q or 1; got 3 and 2",
         {q, k, Tensor({3, 2, 5, 3}, DType::f32)});
  expect_error(ErrorKind::value,
               "[attention] q_begin must be one number or one per batch; got 3 for 2 batches", [&] {
                 attention({q, k, v}, {.q_begin = {1, 2, 3}});
               });
}

}  // namespace
}  // namespace quire::reference

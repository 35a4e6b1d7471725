// evaluate(): values on every ISA, strides, offsets, executors, faults with their texts, and
// nothing read out of bounds.
#include "quire/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "quire/executor.h"
#include "quire/isa.h"
#include "reference/evaluate.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using testing::expect_error;

Tensor some_scores(const Shape& shape, DType dtype = DType::f32) {
  Tensor scores(shape, dtype);
  for (std::int64_t i = 0; i < scores.view().numel(); ++i) {
    const double x = std::sin(static_cast<double>(i)) * 20;
    if (dtype == DType::f32)
      scores.view().data_as<float>()[i] = static_cast<float>(x);
    else
      scores.view().data_as<double>()[i] = x;
  }
  return scores;
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.view().shape() == b.view().shape() && a.view().dtype() == b.view().dtype() &&
         std::memcmp(a.view().data(), b.view().data(),
                     static_cast<std::size_t>(a.view().numel()) * dtype_size(a.view().dtype())) ==
             0;
}

// A buffer in memory of exactly its size: under AddressSanitizer one element too far is seen.
Buffer exact(DType dtype, const Shape& shape, const char* name) {
  return Buffer(Tensor(shape, dtype), {.name = name});
}

TEST(Evaluate, AlibiByHand) {
  const Buffer slopes(std::vector<float>{0.5f, 0.25f}, {.name = "slopes"});
  const ScoreMod alibi = [&](auto s, auto, auto h, auto q, auto kv) {
    return s + slopes[h] * (kv - q);
  };
  const Tensor scores = some_scores({1, 2, 3, 5});
  const Tensor out = evaluate(alibi, scores);
  for (int h = 0; h < 2; ++h)
    for (int q = 0; q < 3; ++q)
      for (int kv = 0; kv < 5; ++kv) {
        const float expected = scores.view().at<float>({0, h, q, kv}) +
                               (h == 0 ? 0.5f : 0.25f) * static_cast<float>(kv - q);
        EXPECT_EQ(out.view().at<float>({0, h, q, kv}), expected);
      }
}

TEST(Evaluate, MaskByHand) {
  const MaskMod mask = [](auto b, auto, auto q, auto kv) { return (q >= kv) & (q - kv < 3 + b); };
  const Tensor out = evaluate(mask, {2, 1, 70, 130});
  for (int b = 0; b < 2; ++b)
    for (int q = 0; q < 70; ++q)
      for (int kv = 0; kv < 130; ++kv)
        ASSERT_EQ(out.view().at<bool>({b, 0, q, kv}), q >= kv && q - kv < 3 + b)
            << b << " " << q << " " << kv;
}

TEST(Evaluate, TheSameBitsForAnyExecutorStridesAndIsa) {
  std::vector<float> biases(400);
  for (std::size_t i = 0; i < biases.size(); ++i) biases[i] = static_cast<float>(i) * 0.01f;
  const Buffer table(biases, {.name = "table"});
  const ScoreMod mod = [&](auto s, auto, auto h, auto q, auto kv) {
    return tanh(s / 7) * 7 + exp(-abs(s)) + table[kv - q + 199] + h;
  };
  const Tensor scores = some_scores({2, 3, 100, 200});
  const Tensor expected = evaluate(mod, scores);
  SerialExecutor serial;
  EXPECT_TRUE(same_bytes(evaluate(mod, scores, {.executor = &serial}), expected));
  for (const int threads : {1, 2, 5})
    EXPECT_TRUE(
        same_bytes(evaluate(mod, scores, {.executor = make_thread_pool(threads).get()}), expected));
  Tensor swapped({2, 3, 200, 100}, DType::f32);  // [.., kv, q] in memory
  for (int b = 0; b < 2; ++b)
    for (int h = 0; h < 3; ++h)
      for (int q = 0; q < 100; ++q)
        for (int kv = 0; kv < 200; ++kv)
          swapped.view().at<float>({b, h, kv, q}) = scores.view().at<float>({b, h, q, kv});
  const ConstTensorView transposed = ConstTensorView(swapped.view()).transpose(2, 3);
  EXPECT_TRUE(same_bytes(evaluate(mod, transposed), expected));
  for (const Isa isa : available_isas()) {
    const ScopedIsa use(isa);
    EXPECT_TRUE(same_bytes(evaluate(mod, scores), expected)) << isa_name(isa);
  }
}

TEST(Evaluate, OffsetsMoveTheIndices) {
  const ScoreMod mod = [](auto s, auto, auto, auto q, auto kv) { return s + q * 1000 + kv; };
  const Tensor scores = some_scores({1, 1, 80, 300});
  const Tensor whole = evaluate(mod, scores);
  const Tensor part =
      evaluate(mod, ConstTensorView(scores.view()).slice(2, 30, 71).slice(3, 100, 300),
               {.q_begin = 30, .kv_begin = 100});
  for (int q = 0; q < 41; ++q)
    for (int kv = 0; kv < 200; ++kv)
      ASSERT_EQ(part.view().at<float>({0, 0, q, kv}),
                whole.view().at<float>({0, 0, q + 30, kv + 100}));
}

TEST(Evaluate, PositionsBeyond32BitsAreExact) {
  const std::int64_t far = std::int64_t{1} << 40;
  const MaskMod mask = [&](auto, auto, auto q, auto kv) {
    return (q * 3 - kv) % 5 == 0 && q >= kv;
  };
  const Tensor out = evaluate(mask, {1, 1, 70, 70}, {.q_begin = far, .kv_begin = far - 3});
  for (std::int64_t q = 0; q < 70; ++q)
    for (std::int64_t kv = 0; kv < 70; ++kv) {
      const std::int64_t a = far + q, b = far - 3 + kv;
      ASSERT_EQ(out.view().at<bool>({0, 0, q, kv}), (a * 3 - b) % 5 == 0 && a >= b);
    }
}

TEST(Evaluate, StepsThatOverflowWrap) {
  const MaskMod mask = MaskMod::parse(
      "q_idx * 9223372036854775807 + kv_idx * -9223372036854775808 < kv_idx * 4611686018427387905");
  const Tensor out = evaluate(mask, {1, 1, 70, 70});
  reference::Evaluator reference(mask.formula());
  for (int q = 0; q < 70; ++q)
    for (int kv = 0; kv < 70; ++kv)
      ASSERT_EQ(out.view().at<bool>({0, 0, q, kv}), reference.run({0, 0, q, kv, 0}).truth());
}

TEST(Evaluate, F64IsF64) {
  const ScoreMod mod = [](auto s, auto, auto, auto, auto kv) { return exp(s / 20) / 3 + kv * 0.1; };
  const Tensor scores = some_scores({1, 1, 5, 70}, DType::f64);
  const Tensor out = evaluate(mod, scores);
  for (int kv = 0; kv < 70; ++kv)
    EXPECT_DOUBLE_EQ(out.view().at<double>({0, 0, 4, kv}),
                     std::exp(scores.view().at<double>({0, 0, 4, kv}) / 20) / 3 + kv * 0.1);
}

TEST(Evaluate, EveryDtypeOfBuffer) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i8, DType::u8,
                            DType::i16, DType::i32, DType::i64, DType::boolean}) {
    const Tensor values = Tensor::from<float>({0, 1, -2, 3, 1.5f, 100, -7.25f}).to(dtype);
    const Buffer buffer(values, {.name = "x"});
    for (const bool listed : {false, true}) {  // by affine offsets, and by a gather
      const ScoreMod mod = [&](auto s, auto, auto, auto q, auto kv) {
        return s * 0 + (listed ? buffer[(kv + q * 0) * (kv - kv + 1) % 7] : buffer[kv]);
      };
      const Tensor out = evaluate(mod, Tensor({1, 1, 2, 7}, DType::f32));
      reference::Evaluator reference(mod.formula());
      for (int kv = 0; kv < 7; ++kv)
        EXPECT_EQ(out.view().at<float>({0, 0, 1, kv}),
                  static_cast<float>(reference.run({0, 0, 1, kv, 0}).f))
            << dtype_name(dtype) << " " << kv;
    }
  }
}

TEST(Evaluate, EmptyShapes) {
  const ScoreMod mod = [](auto s, auto, auto, auto, auto) { return s; };
  EXPECT_EQ(evaluate(mod, Tensor({1, 1, 0, 5}, DType::f32)).view().numel(), 0);
  EXPECT_EQ(evaluate(mod, Tensor({0, 1, 3, 5}, DType::f32)).view().numel(), 0);
  const MaskMod mask = [](auto, auto, auto, auto) { return true; };
  EXPECT_EQ(evaluate(mask, {1, 1, 4, 0}).view().numel(), 0);
}

TEST(Evaluate, ReadsNothingBeyondBuffersOfExactlyTheRightSize) {
  const Buffer row = exact(DType::f32, {70}, "row"), column = exact(DType::bf16, {301}, "column"),
               dense = exact(DType::f32, {70, 301}, "dense"),
               diagonal = exact(DType::f32, {370}, "diagonal"),
               ids = exact(DType::i32, {301}, "ids"), heads = exact(DType::f64, {2}, "heads");
  const ScoreMod mod = [&](auto s, auto, auto h, auto q, auto kv) {
    return s + row[q] + column[kv] + dense(q, kv) + diagonal[kv - q + 69] + row[ids[kv]] +
           heads[h] + dense(ids[kv], ids[kv]) + dot(dense(q), dense(0)) + row[q - 70] +
           sum(dense(ids[q]));
  };
  const Tensor scores = some_scores({1, 2, 70, 301});
  EXPECT_TRUE(same_bytes(evaluate(mod, scores), scores));  // all buffers are zero
}

TEST(Evaluate, FaultsNameBufferIndexSizeAndPlace) {
  const Buffer slopes = exact(DType::f32, {8}, "slopes"), empty = exact(DType::f32, {0}, "empty"),
               dense = exact(DType::f32, {3, 4}, "dense"),
               limits(std::vector<std::int64_t>{2, 0, 5}, {.name = "limits"});
  const auto scores = [](std::int64_t q, std::int64_t kv) { return some_scores({2, 2, q, kv}); };
  expect_error(ErrorKind::index,
               "[formula] index 8 is outside buffer 'slopes' of size 8 (axis 0) at b=0, h=0, "
               "q_idx=0, kv_idx=8",
               [&] {
                 evaluate(
                     ScoreMod([&](auto s, auto, auto, auto, auto kv) { return s + slopes[kv]; }),
                     scores(3, 300));
               });
  expect_error(ErrorKind::index,
               "[formula] index -9 is outside buffer 'slopes' of size 8 (axis 0) at b=0, h=1, "
               "q_idx=2, kv_idx=0",
               [&] {
                 evaluate(ScoreMod([&](auto s, auto, auto h, auto q, auto) {
                            return s + slopes[where((h == 1) & (q == 2), -9, 0)];
                          }),
                          scores(3, 300));
               });
  expect_error(ErrorKind::index,
               "[formula] index 4 is outside buffer 'dense' of size 4 (axis 1) at b=0, h=0, "
               "q_idx=2, kv_idx=2",
               [&] {
                 evaluate(ScoreMod([&](auto s, auto, auto, auto q, auto kv) {
                            return s + dense(q, q + kv);
                          }),
                          scores(3, 3));
               });
  expect_error(ErrorKind::index,
               "[formula] index 0 is outside buffer 'empty' of size 0 (axis 0) at b=0, h=0, "
               "q_idx=0, kv_idx=0",
               [&] {
                 evaluate(ScoreMod([&](auto s, auto, auto, auto q, auto) { return s + empty[q]; }),
                          scores(3, 3));
               });
  expect_error(ErrorKind::value,
               "[formula] integer division by zero at b=0, h=0, q_idx=1, kv_idx=0", [&] {
                 evaluate(ScoreMod([&](auto s, auto, auto, auto q, auto kv) {
                            return s + floor_div(kv, limits[q]);
                          }),
                          scores(3, 3));
               });
  expect_error(ErrorKind::value,
               "[formula] buffer 'later' is only declared: it has no data to evaluate", [&] {
                 const Buffer later = Buffer::declare(DType::f32, {3}, {.name = "later"});
                 evaluate(ScoreMod([&](auto s, auto, auto, auto q, auto) { return s + later[q]; }),
                          scores(3, 3));
               });
}

TEST(Evaluate, TheFirstFaultIsTheSameForAnyThreads) {
  const Buffer slopes = exact(DType::f32, {8}, "slopes");
  const ScoreMod mod = [&](auto s, auto b, auto h, auto q, auto kv) {
    return s + slopes[where((b * 1000 + h * 100 + q >= 1150) & (kv > 200), kv, 0)];
  };
  const Tensor scores = some_scores({2, 3, 100, 300});
  for (const int threads : {1, 2, 4}) {
    const auto executor = make_thread_pool(threads);
    expect_error(ErrorKind::index,
                 "[formula] index 201 is outside buffer 'slopes' of size 8 (axis 0) at b=1, h=1, "
                 "q_idx=50, kv_idx=201",
                 [&] { evaluate(mod, scores, {.executor = executor.get()}); });
  }
}

TEST(Evaluate, OnlyVisibleElementsOfAMaskCanFault) {
  const Buffer doc = exact(DType::i32, {40}, "doc");
  const MaskMod guarded = [&](auto, auto, auto q, auto kv) {
    return (kv < 40) & (doc[kv] == doc[q]);
  };
  EXPECT_NO_THROW(evaluate(guarded, {1, 1, 40, 300}));
  const MaskMod open = [&](auto, auto, auto q, auto kv) { return doc[kv] == doc[q]; };
  expect_error(ErrorKind::index,
               "[formula] index 40 is outside buffer 'doc' of size 40 (axis 0) at b=0, h=0, "
               "q_idx=0, kv_idx=40",
               [&] {
                 evaluate(open, {1, 1, 40, 300});
               });
}

TEST(Evaluate, WrongInputsAreErrors) {
  const ScoreMod mod = [](auto s, auto, auto, auto, auto) { return s; };
  expect_error(ErrorKind::value,
               "[evaluate] the shape must be [batch, heads, q_len, kv_len]; got [3, 4]", [&] {
                 evaluate(mod, Tensor({3, 4}, DType::f32));
               });
  expect_error(ErrorKind::type, "[evaluate] scores must be f32 or f64; got bf16", [&] {
    evaluate(mod, Tensor({1, 1, 3, 4}, DType::bf16));
  });
  expect_error(ErrorKind::value, "[evaluate] q_begin must be in 0..2^40; got -1", [&] {
    evaluate(mod, Tensor({1, 1, 3, 4}, DType::f32), {.q_begin = -1});
  });
  expect_error(ErrorKind::value, "[evaluate] kv_begin must be in 0..2^40; got 9223372036854775807",
               [&] {
                 evaluate(mod, Tensor({1, 1, 3, 4}, DType::f32), {.kv_begin = INT64_MAX});
               });
}

}  // namespace
}  // namespace quire

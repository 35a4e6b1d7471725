// The law of merge_states: parts of the keys give the whole, the order changes rounding only, the
// empty state is neutral; what is refused.
#include "quire/merge_states.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "quire/error.h"
#include "quire/flex_attention.h"
#include "tests/support/attention_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/same_bits.h"

namespace quire {
namespace {

using testing::AttentionCase;
using testing::AttentionTensors;
using testing::expect_error;
using testing::largest_error;
using testing::same_bits;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct State {
  Tensor out, lse;
  AttentionState view() const { return {out, lse}; }
};

// Of keys [begin, end).
State attend(const AttentionTensors& t, std::int64_t begin, std::int64_t end) {
  AuxOutput aux;
  Tensor out = flex_attention(t.q, t.k.slice(2, begin, end), t.v.slice(2, begin, end),
                              {.return_aux = {.lse = true}, .aux = &aux});
  return {std::move(out), *aux.lse};
}

TEST(MergeStates, PartsGiveTheWholeInAnyOrder) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    AttentionCase c{.batch = 2,
                    .q_heads = 3,
                    .kv_heads = 3,
                    .q_len = 5,
                    .kv_len = 113,
                    .q_dtype = dtype,
                    .k_dtype = dtype,
                    .v_dtype = dtype};
    const AttentionTensors t(c, 3);
    const State whole = attend(t, 0, 113), a = attend(t, 0, 20), b = attend(t, 20, 77),
                d = attend(t, 77, 113);
    const double step = dtype == DType::f64   ? 1e-14
                        : dtype == DType::f32 ? 2e-6
                        : dtype == DType::f16 ? 4e-3
                                              : 3e-2;
    const AttentionState all[] = {a.view(), b.view(), d.view()};
    const MergedState at_once = merge_states(all);
    EXPECT_EQ(at_once.out.dtype(), dtype);
    EXPECT_LE(largest_error(at_once.out.to(DType::f64), whole.out.to(DType::f64)), step);
    EXPECT_LE(largest_error(at_once.lse.to(DType::f64), whole.lse.to(DType::f64)),
              dtype == DType::f64 ? 1e-14 : 2e-6);
    const MergedState ab = merge_states(a.view(), b.view()), bd = merge_states(b.view(), d.view());
    const MergedState left = merge_states({ab.out, ab.lse}, d.view());
    const MergedState right = merge_states(a.view(), {bd.out, bd.lse});
    EXPECT_LE(largest_error(left.out.to(DType::f64), right.out.to(DType::f64)), step);
    EXPECT_LE(largest_error(left.lse.to(DType::f64), right.lse.to(DType::f64)),
              dtype == DType::f64 ? 1e-14 : 2e-6);
  }
}

TEST(MergeStates, TheEmptyStateIsNeutral) {
  Tensor out({2, 3}, DType::f32), lse({2}, DType::f32), garbage({2, 3}, DType::f32),
      none({2}, DType::f32);
  for (std::int64_t i = 0; i < 6; ++i) {
    out.data_as<float>()[i] = 0.1F * static_cast<float>(i) - 0.0F;
    garbage.data_as<float>()[i] = std::numeric_limits<float>::quiet_NaN();
  }
  lse.data_as<float>()[0] = 1.7F;
  lse.data_as<float>()[1] = -80000.25F;
  none.data_as<float>()[0] = none.data_as<float>()[1] = -kInf;
  const AttentionState some{out, lse}, empty{garbage, none};
  for (const MergedState& merged : {merge_states(some, empty), merge_states(empty, some)}) {
    EXPECT_TRUE(same_bits(merged.out, out));
    EXPECT_TRUE(same_bits(merged.lse, lse));
  }
  const MergedState nothing = merge_states(empty, empty);
  for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(nothing.out.data_as<float>()[i], 0);
  EXPECT_EQ(nothing.lse.data_as<float>()[0], -kInf);
}

TEST(MergeStates, NaNStaysAndLargeNumbersDoNotOverflow) {
  Tensor out({2, 1}, DType::f32), lse({2}, DType::f32), other({2}, DType::f32);
  out.data_as<float>()[0] = out.data_as<float>()[1] = 2;
  lse.data_as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  lse.data_as<float>()[1] = 1e30F;
  other.data_as<float>()[0] = 5;
  other.data_as<float>()[1] = 1e30F;
  for (const MergedState& merged :
       {merge_states({out, lse}, {out, other}), merge_states({out, other}, {out, lse})}) {
    EXPECT_TRUE(std::isnan(merged.lse.data_as<float>()[0]));
    EXPECT_TRUE(std::isnan(merged.out.data_as<float>()[0]));
    EXPECT_EQ(merged.lse.data_as<float>()[1], 1e30F);
    EXPECT_EQ(merged.out.data_as<float>()[1], 2);
  }
}

TEST(MergeStates, AnyStrides) {
  AttentionCase c{.batch = 2, .q_heads = 3, .kv_heads = 3, .q_len = 5, .kv_len = 40};
  const AttentionTensors t(c, 3);
  const State a = attend(t, 0, 20), b = attend(t, 20, 40);
  const auto flip = [](const State& state) {
    return AttentionState{state.out.view().transpose(1, 2), state.lse.view().transpose(1, 2)};
  };
  const MergedState straight = merge_states(a.view(), b.view());
  const MergedState flipped = merge_states(flip(a), flip(b));
  EXPECT_TRUE(same_bits(to(flipped.out.view().transpose(1, 2), DType::f32), straight.out));
  EXPECT_TRUE(same_bits(to(flipped.lse.view().transpose(1, 2), DType::f32), straight.lse));
}

TEST(MergeStates, WhatDoesNotFitIsRefused) {
  const Tensor out({2, 3}, DType::f32), lse({2}, DType::f32), ids({2, 3}, DType::i32),
      wide({2}, DType::f64), half({2}, DType::bf16), longer({3, 3}, DType::f32);
  expect_error(ErrorKind::value, "[merge_states] there must be at least one state; got none",
               [] { merge_states(std::span<const AttentionState>()); });
  expect_error(ErrorKind::type, "[merge_states] out must be f32, f64, bf16 or f16; got i32", [&] {
    merge_states({ids, lse}, {ids, lse});
  });
  expect_error(ErrorKind::type, "[merge_states] lse must be f32 or f64; got bf16", [&] {
    merge_states({out, half}, {out, half});
  });
  expect_error(ErrorKind::type,
               "[merge_states] states must have the same dtypes; state 1 has others", [&] {
                 merge_states({out, lse}, {out, wide});
               });
  expect_error(ErrorKind::value,
               "[merge_states] outs must have the same shape; got [2, 3] and [3, 3]", [&] {
                 merge_states({out, lse}, {longer, lse});
               });
  expect_error(ErrorKind::value,
               "[merge_states] lse must be [2], a number per row of out; got [2, 3]", [&] {
                 merge_states({out, lse}, {out, out});
               });
  const Tensor narrow({2, 0}, DType::f32);  // rows without columns still have an lse
  const MergedState merged = merge_states({narrow, lse}, {narrow, lse});
  EXPECT_EQ(merged.out.shape(), (Shape{2, 0}));
  EXPECT_EQ(merged.lse.data_as<float>()[1], std::log(2.0F));
  EXPECT_EQ(merge_states({longer.view().slice(0, 0, 0), lse.view().slice(0, 0, 0)},
                         {longer.view().slice(0, 0, 0), lse.view().slice(0, 0, 0)})
                .out.numel(),
            0);
}

}  // namespace
}  // namespace quire

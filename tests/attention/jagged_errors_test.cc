// What is wrong with a jagged batch, and which sequence it is.
#include <gtest/gtest.h>

#include "quire/jagged.h"
#include "quire/mods.h"
#include "tests/support/expect_error.h"
#include "tests/support/jagged_case.h"

namespace quire::testing {
namespace {

const Tensor kValues({10, 2, 16}, DType::f32);

struct Batch {
  Tensor offsets, lengths;
  Jagged jagged;

  explicit Batch(const std::vector<std::int64_t>& at, const Tensor& values = kValues)
      : offsets(Tensor::from(at)), jagged{.values = values, .offsets = offsets} {}
  Batch(const std::vector<std::int64_t>& at, const std::vector<std::int64_t>& long_) : Batch(at) {
    lengths = Tensor::from(long_);
    jagged.lengths = lengths;
  }
};

// As query, as key and as value, and for the mask.
void expect_bad(ErrorKind kind, const std::string& text, const Jagged& bad) {
  const Batch good({0, 4, 7, 10});
  const auto call = [&](const Jagged& q, const Jagged& k, const Jagged& v) {
    return [q, k, v] { flex_attention(q, k, v); };
  };
  expect_error(kind, "[flex_attention] query: " + text, call(bad, good.jagged, good.jagged));
  expect_error(kind, "[flex_attention] key: " + text, call(good.jagged, bad, good.jagged));
  expect_error(kind, "[flex_attention] value: " + text, call(good.jagged, good.jagged, bad));
  expect_error(kind, "[create_jagged_block_mask] query: " + text,
               [&] { create_jagged_block_mask(mods::causal(), 2, bad, good.jagged); });
  expect_error(kind, "[create_jagged_block_mask] key: " + text,
               [&] { create_jagged_block_mask(mods::causal(), 2, good.jagged, bad); });
}

TEST(JaggedErrors, Offsets) {
  expect_bad(ErrorKind::value, "offsets must not fall; sequence 1 begins at 6 and ends at 5",
             Batch({0, 6, 5, 10}).jagged);
  expect_bad(ErrorKind::value, "sequence 2 ends at 11, beyond the 10 tokens of the values",
             Batch({0, 4, 7, 11}).jagged);
  expect_bad(ErrorKind::value, "offsets must not be negative; sequence 0 begins at -1",
             Batch({-1, 4, 7, 10}).jagged);
  expect_bad(ErrorKind::value, "offsets begin at 11, beyond the 10 tokens of the values",
             Batch({11}).jagged);
  expect_bad(ErrorKind::value, "offsets must be [number of sequences + 1]; got [0]",
             Batch(std::vector<std::int64_t>()).jagged);
}

TEST(JaggedErrors, OffsetsOfAnotherTypeOrRank) {
  Batch batch({0, 4, 7, 10});
  batch.offsets = batch.offsets.to(DType::f32);
  batch.jagged.offsets = batch.offsets;
  expect_bad(ErrorKind::type, "offsets must be i32 or i64; got f32", batch.jagged);
  batch.offsets = Tensor({2, 2}, DType::i64);
  batch.jagged.offsets = batch.offsets;
  expect_bad(ErrorKind::value, "offsets must be [number of sequences + 1]; got [2, 2]",
             batch.jagged);
  batch.offsets = Tensor({4}, DType::u8);
  batch.jagged.offsets = batch.offsets;
  expect_bad(ErrorKind::type, "offsets must be i32 or i64; got u8", batch.jagged);
}

TEST(JaggedErrors, Lengths) {
  expect_bad(ErrorKind::value, "lengths must fit their slots; sequence 1 has 4 in a slot of 3",
             Batch({0, 4, 7, 10}, {4, 4, 3}).jagged);
  expect_bad(ErrorKind::value, "lengths must not be negative; sequence 2 has -2",
             Batch({0, 4, 7, 10}, {4, 3, -2}).jagged);
  expect_bad(ErrorKind::value, "lengths must be [3], one per sequence; got [2]",
             Batch({0, 4, 7, 10}, {4, 3}).jagged);
  Batch batch({0, 4, 7, 10}, {4, 3, 3});
  batch.lengths = batch.lengths.to(DType::f64);
  batch.jagged.lengths = batch.lengths;
  expect_bad(ErrorKind::type, "lengths must be i32 or i64; got f64", batch.jagged);
}

TEST(JaggedErrors, Values) {
  const Tensor flat({10, 16}, DType::f32);
  Batch batch({0, 4, 7, 10}, flat);
  expect_bad(ErrorKind::value, "values must be [total, heads, dim]; got [10, 16]", batch.jagged);
  batch.jagged.order = JaggedOrder::kHeads;
  expect_bad(ErrorKind::value, "values must be [heads, total, dim]; got [10, 16]", batch.jagged);
  Batch heads({0, 4, 7, 10});  // 2 tokens if heads come first
  heads.jagged.order = JaggedOrder::kHeads;
  expect_bad(ErrorKind::value, "sequence 0 ends at 4, beyond the 2 tokens of the values",
             heads.jagged);
}

TEST(JaggedErrors, WhatDoesNotFitTogether) {
  const Batch three({0, 4, 7, 10}), two({0, 4, 10}), other({0, 5, 7, 10});
  const auto expect = [](const std::string& text, const Jagged& q, const Jagged& k, const Jagged& v,
                         const JaggedAttentionOptions& options = {}) {
    expect_error(ErrorKind::value, "[flex_attention] " + text,
                 [&] { flex_attention(q, k, v, options); });
  };
  expect("query, key and value must have the same number of sequences; got 3, 2 and 2",
         three.jagged, two.jagged, two.jagged);
  expect("query, key and value must have the same number of sequences; got 3, 3 and 2",
         three.jagged, three.jagged, two.jagged);
  expect("key and value must have the same lengths; sequence 0 has 4 and 5", three.jagged,
         three.jagged, other.jagged);
  const Tensor narrow({10, 2, 8}, DType::f32), one_head({10, 1, 16}, DType::f32);
  const Batch thin({0, 4, 7, 10}, narrow), single({0, 4, 7, 10}, one_head);
  expect("query and key must have the same head dim; got 8 and 16", thin.jagged, three.jagged,
         three.jagged);
  expect("key and value must have the same number of heads; got 2 and 1", three.jagged,
         three.jagged, single.jagged);
  expect("query and key must have the same number of heads, or enable_gqa must be set; got 2 and 1",
         three.jagged, single.jagged, single.jagged);
  expect("return_aux asks for outputs, and aux, where to put them, is null", three.jagged,
         three.jagged, three.jagged, {.return_aux = {.lse = true}});
  expect_error(ErrorKind::value,
               "[create_jagged_block_mask] query and key must have the same number of sequences; "
               "got 3 and 2",
               [&] { create_jagged_block_mask(mods::causal(), 1, three.jagged, two.jagged); });
}

TEST(JaggedErrors, Masks) {
  const Batch three({0, 4, 7, 10}), other({0, 4, 8, 10}), two({0, 4, 10});
  const auto expect = [&](const std::string& text, const Jagged& q,
                          const JaggedAttentionOptions& options) {
    expect_error(ErrorKind::value, "[flex_attention] " + text,
                 [&] { flex_attention(q, q, q, options); });
  };
  const JaggedBlockMask mask =
      create_jagged_block_mask(mods::causal(), 1, three.jagged, three.jagged);
  expect("give mask_mod or block_mask, not both", three.jagged,
         {.mask_mod = mods::causal(), .block_mask = mask});
  expect("the block mask was made for 3 sequences; got 2", two.jagged, {.block_mask = mask});
  expect("the block mask of sequence 1 was made for 3 queries and 3 keys; got 4 and 4",
         other.jagged, {.block_mask = mask});
  expect("the block mask of sequence 0 must have 2 heads or 1; got 3", three.jagged,
         {.block_mask = create_jagged_block_mask(mods::causal(), 3, three.jagged, three.jagged)});
  expect_error(ErrorKind::value,
               "[create_jagged_block_mask] block_size.q must be in 1..1099511627776; got 0", [&] {
                 create_jagged_block_mask(mods::causal(), 1, three.jagged, three.jagged,
                                          {.block_size = {0, 16}});
               });
}

}  // namespace
}  // namespace quire::testing

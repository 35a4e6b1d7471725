// flex_attention over paged keys: bits of the dense call for any page size, placement, type, mod
// and mask; pools with NaN where no live key is; what is refused.
#include <gtest/gtest.h>

#include <string>

#include "quire/mods.h"
#include "quire/paged.h"
#include "tests/support/attention_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/paged_pool.h"
#include "tests/support/same_bits.h"
#include "tests/support/slow_cpu.h"

namespace quire {
namespace {

using testing::AttentionCase;
using testing::AttentionTensors;
using testing::expect_error;
using testing::PagedPool;
using testing::PoolOptions;
using testing::same_bits;

// Sequences of lengths of their own, each against a dense call over its keys alone.
void expect_dense_bits(const AttentionCase& c, const std::vector<std::int64_t>& lengths,
                       const PoolOptions& pool_options, PagedKeysOptions options) {
  const AttentionTensors t(c, 7);
  const PagedPool pool(t.k, t.v, lengths, pool_options);
  AuxOutput aux;
  options.enable_gqa = true;
  options.return_aux = {.lse = true, .max_scores = true};
  options.aux = &aux;
  const Tensor out = flex_attention(t.q, pool.keys(), options);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const std::int64_t length = lengths[static_cast<std::size_t>(b)];
    const auto one = [b](const ConstTensorView& view) { return view.slice(0, b, b + 1); };
    FlexAttentionOptions dense{.score_mod = options.score_mod, .enable_gqa = true};
    std::int64_t begin = 0;
    if (!options.q_begin.empty())
      begin = options.q_begin[options.q_begin.size() == 1 ? 0 : static_cast<std::size_t>(b)];
    if (options.mask_mod) {
      dense.block_mask =
          create_block_mask(*options.mask_mod, 1, c.q_heads, c.q_len, length, {.q_begin = begin});
    }
    dense.q_begin = {begin};
    AuxOutput dense_aux;
    dense.return_aux = options.return_aux;
    dense.aux = &dense_aux;
    const Tensor expected =
        flex_attention(one(t.q), one(t.k).slice(2, 0, length), one(t.v).slice(2, 0, length), dense);
    const std::string what = c.to_string() + " page " + std::to_string(pool_options.page_size) +
                             " sequence " + std::to_string(b);
    EXPECT_TRUE(same_bits(one(out), expected)) << what;
    EXPECT_TRUE(same_bits(one(*aux.lse), *dense_aux.lse)) << what;
    EXPECT_TRUE(same_bits(one(*aux.max_scores), *dense_aux.max_scores)) << what;
  }
}

AttentionCase small(DType dtype, std::int64_t q_len) {
  return {.batch = 3,
          .q_heads = 4,
          .kv_heads = 2,
          .q_len = q_len,
          .kv_len = 1300,
          .head_dim = 24,
          .v_head_dim = 32,
          .q_dtype = dtype,
          .k_dtype = dtype,
          .v_dtype = dtype};
}

TEST(PagedKeys, QueriesOfDifferentNumbersHaveTheBitsOfOneSequence) {
  const AttentionCase c = small(DType::f32, 70);
  const AttentionTensors t(c, 7);
  const std::vector<std::int64_t> lengths = {1300, 257, 0};
  const PagedPool pool(t.k, t.v, lengths, {.page_size = 16, .seed = 3});
  // 5, 70 and 0 queries, with a hole of two rows behind the first sequence.
  const std::vector<std::int32_t> offsets = {0, 7, 77, 77}, counts = {5, 70, 0};
  Tensor packed({80, c.q_heads, c.head_dim}, DType::f32);
  const auto rows_of = [&](std::int64_t b) {
    return ConstTensorView(t.q).slice(0, b, b + 1).slice(2, 0, counts[static_cast<std::size_t>(b)]);
  };
  for (std::int64_t b = 0; b < 2; ++b) {
    const ConstTensorView rows = rows_of(b);
    for (std::int64_t i = 0; i < rows.dim(2); ++i)
      for (std::int64_t h = 0; h < c.q_heads; ++h)
        for (std::int64_t d = 0; d < c.head_dim; ++d)
          packed.view().at<float>({offsets[static_cast<std::size_t>(b)] + i, h, d}) =
              rows.at<float>({0, h, i, d});
  }
  const Jagged q{.values = packed,
                 .offsets = ConstTensorView(offsets.data(), DType::i32, {4}),
                 .lengths = ConstTensorView(counts.data(), DType::i32, {3})};
  const Tensor out =
      flex_attention(q, pool.keys(), {.mask_mod = mods::causal(), .enable_gqa = true});
  for (std::int64_t b = 0; b < 2; ++b) {
    const ConstTensorView rows = rows_of(b);
    const auto keys = [&](const ConstTensorView& view) {
      return view.slice(0, b, b + 1).slice(2, 0, lengths[static_cast<std::size_t>(b)]);
    };
    const Tensor alone = flex_attention(rows, keys(t.k), keys(t.v),
                                        {.mask_mod = mods::causal(), .enable_gqa = true});
    const std::int64_t begin = offsets[static_cast<std::size_t>(b)];
    const ConstTensorView mine =
        out.view().slice(0, begin, begin + rows.dim(2)).transpose(0, 1).unsqueeze(0);
    EXPECT_TRUE(same_bits(mine, alone)) << b;
  }
  expect_error(ErrorKind::value,
               "[flex_attention] 2 sequences need as many page table rows and lengths; got 3 and 3",
               [&] {
                 flex_attention(Jagged{packed, ConstTensorView(offsets.data(), DType::i32, {3})},
                                pool.keys(), {.enable_gqa = true});
               });
}

TEST(PagedKeys, BitsOfTheDenseCallForAnyPageSize) {
  testing::FewerIfEmulated fewer(11);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t page_size : {1, 2, 7, 16, 64, 100, 128, 256, 300}) {
      for (const std::int64_t q_len : {1, 70}) {
        if (fewer.leaves_out()) continue;
        expect_dense_bits(small(dtype, q_len), {1300, 257, 0},
                          {.page_size = page_size, .flat = q_len == 1, .seed = 3}, {});
      }
    }
  }
}

TEST(PagedKeys, MasksAndModsCountAsTheSequenceDoes) {
  testing::FewerIfEmulated fewer(7);
  const MaskMod holes =
      MaskMod::parse("(kv_idx <= q_idx) & (kv_idx % 9 != 4) & (kv_idx // 300 != 1)");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t page_size : {1, 7, 16, 128, 300}) {
      for (const std::int64_t q_len : {1, 3, 70}) {
        if (fewer.leaves_out()) continue;
        expect_dense_bits(small(dtype, q_len), {1300, 700, 513},
                          {.page_size = page_size, .id_dtype = DType::i64},
                          {.score_mod = ScoreMod::parse("score + 0.01 * (kv_idx - q_idx) * h"),
                           .mask_mod = holes,
                           .q_begin = {1300 - q_len, 700 - q_len, 400}});
      }
    }
  }
}

TEST(PagedKeys, ABlockMaskMayBeLongerThanTheSequences) {
  const AttentionCase c = small(DType::f32, 5);
  const std::vector<std::int64_t> lengths{1300, 40, 900};
  const AttentionTensors t(c, 7);
  const PagedPool pool(t.k, t.v, lengths, {.page_size = 16});
  const MaskMod rule = MaskMod::parse("(kv_idx <= q_idx + 300 * b) & ((kv_idx + h) % 3 != 0)");
  const BlockMask mask =
      create_block_mask(rule, 3, 4, 5, 2048, {.block_size = {128, 16}, .q_begin = 100});
  const Tensor out = flex_attention(t.q, pool.keys(), {.block_mask = mask, .enable_gqa = true});
  const Tensor by_rule =
      flex_attention(t.q, pool.keys(), {.mask_mod = rule, .enable_gqa = true, .q_begin = {100}});
  EXPECT_TRUE(same_bits(out, by_rule));
  expect_error(ErrorKind::value,
               "[flex_attention] the block mask was made for 5 queries and 1299 keys; got 5, and a "
               "longest sequence of 1300",
               [&] {
                 flex_attention(
                     t.q, pool.keys(),
                     {.block_mask = create_block_mask(rule, 3, 4, 5, 1299), .enable_gqa = true});
               });
  expect_error(ErrorKind::value, "[flex_attention] give mask_mod or block_mask, not both", [&] {
    flex_attention(t.q, pool.keys(), {.mask_mod = rule, .block_mask = mask, .enable_gqa = true});
  });
}

TEST(PagedKeys, PlansDoNotFollowThePool) {
  const AttentionCase c = small(DType::f32, 1);
  const AttentionTensors t(c, 7);
  const PagedPool tight(t.k, t.v, {1300, 257, 3}, {.spare_pages = 0});
  const PagedPool wide(t.k, t.v, {1300, 257, 3}, {.spare_pages = 3000});
  PagedKeysPlan a(t.q, tight.keys(), {.enable_gqa = true});
  PagedKeysPlan b(t.q, wide.keys(), {.enable_gqa = true});
  EXPECT_EQ(a.scratch_bytes(), b.scratch_bytes());
  Tensor x = Tensor::empty({3, 4, 1, 32}, DType::f32), y = Tensor::empty({3, 4, 1, 32}, DType::f32);
  a.run(t.q, tight.k, tight.v, {.out = x.view()});
  b.run(t.q, wide.k, wide.v, {.out = y.view()});
  EXPECT_TRUE(same_bits(x, y));
  expect_error(ErrorKind::value,
               "[flex_attention] the plan was made for a key of f32 " + to_string(wide.k.shape()) +
                   "; got f32 " + to_string(tight.k.shape()),
               [&] { b.run(t.q, tight.k, tight.v, {.out = y.view()}); });
}

TEST(PagedKeys, WhatDoesNotFitIsRefused) {
  const AttentionCase c = small(DType::f32, 1);
  const AttentionTensors t(c, 7);
  PagedPool pool(t.k, t.v, {40, 17, 0}, {.page_size = 16, .id_dtype = DType::i64});
  const auto attend = [&] { flex_attention(t.q, pool.keys(), {.enable_gqa = true}); };
  pool.page_table.at<std::int64_t>({1, 1}) = 8;
  expect_error(ErrorKind::index,
               "[flex_attention] page 1 of sequence 1 is outside a pool of 8; got 8",
               [&] { attend(); });
  pool.page_table.at<std::int64_t>({1, 1}) = -1;
  expect_error(ErrorKind::index,
               "[flex_attention] page 1 of sequence 1 is outside a pool of 8; got -1",
               [&] { attend(); });
  pool.page_table.at<std::int64_t>({1, 1}) = 0;
  attend();
  pool.lengths.at<std::int64_t>({2}) = 65;
  expect_error(ErrorKind::value,
               "[flex_attention] sequence 2 has 65 keys; 4 pages of 16 hold fewer",
               [&] { attend(); });
  pool.lengths.at<std::int64_t>({2}) = -1;
  expect_error(ErrorKind::value, "[flex_attention] lengths must not be negative; sequence 2 has -1",
               [&] { attend(); });
  PagedKeys keys = pool.keys();
  keys.lengths = keys.lengths.slice(0, 0, 2);
  expect_error(ErrorKind::value,
               "[flex_attention] 3 sequences need as many page table rows and lengths; got 3 and 2",
               [&] { flex_attention(t.q, keys, {.enable_gqa = true}); });
  keys = pool.keys();
  keys.lengths = t.q.select(0, 0).select(0, 0).select(0, 0);
  expect_error(ErrorKind::type, "[flex_attention] lengths must be i32 or i64; got f32",
               [&] { flex_attention(t.q, keys, {.enable_gqa = true}); });
  expect_error(ErrorKind::value,
               "[pages_of] a cache must be [1, heads, pages * page_size, dim]; got [3, 2, 1300, "
               "24] and a page size of 16",
               [&] { pages_of(t.k, 16); });
}

}  // namespace
}  // namespace quire

// Heads that share a key head have, together, the bits that each has alone, however many there are:
// values that are copied or the first columns of keys, dense keys and pages, rules, chosen keys,
// any number of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "quire/flex_attention.h"
#include "quire/paged.h"
#include "tests/support/attention_case.h"
#include "tests/support/paged_pool.h"
#include "tests/support/same_bits.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

std::vector<std::int64_t> head_counts() {
#ifdef __SANITIZE_ADDRESS__
  return {1, 9, 13, 19, 33};
#endif
  if (kernels_are_slow()) return {1, 9, 13, 19, 33};
  std::vector<std::int64_t> counts(40);
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = static_cast<std::int64_t>(i) + 1;
  counts.insert(counts.end(), {64, 128});
  return counts;
}

AttentionCase one_query(DType dtype, std::int64_t heads) {
  const std::int64_t dims[][2] = {{72, 64}, {128, 128}, {40, 17}, {33, 33}, {576, 512}};
  const std::int64_t lengths[] = {1500, 300, 15, 2100, 1024, 257};
  const auto& size = dims[heads % 5];
  return {.batch = 1,
          .q_heads = heads,
          .kv_heads = 1,
          .q_len = 1,
          .kv_len = lengths[heads % 6],
          .head_dim = size[0],
          .v_head_dim = size[1],
          .q_dtype = dtype,
          .k_dtype = dtype,
          .v_dtype = dtype,
          .size = 2};
}

// What the case's queries see: everything, some keys, or all with scores changed by a formula.
FlexAttentionOptions options_of(const AttentionCase& c, std::int64_t which) {
  FlexAttentionOptions options{.enable_gqa = true};
  if (which % 3 == 1) {
    const MaskMod mask = MaskMod::parse("(kv_idx % 7 != 3) & ((kv_idx > 100) | (kv_idx < 9))");
    options.block_mask = create_block_mask(mask, 1, 1, 1, c.kv_len);
  }
  if (which % 3 == 2) options.score_mod = ScoreMod::parse("2 * tanh(score / 2) - 0.001 * kv_idx");
  return options;
}

void expect_heads_alone(const ConstTensorView& together, const AttentionTensors& t,
                        const ConstTensorView& v, const FlexAttentionOptions& options,
                        const std::string& what) {
  const std::int64_t heads = together.dim(1);
  for (const std::int64_t h : {std::int64_t{0}, heads / 2, heads - 1}) {
    const Tensor alone = flex_attention(ConstTensorView(t.q).slice(1, h, h + 1), t.k, v, options);
    EXPECT_TRUE(same_bits(together.slice(1, h, h + 1), alone)) << what << " head " << h;
  }
}

TEST(ManyHeads, HaveTheBitsOfEachAlone) {
  SerialExecutor serial;
  const auto three = make_thread_pool(3);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t heads : head_counts()) {
      const AttentionCase c = one_query(dtype, heads);
      const AttentionTensors t(c, 11);
      const std::string what = c.to_string();
      FlexAttentionOptions options = options_of(c, heads);
      const ConstTensorView latent = ConstTensorView(t.k).slice(3, 0, c.v_head_dim);
      options.executor = &serial;
      const Tensor out = flex_attention(t.q, t.k, latent, options);
      expect_heads_alone(out, t, latent, options, what);
      options.executor = three.get();
      EXPECT_TRUE(same_bits(out, flex_attention(t.q, t.k, latent, options))) << what << " threads";
      const Tensor copied = contiguous(latent);
      EXPECT_TRUE(same_bits(out, flex_attention(t.q, t.k, copied, options))) << what << " copied";
    }
  }
}

TEST(ManyHeads, HaveTheSameBitsOverPages) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t heads : head_counts()) {
      const AttentionCase c = one_query(dtype, heads);
      const AttentionTensors t(c, 12);
      const std::int64_t sizes[] = {1, 7, 16, 64};
      const PagedPool pool(t.k, t.v, {c.kv_len}, {.page_size = sizes[heads % 4]});
      const FlexAttentionOptions options = options_of(c, heads);
      PagedKeysOptions paged{.score_mod = options.score_mod, .enable_gqa = true};
      if (options.block_mask) paged.mask_mod = options.block_mask->mask_mod();
      EXPECT_TRUE(same_bits(flex_attention(t.q, t.k, t.v, options),
                            flex_attention(t.q, pool.keys(), paged)))
          << c.to_string();
    }
  }
}

TEST(ManyHeads, ThatChooseKeysHaveTheBitsOfEachAlone) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t heads : head_counts()) {
      AttentionCase c = one_query(dtype, heads);
      c.kv_len = 2100;
      const AttentionTensors t(c, 13);
      Tensor lists({1, 1, 60}, DType::i32);
      for (std::int32_t i = 0; i < 60; ++i) lists.data_as<std::int32_t>()[i] = i * i % 37 + i * 34;
      std::sort(lists.data_as<std::int32_t>(), lists.data_as<std::int32_t>() + 60);
      FlexAttentionOptions options = options_of(c, heads % 2 * 2);
      options.key_indices = lists;
      expect_heads_alone(flex_attention(t.q, t.k, t.v, options), t, t.v, options, c.to_string());
    }
  }
}

}  // namespace
}  // namespace quire::testing

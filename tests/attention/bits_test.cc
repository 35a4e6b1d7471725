// The contract of bits: a row's result depends on that row's query, keys, values and mods alone.
// Everything here is compared by memcmp.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "quire/flex_attention.h"
#include "quire/isa.h"
#include "quire/mods.h"
#include "tests/support/attention_case.h"
#include "tests/support/same_bits.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Result {
  Tensor out, lse, max_scores;
};

Result run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
           FlexAttentionOptions options) {
  AuxOutput aux;
  options.return_aux = {.lse = true, .max_scores = true};
  options.aux = &aux;
  options.enable_gqa = true;
  Tensor out = flex_attention(q, k, v, options);
  return {out, *aux.lse, *aux.max_scores};
}

void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.out, b.out)) << what;
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << what;
  EXPECT_TRUE(same_bits(a.max_scores, b.max_scores)) << what;
}

// Calls that go through every part of the kernels: no mod, mods of every class, masks with holes.
// One lane at a time, and under a sanitizer, is some 100 times slower: fewer of them there.
std::vector<AttentionCase> cases(std::int64_t kv_len = 2300) {
#ifdef __SANITIZE_ADDRESS__
  const bool slow = true;
#else
  const bool slow = kernels_are_slow();
#endif
  if (slow) kv_len = 1100;
  std::size_t at = 0;
  const Buffer table(std::vector<float>(9000, 0.3f), {.name = "table"});
  const std::vector<std::optional<ScoreMod>> scores{
      std::nullopt, mods::alibi(4),
      ScoreMod::parse("3 * tanh(score / 3) + table[kv_idx]", {{"table", table}}),
      ScoreMod::parse("score + exp(-abs(q_idx - kv_idx) * 0.01)")};
  const std::vector<std::optional<MaskMod>> masks{
      std::nullopt, mods::causal_bottom_right(130, kv_len), mods::sliding_window(700, 300),
      MaskMod::parse("((q_idx * 7 + kv_idx) % 5 != 0) & (kv_idx > 3)")};
  std::vector<AttentionCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const auto& score : scores) {
      for (const auto& mask : masks) {
        if (slow && at++ % 21 != 0) continue;
        all.push_back({.batch = 2,
                       .q_heads = 4,
                       .kv_heads = 2,
                       .q_len = 130,
                       .kv_len = kv_len,
                       .head_dim = 24,
                       .v_head_dim = 20,
                       .q_dtype = dtype,
                       .k_dtype = dtype,
                       .v_dtype = dtype,
                       .size = 2,
                       .score_mod = score,
                       .mask_mod = mask});
      }
    }
  }
  return all;
}

TEST(Bits, DoNotDependOnThreads) {
  SerialExecutor serial;
  const auto three = make_thread_pool(3);
  for (const AttentionCase& c : cases()) {
    const AttentionTensors t(c, 1);
    FlexAttentionOptions options = c.options();
    options.executor = &serial;
    const Result one = run(t.q, t.k, t.v, options);
    options.executor = three.get();
    expect_same(one, run(t.q, t.k, t.v, options), c.to_string());
    if (c.mask_mod.has_value()) continue;
    // Few rows over many keys: decode, cut at splits. Enough work for more than one thread.
    const ConstTensorView few = t.q.slice(2, 0, 5);
    const Result many = run(few, t.k, t.v, options);
    options.executor = &serial;
    expect_same(run(few, t.k, t.v, options), many, "5 rows of " + c.to_string());
  }
}

TEST(Bits, DoNotDependOnTheBatch) {
  for (const AttentionCase& c : cases()) {
    const AttentionTensors t(c, 2);
    const Result all = run(t.q, t.k, t.v, c.options());
    AttentionCase alone = c;
    alone.batch = 1;
    const Result first =
        run(t.q.slice(0, 0, 1), t.k.slice(0, 0, 1), t.v.slice(0, 0, 1), alone.options());
    EXPECT_TRUE(same_bits(all.out.view().slice(0, 0, 1), first.out)) << c.to_string();
    EXPECT_TRUE(same_bits(all.lse.view().slice(0, 0, 1), first.lse)) << c.to_string();
  }
}

TEST(Bits, DoNotDependOnStrides) {
  for (AttentionCase c : cases()) {
    const AttentionTensors t(c, 3);
    const Result plain = run(t.q, t.k, t.v, c.options());
    for (const Order order : {Order::kHeadsInside, Order::kDimOutside}) {
      c.order = order;
      const AttentionTensors other(c, 3);
      expect_same(plain, run(other.q, other.k, other.v, c.options()), c.to_string());
    }
  }
}

TEST(Bits, DoNotDependOnTheBlockSize) {
  for (AttentionCase c : cases()) {
    if (!c.mask_mod.has_value()) continue;
    const AttentionTensors t(c, 4);
    const Result plain = run(t.q, t.k, t.v, c.options());
    for (const BlockSize size :
         {BlockSize(16), BlockSize(64), BlockSize(7, 50), BlockSize(1, 999)}) {
      c.block_size = size;
      expect_same(plain, run(t.q, t.k, t.v, c.options()), c.to_string());
    }
  }
}

// Chunks of any length, computed by either kernel, have the bits of the whole.
TEST(Bits, DoNotDependOnTheChunk) {
  for (const AttentionCase& c : cases()) {
    const AttentionTensors t(c, 5);
    const FlexAttentionOptions options = c.options();
    const Result all = run(t.q, t.k, t.v, options);
    for (const auto& [begin, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {129, 130}, {0, 1}, {5, 8}, {60, 70}, {17, 117}}) {
      FlexAttentionOptions part = options;
      part.q_begin = {begin};
      if (part.block_mask) part.block_mask = part.block_mask->rows(begin, end);
      const Result some = run(t.q.slice(2, begin, end), t.k, t.v, part);
      const std::string what =
          c.to_string() + " rows " + std::to_string(begin) + ".." + std::to_string(end);
      EXPECT_TRUE(same_bits(all.out.view().slice(2, begin, end), some.out)) << what;
      EXPECT_TRUE(same_bits(all.lse.view().slice(2, begin, end), some.lse)) << what;
      EXPECT_TRUE(same_bits(all.max_scores.view().slice(2, begin, end), some.max_scores)) << what;
    }
  }
}

TEST(Bits, DoNotDependOnTheIsa) {
  for (const AttentionCase& c : cases(1100)) {
    // bf16 products exist on some CPUs only, and f64 functions are libm's.
    if (c.q_dtype == DType::bf16 || (c.q_dtype == DType::f64 && c.score_mod)) continue;
    const AttentionTensors t(c, 6);
    const FlexAttentionOptions options = c.options();
    const Result here = run(t.q, t.k, t.v, options);
    for (const Isa isa : available_isas()) {
      const ScopedIsa scoped(isa);
      for (const std::int64_t rows : {2, 20}) {  // both kernels
        FlexAttentionOptions part = options;
        if (part.block_mask) part.block_mask = part.block_mask->rows(0, rows);
        const Result there = run(t.q.slice(2, 0, rows), t.k, t.v, part);
        EXPECT_TRUE(same_bits(here.out.view().slice(2, 0, rows), there.out)) << c.to_string();
        EXPECT_TRUE(same_bits(here.lse.view().slice(2, 0, rows), there.lse)) << c.to_string();
      }
    }
  }
}

// Masked keys may hold anything.
TEST(Bits, HiddenKeysAreNeverSeen) {
  for (const std::int64_t q_len : {1, 5, 100}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      for (const char* mask :
           {"kv_idx < 700", "(kv_idx < 700) & (kv_idx % 3 != 1)", "kv_idx >= 1100"}) {
        for (const bool with_mod : {false, true}) {
          AttentionCase c{.q_heads = 2,
                          .kv_heads = 1,
                          .q_len = q_len,
                          .kv_len = 1500,
                          .q_dtype = dtype,
                          .k_dtype = dtype,
                          .v_dtype = dtype,
                          .mask_mod = MaskMod::parse(mask)};
          if (with_mod) c.score_mod = mods::softcap(5);
          AttentionTensors t(c, 7);
          const Result clean = run(t.q, t.k, t.v, c.options());
          const Tensor visible = create_mask(*c.mask_mod, 1, 1, 1, 1500);
          for (Tensor* memory : {&t.k_memory, &t.v_memory}) {
            Tensor bad = memory->to(DType::f64);
            for (std::int64_t key = 0; key < 1500; ++key) {
              if (visible.data_as<bool>()[key]) continue;
              for (std::int64_t d = 0; d < 16; ++d)
                bad.at<double>({0, 0, key, d}) = (key + d) % 2 == 0 ? kNaN : HUGE_VALF;
            }
            *memory = bad.to(dtype);
          }
          expect_same(clean, run(t.q, t.k_memory, t.v_memory, c.options()), c.to_string());
        }
      }
    }
  }
}

// A visible NaN or infinity makes its own rows NaN and no others.
TEST(Bits, VisibleNonFiniteScoresStayInTheirRows) {
  for (const std::int64_t q_len : {3, 100}) {
    for (const float bad : {kNaN, HUGE_VALF}) {
      AttentionCase c{
          .q_len = q_len, .kv_len = 600, .mask_mod = mods::causal_bottom_right(q_len, 600)};
      AttentionTensors t(c, 8);
      const Result clean = run(t.q, t.k, t.v, c.options());
      Tensor q = t.q_memory.clone();
      q.at<float>({0, 0, 1, 4}) = bad;
      const Result dirty = run(q, t.k, t.v, c.options());
      for (std::int64_t row = 0; row < q_len; ++row) {
        if (row == 1) {
          EXPECT_TRUE(std::isnan(dirty.out.at<float>({0, 0, row, 0})));
          continue;
        }
        EXPECT_TRUE(same_bits(clean.out.view().slice(2, row, row + 1),
                              dirty.out.view().slice(2, row, row + 1)));
      }
      // A value: infinite where its weight is not 0.
      Tensor v = t.v_memory.clone();
      v.at<float>({0, 0, 0, 2}) = bad;
      const Result with_value = run(t.q, t.k, v, c.options());
      EXPECT_FALSE(std::isfinite(with_value.out.at<float>({0, 0, 0, 2})));
      EXPECT_EQ(with_value.out.at<float>({0, 0, 0, 3}), clean.out.at<float>({0, 0, 0, 3}));
    }
  }
}

}  // namespace
}  // namespace quire::testing

// Dropout of attention: which weights are dropped (the reference's), how many, the contract of bits
// with it (kernel, threads, chunk, ISA, strides, batch), p = 0 and p = 1.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "quire/flex_attention.h"
#include "quire/isa.h"
#include "quire/mods.h"
#include "quire/scaled_dot_product_attention.h"
#include "reference/attention.h"
#include "tests/support/attention_case.h"
#include "tests/support/same_bits.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

constexpr std::uint64_t kSeed = 0xfeedface12345678;

Tensor run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
           AttentionOptions options, double p) {
  options.dropout_p = p;
  options.seed = kSeed;
  return flex_attention(q, k, v, options);
}

std::vector<AttentionCase> cases() {
  const bool slow = kernels_are_slow();
  std::vector<AttentionCase> all;
  const std::int64_t kv_len = slow ? 300 : 1300;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const auto& mask : std::vector<std::optional<MaskMod>>{
             std::nullopt, mods::causal_bottom_right(130, kv_len),
             MaskMod::parse("((q_idx * 7 + kv_idx) % 5 != 0) & (kv_idx > 3)")}) {
      for (const auto& score : std::vector<std::optional<ScoreMod>>{std::nullopt, mods::alibi(4)}) {
        if (slow && (score || !mask)) continue;
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

// With values of 1 in one column each, an output is a weight.
Tensor unit_values(std::int64_t kv_len, DType dtype) {
  Tensor v({1, 1, kv_len, kv_len}, DType::f32);
  for (std::int64_t i = 0; i < kv_len; ++i) v.at<float>({0, 0, i, i}) = 1;
  return v.to(dtype);
}

TEST(Dropout, DropsWhatTheReferenceDrops) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const double p : {0.1, 0.5, 0.9}) {
      for (const std::int64_t q_len : {3, 70}) {
        AttentionCase c{.batch = 2,
                        .q_heads = 2,
                        .kv_heads = 2,
                        .q_len = q_len,
                        .kv_len = 300,
                        .q_dtype = dtype,
                        .k_dtype = dtype,
                        .v_dtype = dtype};
        const AttentionTensors t(c, 1);
        const Tensor v = unit_values(300, dtype);
        const ConstTensorView values = v.view().expand({2, 2, 300, 300});
        const SdpaOptions options{.dropout_p = p, .seed = kSeed};
        const Tensor got = scaled_dot_product_attention(t.q, t.k, values, options).to(DType::f64);
        const Tensor want = reference::attention({t.q, t.k, values}, {.dropout = {p, kSeed}}).out;
        std::int64_t dropped = 0;
        for (std::int64_t i = 0; i < got.numel(); ++i) {
          const double x = got.data_as<double>()[i], y = want.data_as<double>()[i];
          ASSERT_EQ(x == 0, y == 0) << i;
          ASSERT_NEAR(x, y, y * 0x1p-6) << i;
          dropped += x == 0;
        }
        const auto n = static_cast<double>(got.numel());
        EXPECT_NEAR(static_cast<double>(dropped), n * p, 5 * std::sqrt(n * p * (1 - p)));
      }
    }
  }
}

TEST(Dropout, OtherSeedsDropOthers) {
  const AttentionCase c{.q_len = 64, .kv_len = 64};
  const AttentionTensors t(c, 1);
  const Tensor v = unit_values(64, DType::f32);
  std::vector<Tensor> all;
  for (const std::uint64_t seed : {0ull, 1ull, 1ull << 32, 1ull << 63})
    all.push_back(scaled_dot_product_attention(t.q, t.k, v, {.dropout_p = 0.5, .seed = seed}));
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      int both = 0;  // of 4,096, a quarter
      for (std::int64_t n = 0; n < 4096; ++n)
        both += all[i].data_as<float>()[n] == 0 && all[j].data_as<float>()[n] == 0;
      EXPECT_NEAR(both, 1024, 5 * std::sqrt(4096 * 0.25 * 0.75));
    }
  }
}

TEST(Dropout, BitsDoNotDependOnThreads) {
  SerialExecutor serial;
  const auto three = make_thread_pool(3);
  for (const AttentionCase& c : cases()) {
    const AttentionTensors t(c, 1);
    FlexAttentionOptions options = c.options();
    options.executor = &serial;
    const Tensor one = run(t.q, t.k, t.v, options, 0.2);
    options.executor = three.get();
    EXPECT_TRUE(same_bits(one, run(t.q, t.k, t.v, options, 0.2))) << c.to_string();
  }
}

// One row decodes, two prefill with the group, 64 and more prefill.
TEST(Dropout, BitsDoNotDependOnTheChunk) {
  for (const AttentionCase& c : cases()) {
    const AttentionTensors t(c, 2);
    const Tensor whole = run(t.q, t.k, t.v, c.options(), 0.3);
    std::int64_t begin = 0;
    for (const std::int64_t count : {1, 2, 5, 40, 64, 18}) {
      AttentionCase part = c;
      part.q_len = count;
      part.q_begin = begin;
      const Tensor rows = run(t.q.slice(2, begin, begin + count), t.k, t.v, part.options(), 0.3);
      EXPECT_TRUE(same_bits(whole.view().slice(2, begin, begin + count), rows))
          << c.to_string() << " rows " << begin << " + " << count;
      begin += count;
    }
  }
}

TEST(Dropout, BitsDoNotDependOnStrides) {
  for (AttentionCase c : cases()) {
    const AttentionTensors t(c, 3);
    c.order = Order::kHeadsInside;
    const AttentionTensors other(c, 3);
    EXPECT_TRUE(same_bits(run(t.q, t.k, t.v, c.options(), 0.3),
                          run(other.q, other.k, other.v, c.options(), 0.3)))
        << c.to_string();
  }
}

TEST(Dropout, BitsDoNotDependOnTheIsa) {
  AttentionCase c{.q_heads = 2, .kv_heads = 1, .q_len = 70, .kv_len = 400, .head_dim = 24};
  for (const std::int64_t q_len : {3, 70}) {
    c.q_len = q_len;
    const AttentionTensors t(c, 4);
    std::vector<Tensor> all;
    for (const Isa isa : available_isas()) {
      const ScopedIsa scoped(isa);
      all.push_back(run(t.q, t.k, t.v, c.options(), 0.25));
    }
    for (const Tensor& one : all) EXPECT_TRUE(same_bits(one, all[0]));
  }
}

TEST(Dropout, NoneAndAll) {
  for (const AttentionCase& c : cases()) {
    const AttentionTensors t(c, 5);
    const Tensor none = run(t.q, t.k, t.v, c.options(), 0);
    EXPECT_TRUE(same_bits(none, flex_attention(t.q, t.k, t.v, c.options()))) << c.to_string();
    const Tensor all = run(t.q, t.k, t.v, c.options(), 1);
    EXPECT_TRUE(same_bits(all, Tensor(all.shape(), all.dtype()))) << c.to_string();
  }
}

// As torch: a NaN times 0 is one. Rows beside it know nothing of it.
TEST(Dropout, VisibleNaNStays) {
  for (const std::int64_t q_len : {4, 70}) {
    for (const double p : {0.5, 1.0}) {
      const AttentionCase c{.q_len = q_len, .kv_len = 300};
      const AttentionTensors t(c, 6);
      Tensor q = contiguous(t.q);
      q.at<float>({0, 0, 2, 5}) = std::numeric_limits<float>::quiet_NaN();
      const SdpaOptions options{.dropout_p = p, .seed = kSeed};
      const Tensor got = scaled_dot_product_attention(q, t.k, t.v, options);
      const Tensor want = reference::attention({q, t.k, t.v}, {.dropout = {p, kSeed}}).out;
      for (std::int64_t row = 0; row < q_len; ++row) {
        EXPECT_EQ(std::isnan(got.at<float>({0, 0, row, 0})), row == 2) << row;
        EXPECT_EQ(std::isnan(want.at<double>({0, 0, row, 0})), row == 2) << row;
      }
    }
  }
}

}  // namespace
}  // namespace quire::testing

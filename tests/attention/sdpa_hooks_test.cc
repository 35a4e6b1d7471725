// What scaled_dot_product_attention takes beside torch's arguments: sinks, chosen keys, weights by
// a formula and rotation. Bits and gradients are flex_attention's; MATH is the reference.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "quire/flex_attention.h"
#include "quire/flex_attention_backward.h"
#include "quire/jagged.h"
#include "quire/mods.h"
#include "quire/scaled_dot_product_attention.h"
#include "tests/support/attention_case.h"
#include "tests/support/backward_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_tensor.h"
#include "tests/support/same_bits.h"

namespace quire::testing {
namespace {

constexpr std::int64_t kHeads = 4, kLength = 50;

struct SdpaHook {
  const char* name;
  std::optional<Buffer> sinks = {};
  std::optional<ConstTensorView> key_indices = {};
  std::optional<ScoreMod> weight_mod = {};
  Normalize normalize = Normalize::kNone;
  std::optional<Rope> rope = {};

  template <class Options>
  void put_into(Options& options) const {
    options.sinks = sinks;
    options.key_indices = key_indices;
    options.weight_mod = weight_mod;
    options.normalize = normalize;
    options.rope = rope;
  }
};

// Of a batch of 2; lists of 3 keys for every query.
class SdpaHooks : public ::testing::Test {
 protected:
  SdpaHooks() {
    auto* at = lists_.data_as<std::int32_t>();
    for (std::int64_t i = 0; i < 2 * kLength; ++i, at += 3) {
      at[0] = static_cast<std::int32_t>(i % kLength);
      at[1] = static_cast<std::int32_t>((i + 7) % kLength);
      at[2] = -1;
    }
    hooks_.push_back(
        {.name = "sinks", .sinks = Buffer(sinks_, {.name = "sinks", .wants_gradient = true})});
    hooks_.push_back({.name = "key_indices", .key_indices = lists_.view()});
    hooks_.push_back({.name = "weight_mod",
                      .weight_mod = ScoreMod::parse("relu(score) + 0.1"),
                      .normalize = Normalize::kSum});
    hooks_.push_back({.name = "rope", .rope = Rope{.theta = 100.0}});
  }

  Tensor q_ = random_tensor({2, kHeads, kLength, 16}, DType::f32, 1),
         k_ = random_tensor({2, 2, kLength, 16}, DType::f32, 2),
         v_ = random_tensor({2, 2, kLength, 8}, DType::f32, 3),
         sinks_ = random_tensor({kHeads}, DType::f32, 4);
  Tensor lists_ = Tensor::empty({2, kLength, 3}, DType::i32);
  std::vector<SdpaHook> hooks_;
};

TEST_F(SdpaHooks, AreThoseOfFlexAttention) {
  const Tensor d_out = random_tensor({2, kHeads, kLength, 8}, DType::f32, 5);
  for (const SdpaHook& hook : hooks_) {
    SCOPED_TRACE(hook.name);
    SdpaOptions options{.is_causal = true, .enable_gqa = true};
    hook.put_into(options);
    Tensor lse;
    options.lse = &lse;
    const Tensor out = scaled_dot_product_attention(q_, k_, v_, options);
    AuxOutput aux;
    AttentionOptions flex{.mask_mod = mods::causal(), .enable_gqa = true};
    hook.put_into(flex);
    flex.return_aux.lse = true;
    flex.aux = &aux;
    const Tensor want = flex_attention(q_, k_, v_, flex);
    EXPECT_TRUE(same_bits(out, want));
    EXPECT_TRUE(same_bits(lse, *aux.lse));

    flex.return_aux = {};
    flex.aux = nullptr;
    const SdpaGradients got =
        scaled_dot_product_attention_backward({q_, k_, v_, out, lse, d_out}, options);
    const AttentionGradients gradients = flex_attention_backward(
        {.q = q_, .k = k_, .v = v_, .out = out, .lse = lse, .d_out = d_out.view()},
        {.forward = flex});
    EXPECT_TRUE(same_bits(*got.q, *gradients.q));
    EXPECT_TRUE(same_bits(*got.k, *gradients.k));
    EXPECT_TRUE(same_bits(*got.v, *gradients.v));
    ASSERT_EQ(got.buffers.size(), gradients.buffers.size());
    for (std::size_t i = 0; i < got.buffers.size(); ++i)
      EXPECT_TRUE(same_bits(got.buffers[i].gradient, gradients.buffers[i].gradient));
  }
}

TEST_F(SdpaHooks, OfMathAreTheFusedOnes) {
  for (const SdpaHook& hook : hooks_) {
    SCOPED_TRACE(hook.name);
    SdpaOptions options{.enable_gqa = true};
    hook.put_into(options);
    const Tensor fused = scaled_dot_product_attention(q_, k_, v_, options);
    options.backends = {SDPBackend::kMath};
    const Tensor exact = scaled_dot_product_attention(q_, k_, v_, options);
    EXPECT_LE(largest_error(fused.to(DType::f64), exact.to(DType::f64)), 2e-6);
  }
}

TEST_F(SdpaHooks, OfJaggedBatchesAreThoseOfEachSequence) {
  const std::vector<std::int64_t> offsets{0, kLength, 2 * kLength};
  const ConstTensorView bounds(offsets.data(), DType::i64, {3});
  const auto packed = [](const Tensor& dense) {  // [2, H, L, D] to [2 L, H, D]
    Tensor made = Tensor::empty({2 * dense.dim(2), dense.dim(1), dense.dim(3)}, DType::f32);
    float* to = made.data_as<float>();
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t row = 0; row < dense.dim(2); ++row)
        for (std::int64_t h = 0; h < dense.dim(1); ++h)
          for (std::int64_t d = 0; d < dense.dim(3); ++d)
            *to++ = static_cast<float>(dense.view().load_float({b, h, row, d}));
    return made;
  };
  const Tensor q = packed(q_), k = packed(k_), v = packed(v_);
  const Tensor lists = lists_.reshape({2 * kLength, 3});
  for (const SdpaHook& hook : hooks_) {
    SCOPED_TRACE(hook.name);
    SdpaOptions options{.is_causal = true, .enable_gqa = true};
    hook.put_into(options);
    const Tensor dense = scaled_dot_product_attention(q_, k_, v_, options);
    if (hook.key_indices) options.key_indices = lists.view();
    const Tensor jagged = scaled_dot_product_attention(
        Jagged{.values = q, .offsets = bounds}, Jagged{.values = k, .offsets = bounds},
        Jagged{.values = v, .offsets = bounds}, options);
    EXPECT_TRUE(same_bits(jagged, packed(dense)));
  }
}

TEST_F(SdpaHooks, ThatDoNotFitAreNamed) {
  SdpaOptions options{.enable_gqa = true};
  options.sinks = Buffer(random_tensor({3}, DType::f32, 1), {.name = "sinks"});
  const auto run = [&] { scaled_dot_product_attention(q_, k_, v_, options); };
  const char* const text =
      "[scaled_dot_product_attention] sinks must be one number per query head, [4]; got [3]";
  expect_error(ErrorKind::value, text, run);
  options.backends = {SDPBackend::kMath};
  expect_error(ErrorKind::value, text, run);
  options = {.enable_gqa = true, .normalize = Normalize::kSum};
  expect_error(ErrorKind::value,
               "[scaled_dot_product_attention] normalize is for weight_mod, and there is none",
               run);
}

// Without keys there is nothing to attend to, whatever the hooks.
TEST_F(SdpaHooks, OfNoKeys) {
  const Tensor none_k({2, 2, 0, 16}, DType::f32), none_v({2, 2, 0, 8}, DType::f32);
  SdpaOptions options{.enable_gqa = true};
  options.weight_mod = ScoreMod::parse("sigmoid(score)");
  Tensor lse;
  options.lse = &lse;
  const Tensor out = scaled_dot_product_attention(q_, none_k, none_v, options);
  EXPECT_EQ(largest(out.to(DType::f64)), 0);
  EXPECT_EQ(largest(lse.to(DType::f64)), 0);
}

}  // namespace
}  // namespace quire::testing

// Backends of scaled_dot_product_attention: the choice, the reasons, and that they agree.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "quire/mods.h"
#include "quire/scaled_dot_product_attention.h"
#include "tests/support/attention_case.h"
#include "tests/support/expect_error.h"

namespace quire::testing {
namespace {

using enum SDPBackend;
using Reasons = std::vector<std::string>;

AttentionTensors tensors(DType dtype, std::int64_t q_len = 20, std::int64_t dim = 16) {
  return AttentionTensors({.batch = 2,
                           .q_heads = 2,
                           .kv_heads = 2,
                           .q_len = q_len,
                           .kv_len = 33,
                           .head_dim = dim,
                           .v_head_dim = 16,
                           .q_dtype = dtype,
                           .k_dtype = dtype,
                           .v_dtype = dtype},
                          1);
}

TEST(SdpaBackend, Choice) {
  const auto f32 = tensors(DType::f32), f64 = tensors(DType::f64),
             wide = tensors(DType::f32, 4, 1025);
  const auto choice = [](const AttentionTensors& t, const SdpaOptions& options = {}) {
    return choose_backend(t.q, t.k, t.v, options);
  };
  EXPECT_EQ(choice(f32), kFlashAttention);
  EXPECT_EQ(choice(f32, {.dropout_p = 0.5, .is_causal = true}), kFlashAttention);
  EXPECT_EQ(choice(f64, {.attn_mask = mods::causal()}), kFlashAttention);
  EXPECT_EQ(choice(wide), kMath);
  EXPECT_EQ(choice(f32, {.backends = {kMath, kEfficientAttention}}), kEfficientAttention);
  EXPECT_EQ(choice(f32, {.backends = {kMath}}), kMath);
  EXPECT_EQ(choice(wide, {.backends = {kFlashAttention, kEfficientAttention}}), kError);
  EXPECT_EQ(choice(f32, {.backends = {}}), kError);
}

TEST(SdpaBackend, WhyNot) {
  const auto f32 = tensors(DType::f32), f64 = tensors(DType::f64),
             wide = tensors(DType::f64, 4, 1025);
  const auto reasons = [](SDPBackend backend, const AttentionTensors& t,
                          const SdpaOptions& options = {}) {
    return why_not(backend, t.q, t.k, t.v, options);
  };
  for (const SDPBackend backend : {kFlashAttention, kEfficientAttention, kMath})
    EXPECT_EQ(reasons(backend, f32), Reasons{});
  EXPECT_EQ(reasons(kError, f32), Reasons{"ERROR is not a backend: it says that none is left."});
  for (const SDPBackend backend : {kFlashAttention, kEfficientAttention})
    EXPECT_EQ(reasons(backend, f64, {.attn_mask = mods::causal()}), Reasons{});
  EXPECT_EQ(reasons(kFlashAttention, wide, {.attn_mask = mods::causal(), .backends = {kMath}}),
            (Reasons{"FLASH_ATTENTION is not among the backends that may be used.",
                     "FLASH_ATTENTION takes head dims of 0 to 1024; got 1025 for query and key and "
                     "16 for value."}));
  EXPECT_EQ(reasons(kMath, wide), Reasons{});
}

TEST(SdpaBackend, NoneIsLeft) {
  const auto t = tensors(DType::f64, 4, 1025);
  expect_error(
      ErrorKind::runtime,
      "[scaled_dot_product_attention] No viable backend for scaled_dot_product_attention was "
      "found. FLASH_ATTENTION takes head dims of 0 to 1024; got 1025 for query and key and 16 for "
      "value. EFFICIENT_ATTENTION is not among the backends that may be used. "
      "EFFICIENT_ATTENTION takes head dims of 0 to 1024; got 1025 for query and key and 16 for "
      "value. MATH is not among the backends that may be used.",
      [&] { scaled_dot_product_attention(t.q, t.k, t.v, {.backends = {kFlashAttention}}); });
}

TEST(SdpaBackend, Agree) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t q_len : {2, 70}) {
      for (const double p : {0.0, 0.4}) {
        const auto t = tensors(dtype, q_len);
        const auto out = [&](SDPBackend backend) {
          return scaled_dot_product_attention(
              t.q, t.k, t.v, {.dropout_p = p, .seed = 3, .is_causal = true, .backends = {backend}});
        };
        const Tensor efficient = out(kEfficientAttention), math = out(kMath);
        const Tensor flash = out(kFlashAttention);
        EXPECT_EQ(std::memcmp(flash.data(), efficient.data(),
                              static_cast<std::size_t>(flash.numel()) * dtype_size(dtype)),
                  0);
        EXPECT_EQ(math.dtype(), dtype);
        EXPECT_LE(largest_error(efficient.to(DType::f64), math.to(DType::f64)),
                  dtype == DType::bf16  ? 0x1p-6
                  : dtype == DType::f16 ? 0x1p-9
                                        : 1e-6);
      }
    }
  }
  const auto wide = tensors(DType::f32, 4, 1025);
  EXPECT_EQ(scaled_dot_product_attention(wide.q, wide.k, wide.v).shape(), (Shape{2, 2, 4, 16}));
}

}  // namespace
}  // namespace quire::testing

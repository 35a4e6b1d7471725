// scaled_dot_product_attention over jagged batches: each sequence has the bits of a dense call,
// both orders, broadcast heads, alignments, dropout; the MATH backend; errors.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "quire/mods.h"
#include "quire/scaled_dot_product_attention.h"
#include "tests/support/attention_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/same_bits.h"

namespace quire::testing {
namespace {

Tensor numbers(const Shape& shape, unsigned seed, DType dtype) {
  std::mt19937 random(seed);
  Tensor tensor(shape, DType::f64);
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data_as<double>()[i] = static_cast<double>(random() % 2001) / 1000 - 1;
  return tensor.to(dtype);
}

// Offsets, values in either order, and one sequence of it as [heads, length, dim].
struct Batch {
  std::vector<std::int64_t> at;
  Tensor offsets, values;
  JaggedOrder order;

  Batch(const std::vector<std::int64_t>& lengths, std::int64_t heads, std::int64_t dim,
        JaggedOrder which, unsigned seed, DType dtype)
      : at{0}, order(which) {
    for (const std::int64_t length : lengths) at.push_back(at.back() + length);
    offsets = Tensor::from(at);
    values = numbers(
        order == JaggedOrder::kTokens ? Shape{at.back(), heads, dim} : Shape{heads, at.back(), dim},
        seed, dtype);
  }
  Jagged jagged() const { return {.values = values, .offsets = offsets, .order = order}; }
  ConstTensorView sequence(std::size_t i, const Tensor& of) const {
    const ConstTensorView view = of.view();
    return (order == JaggedOrder::kTokens ? view.transpose(0, 1) : view).slice(1, at[i], at[i + 1]);
  }
};

const std::vector<std::int64_t> kQueries{3, 0, 70, 1, 20}, kKeys{5, 4, 90, 300, 0};

TEST(SdpaJagged, EachSequenceAlone) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const JaggedOrder order : {JaggedOrder::kTokens, JaggedOrder::kHeads}) {
      for (const auto& [q_heads, kv_heads] :
           std::vector<std::pair<std::int64_t, std::int64_t>>{{4, 4}, {4, 2}, {4, 1}, {1, 4}}) {
        const Batch q(kQueries, q_heads, 8, order, 1, dtype),
            k(kKeys, kv_heads, 8, order, 2, dtype),
            v(kKeys, kv_heads, 5, JaggedOrder::kTokens, 3, dtype);
        for (const auto& options : std::vector<SdpaOptions>{
                 {.enable_gqa = true},
                 {.is_causal = true, .enable_gqa = true},
                 {.is_causal = true,
                 .alignment = CausalAlignment::kBottomRight,
                 .enable_gqa = true},
                 {.attn_mask = MaskMod::parse("(q_idx + kv_idx + h) % 3 != 0"), .enable_gqa = true},
                 {.dropout_p = 1, .enable_gqa = true}}) {
          const Tensor out =
              scaled_dot_product_attention(q.jagged(), k.jagged(), v.jagged(), options);
          for (std::size_t i = 0; i < kQueries.size(); ++i) {
            const Tensor alone = scaled_dot_product_attention(
                q.sequence(i, q.values), k.sequence(i, k.values), v.sequence(i, v.values), options);
            EXPECT_TRUE(same_bits(q.sequence(i, out), alone)) << i;
          }
        }
      }
    }
  }
}

// b is the sequence: as entry b of a dense batch.
TEST(SdpaJagged, Dropout) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const std::vector<std::int64_t> lengths{40, 40, 40};
    const Batch q(lengths, 2, 8, JaggedOrder::kTokens, 1, dtype),
        k(lengths, 2, 8, JaggedOrder::kTokens, 2, dtype);
    const SdpaOptions options{.dropout_p = 0.3, .seed = 77, .is_causal = true};
    const Tensor out = scaled_dot_product_attention(q.jagged(), k.jagged(), k.jagged(), options);
    const auto dense = [](const Batch& batch) {
      return batch.values.view().reshape({3, 40, 2, 8}).transpose(1, 2);
    };
    const Tensor want = scaled_dot_product_attention(dense(q), dense(k), dense(k), options);
    EXPECT_TRUE(same_bits(ConstTensorView(out).reshape({3, 40, 2, 8}).transpose(1, 2), want));
  }
}

TEST(SdpaJagged, MathAgrees) {
  for (const JaggedOrder order : {JaggedOrder::kTokens, JaggedOrder::kHeads}) {
    const Batch q(kQueries, 4, 8, order, 1, DType::f32), k(kKeys, 2, 8, order, 2, DType::f32);
    SdpaOptions options{.attn_mask = MaskMod::parse("(kv_idx + b) % 4 != 0"),
                        .dropout_p = 0.2,
                        .seed = 5,
                        .enable_gqa = true};
    const Tensor fused = scaled_dot_product_attention(q.jagged(), k.jagged(), k.jagged(), options);
    options.backends = {SDPBackend::kMath};
    EXPECT_EQ(choose_backend(q.jagged(), k.jagged(), k.jagged(), options), SDPBackend::kMath);
    const Tensor math = scaled_dot_product_attention(q.jagged(), k.jagged(), k.jagged(), options);
    EXPECT_EQ(fused.shape(), math.shape());
    EXPECT_LE(largest_error(fused.to(DType::f64), math.to(DType::f64)), 1e-6);
  }
}

TEST(SdpaJagged, BackendsAndErrors) {
  const auto batch = [](const std::vector<std::int64_t>& lengths, std::int64_t heads,
                        std::int64_t dim, DType dtype = DType::f32) {
    return Batch(lengths, heads, dim, JaggedOrder::kTokens, 1, dtype);
  };
  const Batch q = batch({3, 4}, 2, 8), f64 = batch({3, 4}, 2, 8, DType::f64);
  EXPECT_EQ(choose_backend(q.jagged(), q.jagged(), q.jagged()), SDPBackend::kFlashAttention);
  EXPECT_EQ(choose_backend(f64.jagged(), f64.jagged(), f64.jagged()), SDPBackend::kFlashAttention);
  const Batch wide = batch({3, 4}, 2, 1100);
  EXPECT_EQ(choose_backend(wide.jagged(), wide.jagged(), wide.jagged()), SDPBackend::kMath);
  EXPECT_EQ(scaled_dot_product_attention(wide.jagged(), wide.jagged(), wide.jagged()).shape(),
            (Shape{7, 2, 1100}));

  const auto expect = [&](ErrorKind kind, const std::string& text, const Batch& key,
                          const SdpaOptions& options = {}) {
    const std::string all = "[scaled_dot_product_attention] " + text;
    expect_error(kind, all, [&] {
      scaled_dot_product_attention(q.jagged(), key.jagged(), key.jagged(), options);
    });
    EXPECT_EQ(why_not(SDPBackend::kMath, q.jagged(), key.jagged(), key.jagged(), options),
              std::vector<std::string>{all});
  };
  expect(ErrorKind::runtime, "query, key and value must have the same dtype; got f32, f64 and f64",
         f64);
  expect(ErrorKind::value, "query and key must have the same head dim; got 8 and 9",
         batch({3, 4}, 2, 9));
  expect(ErrorKind::value,
         "query, key and value must have the same number of sequences; got 2, 3 and 3",
         batch({3, 4, 5}, 2, 8), {.is_causal = true, .alignment = CausalAlignment::kBottomRight});
  expect(ErrorKind::value,
         "query and key must have the same number of heads, or 1, or enable_gqa must be set; got 2 "
         "and 4",
         batch({3, 4}, 4, 8));
  const Tensor mask({1}, DType::boolean);
  expect(ErrorKind::value, "the attn_mask of a jagged batch must be a rule; got a tensor", q,
         {.attn_mask = ConstTensorView(mask)});
}

}  // namespace
}  // namespace quire::testing

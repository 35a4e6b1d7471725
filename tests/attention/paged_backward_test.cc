// flex_attention_backward over paged keys and over the pool of a PagedAttention: the bits of dense
// calls, rows without a user, pages that move, errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "quire/flex_attention_backward.h"
#include "quire/mods.h"
#include "quire/paged_attention.h"
#include "tests/support/expect_error.h"
#include "tests/support/paged_pool.h"
#include "tests/support/random_tensor.h"
#include "tests/support/same_bits.h"

namespace quire {
namespace {

using testing::expect_error;
using testing::PagedPool;
using testing::random_tensor;
using testing::same_bits;

const std::vector<std::int64_t> kLengths{130, 0, 1, 400};

// Dense keys of all sequences, the same in pages, and a loss.
struct Case {
  Case(DType dtype, std::int64_t q_len, std::int64_t page_size, bool flat = false)
      : q(random_tensor({4, 4, q_len, 8}, dtype, 1)),
        k(random_tensor({4, 2, 400, 8}, dtype, 2)),
        v(random_tensor({4, 2, 400, 5}, dtype, 3)),
        d_out(random_tensor({4, 4, q_len, 5}, dtype, 4)),
        pool(k, v, kLengths, {.page_size = page_size, .flat = flat, .seed = 9}) {}

  PagedBackwardInputs inputs(const AttentionOptions& options) {
    AttentionOptions forward = options;
    AuxOutput aux;
    forward.return_aux = {.lse = true};
    forward.aux = &aux;
    out = flex_attention(q, pool.keys(), forward);
    lse = *aux.lse;
    return {.q = q, .keys = pool.keys(), .out = out, .lse = lse, .d_out = d_out};
  }

  Tensor q, k, v, d_out;
  PagedPool pool;
  Tensor out, lse;
};

// [pages, heads, page_size, dim] gradients as rows of sequence b: [1, heads, length, dim].
Tensor rows_of(const PagedPool& pool, const Tensor& pages, std::int64_t b) {
  const Tensor table = pool.page_table.to(DType::i64), values = pages.to(DType::f64);
  const std::int64_t length = kLengths[static_cast<std::size_t>(b)];
  Tensor rows({1, pages.dim(1), length, pages.dim(3)}, DType::f64);
  for (std::int64_t h = 0; h < pages.dim(1); ++h)
    for (std::int64_t key = 0; key < length; ++key)
      for (std::int64_t d = 0; d < pages.dim(3); ++d)
        rows.at<double>({0, h, key, d}) = values.at<double>(
            {table.at<std::int64_t>({b, key / pool.page_size}), h, key % pool.page_size, d});
  return rows.to(pages.dtype());
}

std::int64_t nonzero(const Tensor& tensor) {
  const Tensor values = tensor.to(DType::f64);
  return std::count_if(values.data_as<double>(), values.data_as<double>() + values.numel(),
                       [](double x) { return x != 0; });
}

TEST(PagedBackward, HasTheBitsOfDenseCalls) {
  const Buffer slopes(random_tensor({4}, DType::f32, 5),
                      {.name = "slopes", .wants_gradient = true});
  const ScoreMod biased =
      ScoreMod::parse("score + slopes[h] * (kv_idx - q_idx)", {{"slopes", slopes}});
  const MaskMod rule = MaskMod::parse("kv_idx % 7 != 3");
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t page_size : {1, 5, 16, 128}) {
      for (const bool modified : {false, true}) {
        Case c(dtype, 9, page_size, page_size == 5);
        AttentionOptions options{.enable_gqa = true};
        if (modified) {
          options.score_mod = biased;
          options.mask_mod = rule;
        }
        const PagedBackwardInputs inputs = c.inputs(options);
        const AttentionGradients got = flex_attention_backward(inputs, {.forward = options});
        ASSERT_EQ(got.k->shape(), inputs.keys.k.shape());
        std::int64_t k_nonzero = 0, v_nonzero = 0;
        for (std::int64_t b = 0; b < 4; ++b) {
          const auto entry = [&](const ConstTensorView& t) { return t.slice(0, b, b + 1); };
          const std::int64_t length = kLengths[static_cast<std::size_t>(b)];
          AttentionOptions alone = options;
          if (modified) alone.block_mask = create_block_mask(rule, 1, 1, 9, length);
          alone.mask_mod = {};
          const AttentionGradients want =
              flex_attention_backward({.q = entry(c.q),
                                       .k = entry(c.k).slice(2, 0, length),
                                       .v = entry(c.v).slice(2, 0, length),
                                       .out = entry(c.out),
                                       .lse = entry(c.lse),
                                       .d_out = entry(c.d_out)},
                                      {.forward = alone});
          EXPECT_TRUE(same_bits(entry(*got.q), *want.q)) << page_size << " " << b;
          EXPECT_TRUE(same_bits(rows_of(c.pool, *got.k, b), *want.k)) << page_size << " " << b;
          EXPECT_TRUE(same_bits(rows_of(c.pool, *got.v, b), *want.v)) << page_size << " " << b;
          k_nonzero += nonzero(*want.k);
          v_nonzero += nonzero(*want.v);
        }
        EXPECT_EQ(nonzero(*got.k), k_nonzero);  // and 0 everywhere else
        EXPECT_EQ(nonzero(*got.v), v_nonzero);
        if (modified) {
          EXPECT_GT(nonzero(got.of("slopes")), 0);
        }
      }
    }
  }
}

TEST(PagedBackward, APlanWritesToAnyStridesAndStartsAgain) {
  Case c(DType::f32, 3, 16);
  const AttentionOptions options{
      .mask_mod = mods::causal(), .enable_gqa = true, .q_begin = {127, 0, 0, 397}};
  const PagedBackwardInputs inputs = c.inputs(options);
  const AttentionGradients want = flex_attention_backward(inputs, {.forward = options});
  AttentionBackwardPlan plan(
      AttentionProblem::paged(inputs.q, inputs.keys, options, "flex_attention_backward"),
      {.q = false, .buffers = false});
  const Shape shape = inputs.keys.k.shape();
  Tensor k({shape[3], shape[0], shape[2], shape[1]}, DType::f32);
  std::fill_n(k.data_as<float>(), k.numel(), NAN);
  Tensor v(inputs.keys.v.shape(), DType::f32);
  const TensorView d_k = k.view().permute({1, 3, 2, 0});
  for (int i = 0; i < 2; ++i) {
    plan.run({.q = inputs.q,
              .k = inputs.keys.k,
              .v = inputs.keys.v,
              .out = inputs.out,
              .lse = inputs.lse,
              .d_out = inputs.d_out},
             {.k = d_k, .v = v.view()});
    EXPECT_TRUE(same_bits(d_k, *want.k));
    EXPECT_TRUE(same_bits(v, *want.v));
  }
}

TEST(PagedBackward, ABlockMaskMayBeLongerThanTheSequences) {
  Case c(DType::f32, 70, 16);
  const MaskMod rule = MaskMod::parse("kv_idx <= 4 * q_idx");
  const AttentionOptions proved{.mask_mod = rule, .enable_gqa = true},
      given{.block_mask = create_block_mask(rule, 1, 1, 70, 500), .enable_gqa = true};
  const PagedBackwardInputs inputs = c.inputs(proved);
  const AttentionGradients want = flex_attention_backward(inputs, {.forward = proved}),
                           got = flex_attention_backward(inputs, {.forward = given});
  EXPECT_TRUE(same_bits(*got.q, *want.q));
  EXPECT_TRUE(same_bits(*got.k, *want.k));
  EXPECT_TRUE(same_bits(*got.v, *want.v));
}

TEST(PagedBackward, ErrorsNameTheFunctionAndChangeNothing) {
  Case c(DType::f32, 3, 16);
  const AttentionOptions options{.enable_gqa = true};
  PagedBackwardInputs inputs = c.inputs(options);
  inputs.keys.lengths = Tensor::from<std::int64_t>({1, 2}, {2});
  expect_error(
      ErrorKind::value,
      "[flex_attention_backward] 4 sequences need as many page table rows and lengths; got "
      "4 and 2",
      [&] { flex_attention_backward(inputs, {.forward = options}); });
  inputs = c.inputs(options);
  inputs.lse = c.q;
  EXPECT_THROW(flex_attention_backward(inputs, {.forward = options}), Error);
}

// Sequences in the pool of a PagedAttention.
struct ConvertedCase {
  ConvertedCase() : paged(40, 4, 2), q(random_tensor({2, 2, 5, 8}, DType::f32, 1)) {
    std::shuffle(paged.empty_pages().begin(), paged.empty_pages().end(), std::mt19937(3));
    k = random_tensor({2, 2, 60, 8}, DType::f32, 2);
    v = random_tensor({2, 2, 60, 5}, DType::f32, 3);
    k_cache = Tensor({1, 2, 160, 8}, DType::f32);
    v_cache = Tensor({1, 2, 160, 5}, DType::f32);
    std::fill_n(k_cache.data_as<float>(), k_cache.numel(), NAN);
    std::fill_n(v_cache.data_as<float>(), v_cache.numel(), NAN);
    d_out = random_tensor({2, 2, 5, 5}, DType::f32, 4);
    paged.reserve(0, 60);
    paged.reserve(1, 19);
    write(k, v, k_cache, v_cache);
    const BlockMask logical = create_block_mask(noop_mask(), 2, 1, 5, 60, {.block_size = {8, 4}});
    options.block_mask = paged.convert_logical_block_mask(logical, {.kv_len = lengths});
    options.score_mod = paged.get_score_mod(ScoreMod::parse("score - 0.1 * kv_idx"));
    rule.block_mask =
        create_block_mask(MaskMod::parse("kv_idx < len[b]", {{"len", lengths}}), 2, 1, 5, 60);
    rule.score_mod = ScoreMod::parse("score - 0.1 * kv_idx");
  }

  // Rows of sequences to their pages.
  void write(const Tensor& k_rows, const Tensor& v_rows, Tensor& k_to, Tensor& v_to) {
    for (std::int64_t b = 0; b < 2; ++b) {
      const std::int64_t length = b == 0 ? 60 : 19;
      Tensor positions({1, length}, DType::i64);
      for (std::int64_t i = 0; i < length; ++i) positions.data_as<std::int64_t>()[i] = i;
      const Tensor at = Tensor::from<std::int64_t>({b});
      paged.assign({at, positions, k_rows.view().slice(0, b, b + 1).slice(2, 0, length),
                    v_rows.view().slice(0, b, b + 1).slice(2, 0, length), k_to.view(),
                    v_to.view()});
    }
  }

  // Gradients over the dense keys, those of keys and values in their pages.
  AttentionGradients dense() {
    AuxOutput aux;
    AttentionOptions forward = rule;
    forward.return_aux = {.lse = true};
    forward.aux = &aux;
    out = flex_attention(q, k, v, forward);
    lse = *aux.lse;
    AttentionGradients found = flex_attention_backward(
        {.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out}, {.forward = rule});
    Tensor d_k(k_cache.shape(), DType::f32), d_v(v_cache.shape(), DType::f32);
    write(*found.k, *found.v, d_k, d_v);
    found.k = d_k;
    found.v = d_v;
    return found;
  }

  BackwardInputs inputs() const {
    return {.q = q, .k = k_cache, .v = v_cache, .out = out, .lse = lse, .d_out = d_out};
  }

  PagedAttention paged;
  Buffer lengths{std::vector<std::int64_t>{60, 19}, {.name = "kv_len"}};
  AttentionOptions options, rule;  // over the pool, over dense keys
  Tensor q, k, v, k_cache, v_cache, d_out, out, lse;
};

TEST(PagedBackward, AConvertedMaskWalksThePagesOfItsSequences) {
  ConvertedCase c;
  const AttentionGradients want = c.dense();
  const AttentionGradients got = flex_attention_backward(c.inputs(), {.forward = c.options});
  EXPECT_TRUE(same_bits(*got.q, *want.q));
  EXPECT_TRUE(same_bits(*got.k, *want.k));
  EXPECT_TRUE(same_bits(*got.v, *want.v));
}

TEST(PagedBackward, APlanFollowsPagesThatMove) {
  ConvertedCase c;
  AttentionBackwardPlan plan(AttentionShape::of(c.q, c.k_cache, c.v_cache), {.forward = c.options});
  // Two pages of sequence 0 change places: the same keys in another order.
  TensorView table = c.paged.physical_to_logical(), pages = c.paged.page_table();
  auto &one = pages.at<std::int64_t>({0, 1}), &other = pages.at<std::int64_t>({0, 3});
  std::swap(table.at<std::int64_t>({0, one}), table.at<std::int64_t>({0, other}));
  std::swap(one, other);
  for (Tensor* keys : {&c.k, &c.v}) {
    for (std::int64_t h = 0; h < 2; ++h) {
      float* const head = keys->data_as<float>() + h * 60 * keys->dim(3);
      std::swap_ranges(head + 4 * keys->dim(3), head + 8 * keys->dim(3), head + 12 * keys->dim(3));
    }
  }
  const AttentionGradients want = c.dense();
  Tensor q(c.q.shape(), DType::f32), k(c.k_cache.shape(), DType::f32),
      v(c.v_cache.shape(), DType::f32);
  plan.run(c.inputs(), {.q = q.view(), .k = k.view(), .v = v.view()});
  EXPECT_TRUE(same_bits(q, *want.q));
  EXPECT_TRUE(same_bits(k, *want.k));
  EXPECT_TRUE(same_bits(v, *want.v));
}

}  // namespace
}  // namespace quire

// key_indices: the bits of the same call with a mask that shows the listed keys, over dense,
// jagged, paged and cached keys, for any lists, mods, masks and dtypes; gradients likewise; and the
// f64 reference. Keys that nobody lists hold NaN here: they are never read.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "quire/attend.h"
#include "quire/flex_attention_backward.h"
#include "quire/isa.h"
#include "quire/mods.h"
#include "quire/paged.h"
#include "reference/attention.h"
#include "tests/mask/expect_blocks.h"
#include "tests/support/attend_case.h"
#include "tests/support/attention_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/jagged_case.h"
#include "tests/support/paged_pool.h"
#include "tests/support/property.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

constexpr int kCases = 60;  // of each test; make check-all runs many more

std::int64_t longest_of_isa() { return kernels_are_slow() ? 150 : 1500; }

// Random lists, some of them empty, in any order, with -1 anywhere, and the same as bools. In some
// calls most lists are nearly those of the row before.
struct Lists {
  Tensor indices;  // [rows..., k]
  Tensor shown;    // bool [rows, keys]

  Lists(Shape rows, std::int64_t keys, DType dtype, std::mt19937_64& random) {
    const std::int64_t count = element_count(rows);
    const std::int64_t most =
        chance(random, 20) ? keys : std::min<std::int64_t>(keys, 1 + below(random, 40));
    const std::int64_t k = most + below(random, 3);
    rows.push_back(k);
    indices = Tensor(rows, DType::i32);
    shown = Tensor({count, std::max<std::int64_t>(keys, 1)}, DType::boolean);
    std::vector<std::int32_t> all(static_cast<std::size_t>(keys));
    std::iota(all.begin(), all.end(), 0);
    const bool alike = chance(random, 40);
    for (std::int64_t row = 0; row < count; ++row) {
      std::int32_t* const list = indices.data_as<std::int32_t>() + row * k;
      std::fill_n(list, k, -1);
      if (chance(random, 10)) continue;
      if (alike && row > 0 && keys > 0 && chance(random, 85))
        std::swap(all[static_cast<std::size_t>(below(random, keys))], all.front());
      else
        std::ranges::shuffle(all, random);
      const std::int64_t listed = below(random, most + 1);
      for (std::int64_t i = 0; i < listed; ++i) {
        list[i] = all[static_cast<std::size_t>(i)];
        shown.data_as<bool>()[row * keys + list[i]] = true;
      }
      if (chance(random, 40)) std::sort(list, list + listed);
      if (chance(random, 50)) std::shuffle(list, list + k, random);
    }
    indices = indices.to(dtype);
  }
};

DType random_dtype(std::mt19937_64& random) {
  constexpr DType kTypes[] = {DType::f32, DType::f32, DType::bf16, DType::f16, DType::f64};
  return kTypes[below(random, std::ssize(kTypes))];
}

DType random_index_dtype(std::mt19937_64& random) {
  return chance(random, 70) ? DType::i32 : DType::i64;
}

std::optional<ScoreMod> random_score_mod(std::mt19937_64& random) {
  if (chance(random, 60)) return std::nullopt;
  return ScoreMod::parse("score * (1 + 0.1 * b) - 0.01 * h * (q_idx - kv_idx)");
}

// "shown and rule".
MaskMod with_rule(const Tensor& shown, const std::string& text,
                  const std::optional<MaskMod>& rule) {
  const MaskMod listed = MaskMod::parse(text, {{"shown", Buffer(shown)}});
  return rule.has_value() ? and_masks(listed, *rule) : listed;
}

void spoil_unlisted(Tensor& rows, const Lists& lists, std::int64_t b, std::int64_t batch) {
  const std::int64_t keys = rows.dim(2), of_entry = lists.shown.dim(0) / batch;
  for (std::int64_t key = 0; key < keys; ++key) {
    bool listed = false;
    for (std::int64_t row = b * of_entry; row < (b + 1) * of_entry; ++row)
      listed |= lists.shown.data_as<bool>()[row * keys + key];
    if (listed) continue;
    for (std::int64_t h = 0; h < rows.dim(1); ++h)
      for (std::int64_t d = 0; d < rows.dim(3); ++d)
        rows.at<double>({b, h, key, d}) = std::numeric_limits<double>::quiet_NaN();
  }
}

struct DenseCase {
  AttentionCase c;
  bool by_head;
  std::optional<MaskMod> rule;

  explicit DenseCase(std::mt19937_64& random, DType dtype) {
    c.batch = 1 + below(random, 2);
    c.kv_heads = 1 + below(random, 2);
    c.q_heads = c.kv_heads * (chance(random, 15) ? 9 : 1 + below(random, 3));
    c.q_len = chance(random, 30) ? 1 : 1 + below(random, 150);
    c.kv_len = 1 + below(random, chance(random, 50) ? 90 : longest_of_isa());
    c.head_dim = 1 + below(random, 40);
    c.v_head_dim = 1 + below(random, 40);
    c.q_dtype = c.k_dtype = c.v_dtype = dtype;
    c.q_begin = chance(random, 50) ? 0 : below(random, 60);
    c.score_mod = random_score_mod(random);
    by_head = chance(random, 40);
    if (chance(random, 50))
      rule = random_mask_mod(random, {c.batch, c.q_heads, c.q_begin + c.q_len, c.kv_len},
                             /*floats=*/false);
  }
  Shape rows() const {
    return by_head ? Shape{c.batch, c.q_heads, c.q_len} : Shape{c.batch, c.q_len};
  }
  // The lists as a rule of (b, h, q_idx, kv_idx), and what the call has beside.
  MaskMod as_mask(const Lists& lists) const {
    const Shape four = by_head ? Shape{c.batch, c.q_heads, c.q_len, c.kv_len}
                               : Shape{c.batch, 1, c.q_len, c.kv_len};
    const Tensor shown = contiguous(lists.shown.view().reshape(four));
    const std::string h = by_head ? "h" : "0";
    return with_rule(
        shown, "shown[b, " + h + ", q_idx - " + std::to_string(c.q_begin) + ", kv_idx]", rule);
  }
};

TEST(KeyIndices, AreTheMaskThatShowsThem) {
  for (int seed = 1; seed <= property_runs(kCases); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const DenseCase dense(random, random_dtype(random));
    AttentionCase c = dense.c;
    const Lists lists(dense.rows(), c.kv_len, random_index_dtype(random), random);
    Tensor q = random_normal({c.batch, c.q_heads, c.q_len, c.head_dim}, c.q_dtype, random);
    Tensor k = random_normal({c.batch, c.kv_heads, c.kv_len, c.head_dim}, DType::f64, random);
    Tensor v = random_normal({c.batch, c.kv_heads, c.kv_len, c.v_head_dim}, DType::f64, random);
    for (std::int64_t b = 0; b < c.batch; ++b) {
      spoil_unlisted(k, lists, b, c.batch);
      spoil_unlisted(v, lists, b, c.batch);
    }
    k = k.to(c.k_dtype);
    v = v.to(c.v_dtype);
    AuxOutput aux, expected_aux;
    FlexAttentionOptions options{.score_mod = c.score_mod,
                                 .enable_gqa = true,
                                 .q_begin = {c.q_begin},
                                 .return_aux = {.lse = true, .max_scores = true},
                                 .aux = &aux};
    if (chance(random, 20)) {
      options.dropout_p = 0.3;
      options.seed = static_cast<std::uint64_t>(seed);
    }
    if (chance(random, 20)) options.sinks = Buffer(random_normal({c.q_heads}, DType::f32, random));
    FlexAttentionOptions masked = options;
    masked.aux = &expected_aux;
    options.mask_mod = dense.rule;
    options.key_indices = lists.indices;
    masked.mask_mod = dense.as_mask(lists);
    Tensor strided;
    const ConstTensorView k_view =
        in_order(k, chance(random, 30) ? Order::kDimOutside : Order::kHeadsInside, strided);
    // Values may be the first columns of the keys.
    const bool latent = c.v_head_dim <= c.head_dim && chance(random, 30);
    const ConstTensorView v_view =
        latent ? k_view.slice(3, 0, c.v_head_dim) : std::as_const(v).view();
    const Tensor out = flex_attention(q, k_view, v_view, options);
    const Tensor expected =
        flex_attention(q, k, latent ? contiguous(v_view) : contiguous(v.view()), masked);
    ASSERT_TRUE(same_bits(out, expected));
    ASSERT_TRUE(same_bits(*aux.lse, *expected_aux.lse));
    ASSERT_TRUE(same_bits(*aux.max_scores, *expected_aux.max_scores));
  }
}

TEST(KeyIndices, AreTheReferences) {
  for (int seed = 1; seed <= property_runs(kCases); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    DenseCase dense(random, DType::f64);
    dense.c.mask_mod = dense.rule;
    dense.c.kv_len = std::min<std::int64_t>(dense.c.kv_len, 90);
    dense.c.q_len = std::min<std::int64_t>(dense.c.q_len, 70);
    const AttentionCase& c = dense.c;
    const Lists lists(dense.rows(), c.kv_len, DType::i32, random);
    const AttentionTensors t(c, static_cast<std::uint64_t>(seed));
    FlexAttentionOptions options = c.options();
    AuxOutput aux;
    options.return_aux = {.lse = true};
    options.aux = &aux;
    options.key_indices = lists.indices;
    const Tensor out = flex_attention(t.q, t.k, t.v, options);
    const reference::AttentionOutput exact =
        reference::attention({t.q, t.k, t.v}, {.score_mod = c.score_mod,
                                               .mask_mod = c.mask_mod,
                                               .q_begin = {c.q_begin},
                                               .key_indices = lists.indices});
    ASSERT_TRUE(largest_error(out, exact.out) < 1e-11);
    ASSERT_TRUE(largest_error(*aux.lse, exact.lse) < 1e-11);
  }
}

TEST(KeyIndices, HaveTheGradientsOfTheMask) {
  for (int seed = 1; seed <= property_runs(kCases); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    DenseCase dense(random, chance(random, 50) ? DType::f64 : DType::f32);
    dense.c.kv_len = std::min<std::int64_t>(dense.c.kv_len, 500);
    const AttentionCase& c = dense.c;
    const Lists lists(dense.rows(), c.kv_len, DType::i32, random);
    const AttentionTensors t(c, static_cast<std::uint64_t>(seed));
    AuxOutput aux;
    FlexAttentionOptions options{.score_mod = c.score_mod,
                                 .mask_mod = dense.rule,
                                 .enable_gqa = true,
                                 .q_begin = {c.q_begin},
                                 .key_indices = lists.indices,
                                 .return_aux = {.lse = true},
                                 .aux = &aux};
    const Tensor out = flex_attention(t.q, t.k, t.v, options);
    const Tensor d_out = random_normal(out.shape(), out.dtype(), random);
    const BackwardInputs inputs{
        .q = t.q, .k = t.k, .v = t.v, .out = out, .lse = *aux.lse, .d_out = d_out};
    FlexAttentionOptions masked = options;
    masked.mask_mod = dense.as_mask(lists);
    masked.key_indices.reset();
    const AttentionGradients ours = flex_attention_backward(inputs, {.forward = options});
    const AttentionGradients expected = flex_attention_backward(inputs, {.forward = masked});
    ASSERT_TRUE(same_bits(*ours.q, *expected.q));
    ASSERT_TRUE(same_bits(*ours.k, *expected.k));
    ASSERT_TRUE(same_bits(*ours.v, *expected.v));
  }
}

// Sequences in pages and in one jagged batch against each alone.
TEST(KeyIndices, OfPagesAndJaggedBatchesAreThoseOfEachSequence) {
  for (int seed = 1; seed <= property_runs(kCases); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const std::int64_t count = 1 + below(random, 3), kv_heads = 1 + below(random, 2);
    const std::int64_t q_heads = kv_heads * (1 + below(random, 3));
    const std::int64_t q_len = chance(random, 40) ? 1 : 1 + below(random, 60);
    const DType dtype = random_dtype(random);
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = 0; i < count; ++i)
      lengths.push_back(1 + below(random, longest_of_isa() / 2));
    const std::int64_t most = *std::ranges::max_element(lengths);
    const Tensor q = random_normal({count, q_heads, q_len, 24}, dtype, random);
    const Tensor k = random_normal({count, kv_heads, most, 24}, dtype, random);
    const Tensor v = random_normal({count, kv_heads, most, 16}, dtype, random);
    const bool by_head = chance(random, 40);
    const std::int64_t least = *std::ranges::min_element(lengths);
    const Lists lists(by_head ? Shape{count, q_heads, q_len} : Shape{count, q_len}, least,
                      DType::i32, random);
    const std::optional<MaskMod> rule =
        chance(random, 50) ? std::optional(MaskMod::parse("(q_idx + kv_idx + b) % 3 != 0"))
                           : std::nullopt;
    FlexAttentionOptions options{
        .mask_mod = rule, .enable_gqa = true, .key_indices = lists.indices};
    const PagedPool pool(
        k, v, lengths,
        {.page_size = 1 + below(random, 40), .seed = static_cast<std::uint64_t>(seed)});
    const Tensor paged = flex_attention(q, pool.keys(), options);

    // Jagged: [tokens, heads, dim], lists [tokens, k] or [tokens, heads, k].
    const auto tokens_first = [](const Tensor& x) {
      return contiguous(x.view().permute({0, 2, 1, 3}));
    };
    const Tensor jagged_q = tokens_first(q), jagged_k = tokens_first(k), jagged_v = tokens_first(v);
    Tensor q_offsets({count + 1}, DType::i64), kv_offsets({count + 1}, DType::i64);
    Tensor kv_lengths({count}, DType::i64);
    for (std::int64_t i = 0; i <= count; ++i) {
      q_offsets.data_as<std::int64_t>()[i] = i * q_len;
      kv_offsets.data_as<std::int64_t>()[i] = i * most;
      if (i < count) kv_lengths.data_as<std::int64_t>()[i] = lengths[static_cast<std::size_t>(i)];
    }
    const auto packed = [](const Tensor& x) {
      return x.view().reshape({x.dim(0) * x.dim(1), x.dim(2), x.dim(3)});
    };
    Tensor indices = lists.indices;
    const std::int64_t width = indices.dim(indices.rank() - 1);
    if (by_head) indices = contiguous(indices.view().permute({0, 2, 1, 3}));
    const ConstTensorView packed_indices =
        by_head ? std::as_const(indices).view().reshape({count * q_len, q_heads, width})
                : std::as_const(indices).view().reshape({count * q_len, width});
    FlexAttentionOptions jagged_options = options;
    jagged_options.key_indices = packed_indices;
    const Tensor jagged = flex_attention(
        Jagged{.values = packed(jagged_q), .offsets = q_offsets},
        Jagged{.values = packed(jagged_k), .offsets = kv_offsets, .lengths = kv_lengths},
        Jagged{.values = packed(jagged_v), .offsets = kv_offsets, .lengths = kv_lengths},
        jagged_options);
    for (std::int64_t b = 0; b < count; ++b) {
      const auto one = [&](const Tensor& x, std::int64_t n) {
        return x.view().slice(0, b, b + 1).slice(2, 0, n);
      };
      FlexAttentionOptions alone{.enable_gqa = true};
      if (rule.has_value())
        alone.mask_mod = MaskMod::parse("(q_idx + kv_idx + " + std::to_string(b) + ") % 3 != 0");
      alone.key_indices = lists.indices.view().slice(0, b, b + 1);
      const std::int64_t length = lengths[static_cast<std::size_t>(b)];
      const Tensor expected = flex_attention(one(q, q_len), one(k, length), one(v, length), alone);
      ASSERT_TRUE(same_bits(paged.view().slice(0, b, b + 1), expected));
      const ConstTensorView rows = jagged.view().slice(0, b * q_len, (b + 1) * q_len);
      ASSERT_TRUE(same_bits(rows.permute({1, 0, 2}).unsqueeze(0), expected));
    }
  }
}

TEST(KeyIndices, OfAStepArePositionsOfTheSequence) {
  std::mt19937_64 random(5);
  AttendHarness harness(
      {.kv_heads = 2, .head_dim = 32, .v_head_dim = 32, .page_size = 16, .n_pages = 200});
  for (const std::int64_t tokens : {1, 3, 40}) {
    const SequenceId a = harness.create(700), b = harness.create(90);
    const std::vector<NewTokens> step{{a, tokens}, {b, 1}};
    const Tensor q = random_normal({tokens + 1, 4, 32}, DType::f32, random);
    const Lists lists({tokens + 1}, 60, DType::i32, random);
    AttendOptions options{.key_indices = lists.indices};
    const Tensor out = attend(harness.cache, 0, step, q, options);
    for (int i = 0; i < 2; ++i) {
      const SequenceId sequence = i == 0 ? a : b;
      const std::int64_t first = i == 0 ? 0 : tokens, count = i == 0 ? tokens : 1;
      const Tensor k = harness.dense(harness.cache.k_pages(0), sequence);
      const Tensor v = harness.dense(harness.cache.v_pages(0), sequence);
      FlexAttentionOptions alone{.mask_mod = MaskMod::parse("q_idx >= kv_idx"),
                                 .enable_gqa = true,
                                 .q_begin = {k.dim(2) - count}};
      alone.key_indices = lists.indices.view().slice(0, first, first + count).unsqueeze(0);
      const ConstTensorView rows = q.view().slice(0, first, first + count);
      const Tensor expected = flex_attention(rows.permute({1, 0, 2}).unsqueeze(0), k, v, alone);
      const ConstTensorView found = out.view().slice(0, first, first + count);
      EXPECT_TRUE(same_bits(found.permute({1, 0, 2}).unsqueeze(0), expected)) << i << " " << tokens;
    }
  }
}

TEST(KeyIndices, ThatAreWrongAreNamedBeforeAnythingRuns) {
  const Tensor x = random_tensor({2, 3, 4, 8}, DType::f32, 1);
  const auto refuse = [&](const Tensor& indices, ErrorKind kind, const std::string& text) {
    FlexAttentionOptions options{.key_indices = indices};
    expect_error(kind, "[flex_attention] " + text, [&] { flex_attention(x, x, x, options); });
  };
  Tensor shared({2, 4, 2}, DType::i32);
  for (std::int64_t i = 0; i < shared.numel(); ++i)
    shared.data_as<std::int32_t>()[i] = static_cast<std::int32_t>(i % 2);
  Tensor wrong = shared.to(DType::i32);
  wrong.at<std::int32_t>({1, 2, 1}) = 4;
  refuse(wrong, ErrorKind::value,
         "key_indices of batch entry 1, query 2 list key 4 at place 1; there are 4 keys, and -1 "
         "stands for none");
  wrong.at<std::int32_t>({1, 2, 1}) = -2;
  refuse(wrong, ErrorKind::value,
         "key_indices of batch entry 1, query 2 list key -2 at place 1; there are 4 keys, and -1 "
         "stands for none");
  wrong.at<std::int32_t>({1, 2, 1}) = 0;
  refuse(wrong, ErrorKind::value, "key_indices of batch entry 1, query 2 list key 0 twice");
  Tensor by_head({2, 3, 4, 1}, DType::i64);
  by_head.at<std::int64_t>({0, 2, 3, 0}) = 9;
  refuse(by_head, ErrorKind::value,
         "key_indices of batch entry 0, head 2, query 3 list key 9 at place 0; there are 4 keys, "
         "and -1 stands for none");
  refuse(shared.to(DType::f32), ErrorKind::type, "key_indices must be i32 or i64; got f32");
  refuse(Tensor({2, 3, 1}, DType::i32), ErrorKind::value,
         "key_indices must be [2, 4, k], or [2, 3, 4, k] for each head; got [2, 3, 1]");
}

}  // namespace
}  // namespace quire::testing

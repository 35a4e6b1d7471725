// BackwardPlan over keys that do not lie dense: the bits of dense calls where no row has two users,
// the f64 reference and finite differences where pages are shared, threads, rows without a user.
#include "plan/backward_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "layout/paged_layout.h"
#include "mask/sequence_masks.h"
#include "plan/forward_plan.h"
#include "quire/flex_attention_backward.h"
#include "quire/mods.h"
#include "reference/attention.h"
#include "tests/support/attention_backward.h"
#include "tests/support/backward_case.h"
#include "tests/support/random_tensor.h"
#include "tests/support/same_bits.h"
#include "tests/support/scattered_layout.h"
#include "tests/support/slow_cpu.h"

namespace quire::plan {
namespace {

using testing::random_tensor;
using testing::same_bits;

struct PagedProblem {
  std::int64_t page_size = 4, pool = 8;
  std::vector<std::vector<std::int64_t>> tables = {};  // of each sequence
  std::vector<std::int64_t> lengths = {};
  std::int64_t q_heads = 4, kv_heads = 2, q_len = 5, head_dim = 8, v_head_dim = 12;
  DType dtype = DType::f32;
  std::optional<ScoreMod> score_mod = {};
  std::optional<MaskMod> mask_mod = {};

  std::int64_t batch() const { return std::ssize(lengths); }
  // [page, row] of a key.
  std::pair<std::int64_t, std::int64_t> place(std::int64_t b, std::int64_t key) const {
    return {tables[static_cast<std::size_t>(b)][static_cast<std::size_t>(key / page_size)],
            key % page_size};
  }
};

// Tensors of a problem and what a backward pass gives for them. Rows without a user are NaN in the
// pools, and in the gradients before the pass.
struct PagedRun {
  Tensor q, k, v, out, lse, d_out, d_lse;
  Tensor d_q, d_k, d_v;
  std::vector<Tensor> d_buffers;

  explicit PagedRun(const PagedProblem& p, std::uint64_t seed = 3) {
    std::mt19937_64 random(seed);
    q = random_tensor({p.batch(), p.q_heads, p.q_len, p.head_dim}, p.dtype, random);
    k = pool_of(p, p.head_dim, random);
    v = pool_of(p, p.v_head_dim, random);
    out = Tensor({p.batch(), p.q_heads, p.q_len, p.v_head_dim}, p.dtype);
    lse = Tensor({p.batch(), p.q_heads, p.q_len}, compute(p));
    d_out = random_tensor(out.shape(), p.dtype, random);
    d_lse = random_tensor(lse.shape(), compute(p), random);
    forward(p);
  }

  static DType compute(const PagedProblem& p) {
    return p.dtype == DType::f64 ? DType::f64 : DType::f32;
  }

  static Tensor pool_of(const PagedProblem& p, std::int64_t dim, std::mt19937_64& random) {
    const Tensor values = random_tensor({p.pool, p.kv_heads, p.page_size, dim}, DType::f64, random);
    Tensor pool(values.shape(), DType::f64);
    std::fill_n(pool.data_as<double>(), pool.numel(), std::numeric_limits<double>::quiet_NaN());
    for (std::int64_t b = 0; b < p.batch(); ++b) {
      for (std::int64_t key = 0; key < p.lengths[static_cast<std::size_t>(b)]; ++key) {
        const auto [page, row] = p.place(b, key);
        for (std::int64_t h = 0; h < p.kv_heads && page >= 0; ++h)
          for (std::int64_t d = 0; d < dim; ++d)
            pool.at<double>({page, h, row, d}) = values.at<double>({page, h, row, d});
      }
    }
    return pool.to(p.dtype);
  }

  static AttentionProblem problem(const PagedProblem& p, Executor* executor = nullptr) {
    std::vector<std::int64_t> pages;
    for (std::size_t b = 0; b < p.lengths.size(); ++b)
      for (std::int64_t i = 0; i * p.page_size < p.lengths[b]; ++i)
        pages.push_back(p.tables[b][static_cast<std::size_t>(i)]);
    AttentionProblem made{
        {.batch = p.batch(),
         .q_heads = p.q_heads,
         .q_len = p.q_len,
         .head_dim = p.head_dim,
         .kv_batch = p.batch(),
         .kv_heads = p.kv_heads,
         .kv_len = std::ranges::max(p.lengths),
         .v_head_dim = p.v_head_dim,
         .q_dtype = p.dtype,
         .k_dtype = p.dtype,
         .v_dtype = p.dtype},
        {.score_mod = p.score_mod, .scale = 0.25, .enable_gqa = true, .executor = executor}};
    made.layout = std::make_shared<layout::PagedLayout>(p.page_size, pages, p.lengths);
    if (p.mask_mod) {
      const std::vector<std::int64_t> q(p.lengths.size(), p.q_len), begin(p.lengths.size(), 0);
      mask::SequenceMasks masks = mask::create_sequence_masks(
          "test", *p.mask_mod, p.q_heads, {.q = q, .kv = p.lengths, .q_begin = begin}, {});
      made.block_mask =
          JaggedBlockMask(*p.mask_mod, std::move(masks.masks), std::move(masks.which));
    }
    return made;
  }

  void forward(const PagedProblem& p) {
    ForwardPlan plan{ForwardRequest(problem(p))};
    plan.run({.q = q, .k = k, .v = v, .out = out.view(), .lse = lse.data()});
  }

  void backward(const PagedProblem& p, Executor* executor = nullptr) {
    std::vector<Buffer> buffers;
    if (p.score_mod)
      for (const Buffer& buffer : p.score_mod->formula().buffers())
        if (buffer.wants_gradient()) buffers.push_back(buffer);
    BackwardPlan plan({problem(p, executor), {}, std::move(buffers)});
    const auto garbage = [&](const Shape& shape) {
      Tensor t(shape, DType::f64);
      std::fill_n(t.data_as<double>(), t.numel(), std::numeric_limits<double>::quiet_NaN());
      return t.to(p.dtype);
    };
    d_q = garbage(q.shape());
    d_k = garbage(k.shape());
    d_v = garbage(v.shape());
    d_buffers.clear();
    std::vector<TensorView> views;
    for (const Buffer& buffer : plan.buffers())
      d_buffers.emplace_back(buffer.shape(), buffer.dtype());
    for (Tensor& tensor : d_buffers) views.push_back(tensor.view());
    for (int i = 0; i < 2; ++i) {  // twice: a plan starts again from 0
      plan.run({.q = q,
                .k = k,
                .v = v,
                .out = out,
                .lse = lse,
                .d_out = d_out,
                .d_lse = d_lse,
                .d_q = d_q.view(),
                .d_k = d_k.view(),
                .d_v = d_v.view(),
                .d_buffers = views});
    }
  }
};

// The keys of sequence b, dense: [1, heads, length, dim].
Tensor keys_of(const PagedProblem& p, const Tensor& pool, std::int64_t b) {
  const std::int64_t length = p.lengths[static_cast<std::size_t>(b)], dim = pool.dim(3);
  const Tensor values = pool.to(DType::f64);
  Tensor keys({1, p.kv_heads, length, dim}, DType::f64);
  for (std::int64_t h = 0; h < p.kv_heads; ++h)
    for (std::int64_t key = 0; key < length; ++key)
      for (std::int64_t d = 0; d < dim; ++d) {
        const auto [page, row] = p.place(b, key);
        if (page >= 0) keys.at<double>({0, h, key, d}) = values.at<double>({page, h, row, d});
      }
  return keys.to(pool.dtype());
}

// Adds rows of a sequence to the rows of the pool they came from.
void add_keys(const PagedProblem& p, const Tensor& from, std::int64_t b, Tensor& pool) {
  const Tensor values = from.to(DType::f64);
  for (std::int64_t h = 0; h < p.kv_heads; ++h)
    for (std::int64_t key = 0; key < from.dim(2); ++key)
      for (std::int64_t d = 0; d < from.dim(3); ++d) {
        const auto [page, row] = p.place(b, key);
        if (page < 0) continue;
        double& sum = pool.at<double>({page, h, row, d});
        const double term = values.at<double>({0, h, key, d});
        sum = sum == 0 ? term : sum + term;  // a single -0 stays
      }
}

struct Gradients {
  Tensor q, k, v, buffer;
};

// reference::attention_backward, sequence after sequence.
Gradients exact(const PagedProblem& p, const PagedRun& run) {
  Gradients sum{Tensor(run.q.shape(), DType::f64), Tensor(run.k.shape(), DType::f64),
                Tensor(run.v.shape(), DType::f64), Tensor()};
  for (std::int64_t b = 0; b < p.batch(); ++b) {
    const auto entry = [&](const Tensor& t) { return t.view().slice(0, b, b + 1); };
    const Tensor k = keys_of(p, run.k, b), v = keys_of(p, run.v, b);
    const reference::AttentionGradients one = reference::attention_backward(
        {entry(run.q), k, v},
        {.score_mod = p.score_mod, .mask_mod = p.mask_mod, .scale = 0.25, .b_begin = b},
        {entry(run.d_out), entry(run.d_lse)});
    add_keys(p, one.k, b, sum.k);
    add_keys(p, one.v, b, sum.v);
    std::copy_n(one.q.data_as<double>(), one.q.numel(),
                sum.q.data_as<double>() + b * one.q.numel());
    for (const reference::BufferGradient& buffer : one.buffers) {
      if (sum.buffer.shape() != buffer.gradient.shape())
        sum.buffer = Tensor(buffer.gradient.shape(), DType::f64);
      for (std::int64_t i = 0; i < buffer.gradient.numel(); ++i)
        sum.buffer.data_as<double>()[i] += buffer.gradient.data_as<double>()[i];
    }
  }
  return sum;
}

double unit(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    case DType::f64:
      return 0x1p-46;
    default:
      return 0x1p-20;
  }
}

void expect_close(const Tensor& got, const Tensor& want, DType dtype, const std::string& what) {
  const double error = testing::largest_error(got.to(DType::f64), want);
  EXPECT_LE(error, 4 * unit(dtype) * testing::largest(want)) << what;
}

// Sequences 0 and 1 share their first pages; 2 has one of them at another place, and one twice; 3
// has no keys; 4 has pages of its own and ends inside one.
PagedProblem sharing(std::int64_t page_size) {
  return {.page_size = page_size,
          .pool = 12,
          .tables = {{3, 7, 1}, {3, 7, 2, 9}, {0, 3, 10, 10}, {}, {5, 4}},
          .lengths = {3 * page_size, 3 * page_size + (page_size + 1) / 2, 4 * page_size, 0,
                      page_size + 1}};
}

ScoreMod biased(const Tensor& bias) {
  const Buffer buffer(bias, {.name = "bias", .wants_gradient = true});
  return ScoreMod::parse("score + bias[b, kv_idx % 3] * (q_idx + 1) * 0.25", {{"bias", buffer}});
}

TEST(BackwardPlan, ScatteredKeysGiveTheSameBits) {
  testing::FewerIfEmulated fewer(5);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t span : {1, 7, 100, 500}) {
      if (fewer.leaves_out()) continue;
      const testing::AttentionCase c{.batch = 2,
                                     .q_heads = 4,
                                     .kv_heads = 2,
                                     .q_len = 70,
                                     .kv_len = 900,
                                     .head_dim = 24,
                                     .v_head_dim = 32,
                                     .q_dtype = dtype,
                                     .k_dtype = dtype,
                                     .v_dtype = dtype,
                                     .mask_mod = mods::sliding_window(2000, 600),
                                     .scale = 0.25};
      const testing::BackwardTensors t(c, 11);
      const AttentionGradients dense =
          flex_attention_backward(t.inputs(), {.forward = c.options()});
      const auto layout = std::make_shared<testing::ScatteredLayout>(900, span, 5);
      const Tensor k = layout->scatter(t.forward.k), v = layout->scatter(t.forward.v);
      AttentionProblem problem =
          AttentionProblem::dense(t.forward.q, t.forward.k, t.forward.v, c.options());
      problem.layout = layout;
      BackwardPlan plan({std::move(problem), {}, {}});
      Tensor d_q = Tensor::empty(t.forward.q.shape(), dtype), d_k = k.clone(), d_v = v.clone();
      plan.run({.q = t.forward.q,
                .k = k,
                .v = v,
                .out = t.out,
                .lse = t.lse,
                .d_out = t.d_out,
                .d_lse = t.d_lse,
                .d_q = d_q.view(),
                .d_k = d_k.view(),
                .d_v = d_v.view()});
      EXPECT_TRUE(same_bits(d_q, *dense.q)) << span;
      EXPECT_TRUE(same_bits(d_k, layout->scatter(*dense.k))) << span;
      EXPECT_TRUE(same_bits(d_v, layout->scatter(*dense.v))) << span;
    }
  }
}

TEST(BackwardPlan, PagesWithOneUserHaveTheBitsOfDenseCalls) {
  testing::FewerIfEmulated fewer(7);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t page_size : {1, 7, 16, 500}) {
      for (const bool modified : {false, true}) {
        if (fewer.leaves_out()) continue;
        PagedProblem p{
            .page_size = page_size, .lengths = {450, 3, 0, 129}, .q_len = 66, .dtype = dtype};
        if (modified) {
          p.score_mod = ScoreMod::parse("score + 0.01 * (kv_idx - q_idx)");
          p.mask_mod = MaskMod::parse("kv_idx % 5 != 2 or q_idx > 40");
        }
        std::int64_t pages = 0;
        for (const std::int64_t length : p.lengths) pages += (length + page_size - 1) / page_size;
        p.pool = pages + 2;
        std::vector<std::int64_t> order(static_cast<std::size_t>(p.pool));
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), std::mt19937_64(page_size));
        auto next = order.begin();
        for (const std::int64_t length : p.lengths) {
          p.tables.emplace_back(next, next + (length + page_size - 1) / page_size);
          next += std::ssize(p.tables.back());
        }
        PagedRun run(p);
        run.backward(p);
        Tensor d_k(run.k.shape(), DType::f64), d_v(run.v.shape(), DType::f64);
        for (std::int64_t b = 0; b < p.batch(); ++b) {
          const auto entry = [&](const Tensor& t) { return t.view().slice(0, b, b + 1); };
          const Tensor k = keys_of(p, run.k, b), v = keys_of(p, run.v, b);
          FlexAttentionBackwardOptions options{
              .forward = {.score_mod = p.score_mod, .scale = 0.25, .enable_gqa = true}};
          if (p.mask_mod)
            options.forward.block_mask = create_block_mask(*p.mask_mod, 1, 1, p.q_len, k.dim(2));
          const AttentionGradients one = flex_attention_backward({.q = entry(run.q),
                                                                  .k = k,
                                                                  .v = v,
                                                                  .out = entry(run.out),
                                                                  .lse = entry(run.lse),
                                                                  .d_out = entry(run.d_out),
                                                                  .d_lse = entry(run.d_lse)},
                                                                 options);
          EXPECT_TRUE(same_bits(*one.q, entry(run.d_q))) << page_size << " " << b;
          add_keys(p, *one.k, b, d_k);
          add_keys(p, *one.v, b, d_v);
        }
        EXPECT_TRUE(same_bits(run.d_k, d_k.to(dtype))) << page_size << dtype_name(dtype);
        EXPECT_TRUE(same_bits(run.d_v, d_v.to(dtype))) << page_size << dtype_name(dtype);
      }
    }
  }
}

TEST(BackwardPlan, SharedPagesAddUp) {
  const Tensor bias = random_tensor({5, 3}, DType::f64, 8);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t page_size : {1, 3, 16, 200}) {
      for (const bool modified : {false, true}) {
        PagedProblem p = sharing(page_size);
        p.dtype = dtype;
        if (modified) {
          p.score_mod = biased(bias);
          p.mask_mod = MaskMod::parse("kv_idx <= q_idx * 40 + b");
        }
        PagedRun run(p);
        run.backward(p);
        const Gradients want = exact(p, run);
        const std::string what = std::string(dtype_name(dtype)) + " " + std::to_string(page_size);
        expect_close(run.d_q, want.q, dtype, what);
        expect_close(run.d_k, want.k, dtype, what);
        expect_close(run.d_v, want.v, dtype, what);
        if (modified) expect_close(run.d_buffers[0], want.buffer, dtype, what);
      }
    }
  }
}

// A half gradient is the sum in f32 rounded once.
TEST(BackwardPlan, SumsOfSharedPagesAreRoundedOnce) {
  PagedProblem p = sharing(16);
  p.dtype = DType::bf16;
  PagedRun half(p);
  half.backward(p);
  p.dtype = DType::f32;
  PagedRun full(p);
  const Tensor lse = half.lse;
  full.q = half.q.to(DType::f32);
  full.k = half.k.to(DType::f32);
  full.v = half.v.to(DType::f32);
  full.out = half.out.to(DType::f32);
  full.d_out = half.d_out.to(DType::f32);
  full.lse = lse.clone();
  full.d_lse = half.d_lse.clone();
  full.backward(p);
  // Of values alone: their sums have the same terms to f32, whatever multiplied q and k.
  expect_close(half.d_v, full.d_v.to(DType::f64), DType::bf16, "d_v");
  const Tensor got = half.d_v.to(DType::f64), want = full.d_v.to(DType::bf16).to(DType::f64);
  std::int64_t other = 0;
  for (std::int64_t i = 0; i < got.numel(); ++i)
    other += got.data_as<double>()[i] != want.data_as<double>()[i] ? 1 : 0;
  EXPECT_LE(other, got.numel() / 50);  // two roundings differ in a quarter of the sums
}

TEST(BackwardPlan, ThreadsDoNotChangeSharedSums) {
  for (const std::int64_t page_size : {1, 16, 300}) {
    PagedProblem p = sharing(page_size);
    p.q_len = 130;
    p.q_heads = 6;
    p.kv_heads = 3;
    p.mask_mod = MaskMod::parse("kv_idx <= q_idx * 9");
    PagedRun one(p), many(p);
    SerialExecutor serial;
    one.backward(p, &serial);
    const std::shared_ptr<Executor> pool = make_thread_pool(7);
    many.backward(p, pool.get());
    EXPECT_TRUE(same_bits(one.d_q, many.d_q));
    EXPECT_TRUE(same_bits(one.d_k, many.d_k));
    EXPECT_TRUE(same_bits(one.d_v, many.d_v));
  }
}

// A page below 0 has no memory: nothing is written for its keys, which a mask hides.
TEST(BackwardPlan, PagesThatAreNotThereAreLeftAlone) {
  PagedProblem p{
      .page_size = 4,
      .pool = 4,
      .tables = {{2, -1, 0}, {-1, 3}},
      .lengths = {12, 8},
      .dtype = DType::f64,
      .mask_mod = MaskMod::parse("b == 0 and kv_idx // 4 != 1 or b == 1 and kv_idx > 3")};
  PagedRun run(p);
  run.backward(p);
  const Gradients want = exact(p, run);
  expect_close(run.d_q, want.q, p.dtype, "q");
  expect_close(run.d_k, want.k, p.dtype, "k");
  expect_close(run.d_v, want.v, p.dtype, "v");
}

// d(loss) / d(element) by differences of the forward plan's own loss.
TEST(BackwardPlan, AgreesWithFiniteDifferences) {
  PagedProblem p = sharing(3);
  p.dtype = DType::f64;
  p.score_mod = ScoreMod::parse("tanh(score) * 2 + 0.1 * (kv_idx - q_idx)");
  p.mask_mod = MaskMod::parse("kv_idx != q_idx");
  PagedRun run(p);
  run.backward(p);
  const auto loss = [&] {
    run.forward(p);
    double sum = 0;
    for (std::int64_t i = 0; i < run.out.numel(); ++i)
      sum += run.out.data_as<double>()[i] * run.d_out.data_as<double>()[i];
    for (std::int64_t i = 0; i < run.lse.numel(); ++i)
      if (std::isfinite(run.lse.data_as<double>()[i]))
        sum += run.lse.data_as<double>()[i] * run.d_lse.data_as<double>()[i];
    return sum;
  };
  constexpr double kStep = 1e-6;
  std::mt19937_64 random(4);
  for (const auto& [values, gradient] : {std::pair{&run.k, &run.d_k}, {&run.v, &run.d_v}}) {
    for (int i = 0; i < 60; ++i) {
      const auto at =
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(values->numel()));
      double& x = values->data_as<double>()[at];
      const double was = x, got = gradient->data_as<double>()[at];
      if (std::isnan(was)) {
        EXPECT_EQ(got, 0);
        continue;
      }
      x = was + kStep;
      const double above = loss();
      x = was - kStep;
      const double below = loss();
      x = was;
      EXPECT_NEAR(got, (above - below) / (2 * kStep), 1e-7);
    }
  }
}

}  // namespace
}  // namespace quire::plan

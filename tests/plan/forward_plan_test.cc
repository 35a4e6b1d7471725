// ForwardPlan over a layout that scatters keys: same bits as dense keys, whatever the spans; tasks
// and scratch.
#include "plan/forward_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "quire/flex_attention.h"
#include "quire/mods.h"
#include "tests/support/attention_case.h"

namespace quire::plan {
namespace {

using testing::AttentionCase;
using testing::AttentionTensors;

// Spans of `length` keys lie in a pool of rows in random order, apart from each other.
class ScatteredLayout final : public layout::KeyLayout {
 public:
  ScatteredLayout(std::int64_t keys, std::int64_t length, std::uint64_t seed)
      : keys_(keys),
        length_(length),
        places_(static_cast<std::size_t>((keys + length - 1) / length)) {
    std::iota(places_.begin(), places_.end(), 0);
    std::mt19937_64 random(seed);
    std::shuffle(places_.begin(), places_.end(), random);
  }

  std::int64_t pool_rows() const {
    return static_cast<std::int64_t>(places_.size()) * (length_ + 1);
  }
  std::int64_t row_of(std::int64_t key) const {
    return places_[static_cast<std::size_t>(key / length_)] * (length_ + 1) + key % length_;
  }

  std::int64_t length(std::int64_t) const override { return keys_; }
  std::int64_t max_spans() const override { return static_cast<std::int64_t>(places_.size()); }
  std::int64_t write_spans(std::int64_t sequence, std::int64_t kv_head, layout::KeyRange,
                           const layout::KeyStrides& strides,
                           std::span<kernels::KeySpan> out) const override {
    std::int64_t count = 0;
    for (std::int64_t begin = 0; begin < keys_; begin += length_, ++count) {
      out[static_cast<std::size_t>(count)] = {
          .begin = begin,
          .end = std::min(begin + length_, keys_),
          .key_offset =
              sequence * strides.k_batch + kv_head * strides.k_head + row_of(begin) * strides.k_row,
          .value_offset = sequence * strides.v_batch + kv_head * strides.v_head +
                          row_of(begin) * strides.v_row};
    }
    return count;
  }

 private:
  std::int64_t keys_, length_;
  std::vector<std::int64_t> places_;
};

// Keys in the places of the layout; NaN everywhere else.
Tensor scatter(const ConstTensorView& from, const ScatteredLayout& layout) {
  Tensor pool({from.dim(0), from.dim(1), layout.pool_rows(), from.dim(3)}, DType::f64);
  std::fill_n(pool.data_as<double>(), pool.numel(), std::numeric_limits<double>::quiet_NaN());
  const Tensor values = to(from, DType::f64);
  for (std::int64_t b = 0; b < from.dim(0); ++b)
    for (std::int64_t h = 0; h < from.dim(1); ++h)
      for (std::int64_t key = 0; key < from.dim(2); ++key)
        for (std::int64_t d = 0; d < from.dim(3); ++d)
          pool.at<double>({b, h, layout.row_of(key), d}) = values.at<double>({b, h, key, d});
  return pool.to(from.dtype());
}

TEST(ForwardPlan, ScatteredKeysGiveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t q_len : {2, 70}) {
      for (const std::int64_t span : {1, 7, 16, 100, 300}) {
        for (const bool masked : {false, true}) {
          AttentionCase c{.batch = 2,
                          .q_heads = 4,
                          .kv_heads = 2,
                          .q_len = q_len,
                          .kv_len = 1300,
                          .head_dim = 24,
                          .v_head_dim = 32,
                          .q_dtype = dtype,
                          .k_dtype = dtype,
                          .v_dtype = dtype};
          if (masked)
            c.mask_mod = mods::sliding_window(2000, 900) & MaskMod::parse("kv_idx % 9 != 4");
          const AttentionTensors t(c, 11);
          const FlexAttentionOptions options = c.options();
          const Tensor dense = flex_attention(t.q, t.k, t.v, options);
          const auto layout = std::make_shared<ScatteredLayout>(1300, span, 5);
          const Tensor k = scatter(t.k, *layout), v = scatter(t.v, *layout);
          AttentionProblem problem = AttentionProblem::dense(t.q, t.k, t.v, options);
          problem.layout = layout;
          ForwardPlan plan(std::move(problem));
          Tensor out = Tensor::empty(dense.shape(), dtype);
          plan.run({.q = t.q, .k = k, .v = v, .out = out.view()});
          EXPECT_EQ(std::memcmp(out.data(), dense.data(),
                                static_cast<std::size_t>(out.numel()) * dtype_size(dtype)),
                    0)
              << c.to_string() << " spans of " << span;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::plan

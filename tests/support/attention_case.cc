// Random tensors, the f64 reference and a naive f32 attention. Tests only.
#include "tests/support/attention_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "quire/evaluate.h"
#include "reference/attention.h"
#include "tests/support/random_tensor.h"

namespace quire::testing {
namespace {}  // namespace

std::vector<float> floats(const ConstTensorView& view) {
  const Tensor copy = to(view, DType::f32);
  return {copy.data_as<float>(), copy.data_as<float>() + copy.numel()};
}

ConstTensorView in_order(const Tensor& tensor, Order order, Tensor& memory) {
  switch (order) {
    case Order::kHeadsOutside:
      memory = tensor;
      return memory;
    case Order::kHeadsInside:
      memory = contiguous(tensor.view().permute({0, 2, 1, 3}));
      return std::as_const(memory).view().permute({0, 2, 1, 3});
    case Order::kDimOutside:
      break;
  }
  memory = contiguous(tensor.view().permute({3, 0, 1, 2}));
  return std::as_const(memory).view().permute({1, 2, 3, 0});
}

std::string AttentionCase::to_string() const {
  return fmt::format(
      "B{} H{}/{} L{} S{} E{} Ev{} {}/{}/{} order {} size {} scale {} q_begin {} blocks "
      "{}x{} {} | {}",
      batch, q_heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, dtype_name(q_dtype),
      dtype_name(k_dtype), dtype_name(v_dtype), static_cast<int>(order), size, scale.value_or(-1),
      q_begin, block_size.q, block_size.kv, score_mod ? score_mod->to_string() : "score",
      mask_mod ? mask_mod->to_string() : "True");
}

FlexAttentionOptions AttentionCase::options() const {
  FlexAttentionOptions options;
  options.score_mod = score_mod;
  options.scale = scale;
  options.enable_gqa = true;
  options.q_begin = {q_begin};
  if (mask_mod.has_value()) {
    options.block_mask = create_block_mask(*mask_mod, batch, q_heads, q_len, kv_len,
                                           {.block_size = block_size, .q_begin = q_begin});
  }
  return options;
}

AttentionTensors::AttentionTensors(const AttentionCase& c, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::int64_t kv_batch = c.kv_batch == 0 ? c.batch : c.kv_batch;
  q = in_order(random_tensor({c.batch, c.q_heads, c.q_len, c.head_dim}, c.q_dtype, random, c.size),
               c.order, q_memory);
  k = in_order(
      random_tensor({kv_batch, c.kv_heads, c.kv_len, c.head_dim}, c.k_dtype, random, c.size),
      c.order, k_memory);
  v = in_order(random_tensor({kv_batch, c.kv_heads, c.kv_len, c.v_head_dim}, c.v_dtype, random),
               c.order, v_memory);
}

AttentionValues ours(const AttentionCase& c, const AttentionTensors& tensors) {
  FlexAttentionOptions options = c.options();
  AuxOutput aux;
  options.return_aux = {.lse = true, .max_scores = true};
  options.aux = &aux;
  const Tensor out = flex_attention(tensors.q, tensors.k, tensors.v, options);
  return {out.to(DType::f64), aux.lse->to(DType::f64), aux.max_scores->to(DType::f64)};
}

AttentionValues exact(const AttentionCase& c, const AttentionTensors& tensors) {
  const reference::AttentionOutput r = reference::attention(
      {tensors.q, tensors.k, tensors.v},
      {.score_mod = c.score_mod, .mask_mod = c.mask_mod, .scale = c.scale, .q_begin = {c.q_begin}});
  return {r.out, r.lse, r.max_scores};
}

AttentionValues naive(const AttentionCase& c, const AttentionTensors& tensors) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> q = floats(tensors.q), k = floats(tensors.k), v = floats(tensors.v);
  const auto scale =
      static_cast<float>(c.scale.value_or(1 / std::sqrt(static_cast<double>(c.head_dim))));
  const std::int64_t kv_batch = tensors.k.dim(0), group = c.q_heads / c.kv_heads;
  const auto kv_row = [&](std::int64_t b, std::int64_t h, std::int64_t key) {
    return ((kv_batch == 1 ? 0 : b) * c.kv_heads + h / group) * c.kv_len + key;
  };
  Tensor scores({c.batch, c.q_heads, c.q_len, c.kv_len}, DType::f32);
  float* s = scores.data_as<float>();
  for (std::int64_t row = 0; row < c.batch * c.q_heads * c.q_len; ++row) {
    const std::int64_t b = row / c.q_len / c.q_heads, h = row / c.q_len % c.q_heads;
    for (std::int64_t key = 0; key < c.kv_len; ++key) {
      float sum = 0;
      for (std::int64_t d = 0; d < c.head_dim; ++d)
        sum += q[static_cast<std::size_t>(row * c.head_dim + d)] *
               k[static_cast<std::size_t>(kv_row(b, h, key) * c.head_dim + d)];
      s[row * c.kv_len + key] = sum * scale;
    }
  }
  if (c.score_mod) scores = evaluate(*c.score_mod, scores, {.q_begin = c.q_begin});
  s = scores.data_as<float>();
  std::optional<Tensor> mask;
  if (c.mask_mod) mask = evaluate(*c.mask_mod, scores.shape(), {.q_begin = c.q_begin});
  AttentionValues result{Tensor({c.batch, c.q_heads, c.q_len, c.v_head_dim}, DType::f64),
                         Tensor({c.batch, c.q_heads, c.q_len}, DType::f64),
                         Tensor({c.batch, c.q_heads, c.q_len}, DType::f64)};
  std::vector<float> out(static_cast<std::size_t>(c.v_head_dim));
  for (std::int64_t row = 0; row < c.batch * c.q_heads * c.q_len; ++row) {
    const std::int64_t b = row / c.q_len / c.q_heads, h = row / c.q_len % c.q_heads;
    float most = -kInf, sum = 0;
    for (std::int64_t key = 0; key < c.kv_len; ++key) {
      float& score = s[row * c.kv_len + key];
      if (mask && !mask->data_as<bool>()[row * c.kv_len + key]) score = -kInf;
      most = std::max(most, score);
    }
    std::fill(out.begin(), out.end(), 0.f);
    for (std::int64_t key = 0; key < c.kv_len && most > -kInf; ++key) {
      const float p = std::exp(s[row * c.kv_len + key] - most);
      if (p == 0) continue;
      sum += p;
      for (std::int64_t d = 0; d < c.v_head_dim; ++d)
        out[static_cast<std::size_t>(d)] +=
            p * v[static_cast<std::size_t>(kv_row(b, h, key) * c.v_head_dim + d)];
    }
    for (std::int64_t d = 0; d < c.v_head_dim; ++d) {
      result.out.data_as<double>()[row * c.v_head_dim + d] =
          sum == 0 ? 0 : out[static_cast<std::size_t>(d)] / sum;
    }
    result.lse.data_as<double>()[row] = most + std::log(sum);
    result.max_scores.data_as<double>()[row] = most;
  }
  return result;
}

double largest_error(const Tensor& a, const Tensor& b) {
  double worst = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double x = a.data_as<double>()[i], y = b.data_as<double>()[i];
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    if (!std::isfinite(x) || !std::isfinite(y)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(x - y));
  }
  return worst;
}

}  // namespace quire::testing

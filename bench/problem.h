// Problem: one attention call to be measured, with its name and what it costs. Benchmarks only.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "bench/gradient_mods.h"
#include "quire/flex_attention.h"
#include "quire/jagged.h"
#include "quire/mods.h"
#include "quire/tensor.h"

namespace quire::bench {

struct Problem {
  static constexpr std::int64_t kDocument = 300;  // tokens, of the mask "document"

  std::int64_t batch = 1, q_heads = 16, kv_heads = 16, q_len = 2048, kv_len = 2048;
  std::int64_t head_dim = 64, v_head_dim = 64;
  DType q_dtype = DType::f32, k_dtype = DType::f32, v_dtype = DType::f32;
  bool heads_inside = false;          // [B, S, H, D] in memory
  bool dim_outside = false;           // the last axis is not contiguous
  std::string mask = {}, score = {};  // names below; empty: none; "d ..": gradient_mods.h
  std::int64_t block = 128;

  bool is_bf16() const {
    return q_dtype == DType::bf16 && k_dtype == DType::bf16 && v_dtype == DType::bf16;
  }

  std::string name() const {
    std::string text = fmt::format("{}x{}", batch, q_heads);
    if (kv_heads != q_heads) text += fmt::format("/{}", kv_heads);
    text += fmt::format(" L{} S{} D{}", q_len, kv_len, head_dim);
    if (v_head_dim != head_dim) text += fmt::format("/{}", v_head_dim);
    text += fmt::format(" {}", dtype_name(q_dtype));
    if (k_dtype != q_dtype || v_dtype != q_dtype)
      text += fmt::format("/{}/{}", dtype_name(k_dtype), dtype_name(v_dtype));
    if (heads_inside) text += " [B,S,H,D]";
    if (dim_outside) text += " dim outside";
    if (!mask.empty()) text += fmt::format(" {} (blocks of {})", mask, block);
    if (!score.empty()) text += " " + score;
    return text;
  }

  MaskMod mask_mod() const {
    if (mask == "causal") return mods::causal();
    if (mask == "window 256") return mods::sliding_window(256);
    if (mask == "document") {
      std::vector<std::int32_t> ids(kv_len);
      for (std::size_t i = 0; i < ids.size(); ++i)
        ids[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) / kDocument);
      return mods::document(ids);
    }
    // The same rules in a form that every tile has to evaluate.
    if (mask == "causal everywhere") return MaskMod::parse("q_idx + 100000 >= kv_idx");
    if (mask == "window everywhere")
      return MaskMod::parse("(q_idx + 100000 >= kv_idx) & (q_idx - kv_idx < 100000)");
    std::vector<std::int32_t> ids(kv_len, 1);
    const Buffer doc(ids, {.name = "doc"});
    return [&](auto, auto, auto q, auto kv) { return doc[q] == doc[kv]; };
  }

  ScoreMod score_mod() const {
    if (score.starts_with("d ")) return gradient_mod(score.substr(2), q_heads, kv_len);
    if (score == "alibi") return mods::alibi(q_heads);
    if (score == "softcap") return mods::softcap(20);
    if (score == "relative bias")
      return mods::relative_bias(std::vector<float>(2 * kv_len - 1, 0.1f));
    if (score == "dense bias") return mods::bias_2d(Tensor({q_len, kv_len}, DType::f32));
    const Buffer row(std::vector<float>(kv_len, 0.25f), {.name = "row"});
    const Buffer column(std::vector<float>(q_len, 0.1f), {.name = "column"});
    const Buffer slopes(std::vector<float>(q_heads, 0.5f), {.name = "slopes"});
    return ScoreMod::parse(
        "d = abs(kv_idx - q_idx); t = score * 0.5 + where(d < 128, row[kv_idx], column[q_idx]);"
        "u = maximum(t - slopes[h] * sqrt(d + 1.0), -50.0);"
        "where(q_idx % 3 == kv_idx % 5, u, u * 0.75) + sigmoid(score) * 0.1",
        {{"row", row}, {"column", column}, {"slopes", slopes}});
  }

  /// Pairs of a query and a key it sees, of one head.
  double pairs() const {
    const double all = static_cast<double>(q_len) * static_cast<double>(kv_len);
    if (mask == "causal") return static_cast<double>(q_len) * static_cast<double>(q_len + 1) / 2;
    std::int64_t visible = 0;
    if (mask == "window 256") {
      for (std::int64_t q = 0; q < q_len; ++q) visible += std::min<std::int64_t>(q + 1, 256);
      return static_cast<double>(visible);
    }
    if (mask == "document") {
      for (std::int64_t q = 0; q < q_len; ++q)
        visible += std::clamp<std::int64_t>(kv_len - q / kDocument * kDocument, 0, kDocument);
      return static_cast<double>(visible);
    }
    return all;
  }
  double flops() const {
    return 2 * static_cast<double>(batch * q_heads) * pairs() *
           static_cast<double>(head_dim + v_head_dim);
  }
  /// Of keys and values, read once.
  double bytes() const {
    return static_cast<double>(batch * kv_heads * kv_len) *
           (static_cast<double>(head_dim) * static_cast<double>(dtype_size(k_dtype)) +
            static_cast<double>(v_head_dim) * static_cast<double>(dtype_size(v_dtype)));
  }
};

/// Random numbers in -1..1.
inline void fill(Tensor& values, std::uint64_t seed) {
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u;
  for (float& value : std::span(values.data_as<float>(), values.numel())) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31f;
  }
}

/// Random tensors of a problem; the mask is built once.
struct ProblemTensors {
  ConstTensorView q_view, k_view, v_view;  // set while the tensors are made
  Tensor q, k, v, out;
  FlexAttentionOptions options;

  explicit ProblemTensors(const Problem& p)
      : q(random({p.batch, p.q_heads, p.q_len, p.head_dim}, p, p.q_dtype, 1, q_view)),
        k(random({p.batch, p.kv_heads, p.kv_len, p.head_dim}, p, p.k_dtype, 2, k_view)),
        v(random({p.batch, p.kv_heads, p.kv_len, p.v_head_dim}, p, p.v_dtype, 3, v_view)),
        out(Tensor::empty({p.batch, p.q_heads, p.q_len, p.v_head_dim}, p.q_dtype)) {
    options.enable_gqa = true;
    if (!p.score.empty()) options.score_mod = p.score_mod();
    if (!p.mask.empty()) {
      options.block_mask =
          create_block_mask(p.mask_mod(), 1, 1, p.q_len, p.kv_len, {.block_size = p.block});
      // "everywhere": the blocks are full, and are listed as partial so that the rule runs.
      if (p.mask.ends_with("everywhere")) options.block_mask = listed_as_partial(p);
    }
  }

 private:
  static BlockMask listed_as_partial(const Problem& p) {
    BlockMask mask = create_block_mask(p.mask_mod(), 1, 1, p.q_len, p.kv_len,
                                       {.block_size = p.block, .separate_full_blocks = false});
    mask.set_mask_mod(p.mask_mod());
    return mask;
  }
  static Tensor random(const Shape& shape, const Problem& p, DType dtype, std::uint64_t seed,
                       ConstTensorView& view) {
    const std::int64_t b = shape[0], h = shape[1], s = shape[2], d = shape[3];
    const Shape stored = p.heads_inside  ? Shape{b, s, h, d}
                         : p.dim_outside ? Shape{d, b, h, s}
                                         : shape;
    Tensor values = Tensor::empty(stored, DType::f32);
    fill(values, seed);
    if (dtype != DType::f32) values = values.to(dtype);
    view = std::as_const(values).view();
    if (p.heads_inside) view = view.permute({0, 2, 1, 3});
    if (p.dim_outside) view = view.permute({1, 2, 3, 0});
    return values;
  }
};

/// A jagged batch: self-attention of sequences of different lengths.
struct JaggedProblem {
  std::vector<std::int64_t> lengths;
  std::int64_t q_heads = 8, kv_heads = 8, head_dim = 64;
  DType dtype = DType::f32;
  JaggedOrder order = JaggedOrder::kTokens;
  bool causal = false;

  /// `count` lengths from `least` to `most`, the same every time.
  static JaggedProblem random(std::int64_t count, std::int64_t least, std::int64_t most) {
    JaggedProblem p;
    std::uint64_t state = 1;
    for (std::int64_t i = 0; i < count; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      p.lengths.push_back(
          least +
          static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(most - least + 1)));
    }
    return p;
  }

  std::int64_t total() const { return std::accumulate(lengths.begin(), lengths.end(), INT64_C(0)); }
  std::string name() const {
    const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
    return fmt::format("{} sequences of {}..{} H{} D{} {} {}{}", lengths.size(), *least, *most,
                       q_heads, head_dim, dtype_name(dtype),
                       order == JaggedOrder::kTokens ? "[T,H,D]" : "[H,T,D]",
                       causal ? " causal" : "");
  }
  double flops() const {
    double pairs = 0;
    for (const std::int64_t length : lengths) {
      const auto n = static_cast<double>(length);
      pairs += causal ? n * (n + 1) / 2 : n * n;
    }
    return 4 * static_cast<double>(q_heads * head_dim) * pairs;
  }
};

/// Random values of a jagged problem.
struct JaggedProblemTensors {
  Tensor q, k, v, out, offsets;
  JaggedAttentionOptions options;

  explicit JaggedProblemTensors(const JaggedProblem& p)
      : q(random(p, p.q_heads, 1)),
        k(random(p, p.kv_heads, 2)),
        v(random(p, p.kv_heads, 3)),
        out(q.clone()),
        offsets({static_cast<std::int64_t>(p.lengths.size()) + 1}, DType::i64),
        order_(p.order) {
    for (std::size_t i = 0; i < p.lengths.size(); ++i)
      offsets.data_as<std::int64_t>()[i + 1] = offsets.data_as<std::int64_t>()[i] + p.lengths[i];
    options.enable_gqa = true;
    if (p.causal) options.mask_mod = mods::causal();
  }

  Jagged jagged(const Tensor& values) const {
    return {.values = values, .offsets = offsets, .order = order_};
  }

 private:
  static Tensor random(const JaggedProblem& p, std::int64_t heads, std::uint64_t seed) {
    const bool by_token = p.order == JaggedOrder::kTokens;
    Tensor values = Tensor::empty(
        {by_token ? p.total() : heads, by_token ? heads : p.total(), p.head_dim}, DType::f32);
    fill(values, seed);
    return p.dtype == DType::f32 ? values : values.to(p.dtype);
  }
  JaggedOrder order_;
};

}  // namespace quire::bench

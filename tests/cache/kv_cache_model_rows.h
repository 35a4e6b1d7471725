// The tokens of the model that a KVCache is compared with, and the rows that follow from them.
// Tests only.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::testing {

// A token is its id and the number its rows are made from. Where it is true, the number follows
// from salt and ids so far, as keys and values of a language model do; drafts of a tree, and tokens
// that were moved, have any.
struct ModelToken {
  std::int64_t id = 0;
  std::uint64_t number = 0;
  bool has_id = false;   // and so do all before it
  bool is_true = false;  // and so are all before it
};

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
  return x ^ (x >> 32);
}

// An element of a row; places of values begin at kValues.
inline constexpr std::int64_t kValues = 1000;
inline float element(std::uint64_t number, std::int64_t place) {
  return static_cast<float>(mix(number, static_cast<std::uint64_t>(place)) & 0xff);
}

// [tokens, kv_heads, dim] of a layer.
inline Tensor rows_of(const std::vector<ModelToken>& tokens, std::int64_t heads, std::int64_t dim,
                      std::int64_t first) {
  Tensor result({std::ssize(tokens), heads, dim}, DType::f32);
  float* to = result.data_as<float>();
  for (const ModelToken& token : tokens)
    for (std::int64_t i = 0; i < heads * dim; ++i) *to++ = element(token.number, first + i);
  return result;
}

// Scales of a layer whose formats share them between tokens, so that all rows have codes.
inline void set_any_scales(KVCache& cache) {
  for (const KVLayerGroup& group : cache.groups()) {
    for (const std::int64_t layer : group.layers) {
      const auto scales = [&](const KVFormat& format, std::int64_t dim) {
        std::optional<Tensor> given;
        if (format.scale == ScaleAxis::kChannel || format.scale == ScaleAxis::kHead) {
          given.emplace(
              format.scale == ScaleAxis::kHead ? Shape{group.kv_heads} : Shape{group.kv_heads, dim},
              DType::f32);
          for (std::int64_t i = 0; i < given->numel(); ++i)
            given->data_as<float>()[i] = 1.5f + static_cast<float>((i + layer) % 3);
        }
        return given;
      };
      const std::optional<Tensor> k = scales(group.k_format, group.head_dim);
      std::optional<Tensor> v;
      if (!group.v_in_k) v = scales(group.v_format, group.v_head_dim);
      if (!k && !v) continue;
      cache.set_scales(layer, k ? std::optional<ConstTensorView>(k->view()) : std::nullopt,
                       v ? std::optional<ConstTensorView>(v->view()) : std::nullopt);
    }
  }
}

// Rows of a page are, byte by byte, those of a tensor [tokens, heads, ..].
inline void compare_bytes(const ConstTensorView& pages, const Tensor& wanted,
                          const SequenceView& view, std::int64_t page_size) {
  const auto size = static_cast<std::int64_t>(dtype_size(pages.dtype()));
  const std::int64_t heads = pages.dim(1);
  const std::int64_t bytes =
      wanted.numel() == 0 ? 0 : wanted.numel() / (wanted.shape()[0] * heads) * size;
  const auto* const all = static_cast<const char*>(pages.data());
  const auto* const rows = static_cast<const char*>(wanted.data());
  for (std::int64_t at = 0; at < view.length; ++at) {
    if (at >= view.hole_begin && at < view.hole_end) continue;
    const std::int64_t page = view.pages[static_cast<std::size_t>(at / page_size)];
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t offset =
          page * pages.stride(0) + head * pages.stride(1) + at % page_size * pages.stride(2);
      ASSERT_EQ(std::memcmp(all + offset * size, rows + (at * heads + head) * bytes,
                            static_cast<std::size_t>(bytes)),
                0)
          << "position " << at << " head " << head;
    }
  }
}

// What the pages of a layer hold for a sequence is what its tokens say.
inline void compare_rows(const KVCache& cache, std::int64_t layer, const SequenceView& view,
                         const std::vector<ModelToken>& tokens) {
  const std::int64_t page_size = cache.options().page_size;
  const KVLayerGroup& group = cache.groups()[static_cast<std::size_t>(cache.group_of(layer))];
  const auto compare = [&](const KVView& stored, std::int64_t dim, std::int64_t first) {
    const Tensor rows = rows_of(tokens, group.kv_heads, dim, first + layer * 100);
    if (stored.format.is_plain()) return compare_bytes(stored.data, rows, view, page_size);
    const bool is_shared =
        stored.format.scale == ScaleAxis::kChannel || stored.format.scale == ScaleAxis::kHead;
    QuantizeOptions options;
    if (is_shared) options.scales = stored.scales;
    const QuantizedTensor coded = quantize(rows, stored.format, options);
    compare_bytes(stored.data, coded.codes, view, page_size);
    if (!is_shared && stored.format.has_scales())
      compare_bytes(stored.scales, coded.scales, view, page_size);
  };
  if (tokens.empty()) return;
  compare(cache.keys(layer), group.head_dim, 0);
  if (!group.v_in_k) return compare(cache.values(layer), group.v_head_dim, kValues);
  ASSERT_EQ(cache.values(layer).data.data(), cache.keys(layer).data.data());
}

}  // namespace quire::testing

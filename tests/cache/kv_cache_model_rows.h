// The tokens of the model that a KVCache is compared with, and the rows that follow from them.
// Tests only.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
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

// What the pages of a layer hold for a sequence is what its tokens say.
inline void compare_rows(const KVCache& cache, std::int64_t layer, const SequenceView& view,
                         const std::vector<ModelToken>& tokens) {
  const std::int64_t page_size = cache.options().page_size;
  const ConstTensorView pages[] = {cache.k_pages(layer), cache.v_pages(layer)};
  for (std::int64_t at = 0; at < view.length; ++at) {
    if (at >= view.hole_begin && at < view.hole_end) continue;
    const std::int64_t page = view.pages[static_cast<std::size_t>(at / page_size)];
    const std::uint64_t number = tokens[static_cast<std::size_t>(at)].number;
    for (std::int64_t kind = 0; kind < 2; ++kind) {
      const ConstTensorView& rows = pages[kind];
      const auto* from = rows.data_as<float>();
      for (std::int64_t head = 0; head < rows.dim(1); ++head) {
        const std::int64_t row = (page * rows.dim(1) + head) * page_size + at % page_size;
        for (std::int64_t d = 0; d < rows.dim(3); ++d)
          ASSERT_EQ(from[row * rows.dim(3) + d],
                    element(number, kind * kValues + layer * 100 + head * rows.dim(3) + d));
      }
    }
  }
}

}  // namespace quire::testing

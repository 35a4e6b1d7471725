// The tokens of the model that a KVCache is compared with, and the rows that follow from them.
// Tests only.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::testing {

// A token is its id and the number its rows are made from. Where all ids so far are known the
// number follows from salt and ids, as keys and values of a language model do.
struct ModelToken {
  std::int64_t id = 0;
  std::uint64_t number = 0;
  bool has_id = false;  // and so do all before it
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

// [layers, tokens, kv_heads, dim]
inline Tensor rows_of(const std::vector<ModelToken>& tokens, const KVCacheOptions& o,
                      std::int64_t dim, std::int64_t first) {
  Tensor result({o.layers, std::ssize(tokens), o.kv_heads, dim}, DType::f32);
  float* to = result.data_as<float>();
  for (std::int64_t layer = 0; layer < o.layers; ++layer)
    for (const ModelToken& token : tokens)
      for (std::int64_t i = 0; i < o.kv_heads * dim; ++i)
        *to++ = element(token.number, first + layer * 100 + i);
  return result;
}

// What the pages hold for a sequence is what its tokens say.
inline void compare_rows(const KVCache& cache, const SequenceView& view,
                         const std::vector<ModelToken>& tokens) {
  const KVCacheOptions& o = cache.options();
  for (std::int64_t layer = 0; layer < o.layers; ++layer) {
    const auto* k = cache.k_pages(layer).data_as<float>();
    const auto* v = cache.v_pages(layer).data_as<float>();
    for (std::int64_t at = view.begin; at < view.length; ++at) {
      const std::int64_t page = view.pages[static_cast<std::size_t>(at / o.page_size)];
      const std::uint64_t number = tokens[static_cast<std::size_t>(at)].number;
      for (std::int64_t head = 0; head < o.kv_heads; ++head) {
        const std::int64_t row = (page * o.kv_heads + head) * o.page_size + at % o.page_size;
        const std::int64_t place = layer * 100 + head * o.head_dim;
        for (std::int64_t d = 0; d < o.head_dim; ++d)
          ASSERT_EQ(k[row * o.head_dim + d], element(number, place + d));
        const std::int64_t v_place = kValues + layer * 100 + head * o.v_head_dim;
        for (std::int64_t d = 0; d < o.v_head_dim; ++d)
          ASSERT_EQ(v[row * o.v_head_dim + d], element(number, v_place + d));
      }
    }
  }
}

}  // namespace quire::testing

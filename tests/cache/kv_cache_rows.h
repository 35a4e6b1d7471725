// Small caches and rows for tests of KVCache: the row of a token is made from one number. Tests
// only.
#pragma once
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "quire/kv_cache.h"
#include "quire/tensor.h"

namespace quire::testing {

inline std::vector<std::int64_t> counting(std::int64_t n, std::int64_t first = 0) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// [layers, ids, kv_heads, dim]: 1000 id + 100 layer + 10 head + d.
inline Tensor rows_of(const KVCacheOptions& o, std::span<const std::int64_t> ids,
                      std::int64_t dim) {
  Tensor rows({o.layers, std::ssize(ids), o.kv_heads, dim}, DType::f32);
  float* to = rows.data_as<float>();
  for (std::int64_t layer = 0; layer < o.layers; ++layer)
    for (const std::int64_t id : ids)
      for (std::int64_t head = 0; head < o.kv_heads; ++head)
        for (std::int64_t d = 0; d < dim; ++d)
          *to++ = static_cast<float>(1000 * id + 100 * layer + 10 * head + d);
  return rows;
}

// Appends tokens with ids and rows made from them; values are keys with another dim.
inline void append_ids(KVCache& cache, SequenceId sequence, std::span<const std::int64_t> ids) {
  const NewTokens step[] = {{sequence, std::ssize(ids), ids}};
  cache.append(step, rows_of(cache.options(), ids, cache.options().head_dim),
               rows_of(cache.options(), ids, cache.options().v_head_dim));
}

// The ids that the keys of a sequence were made from, read through its page table, from `begin` on;
// -1 where a row is not what an id makes.
inline std::vector<std::int64_t> read_ids(const KVCache& cache, SequenceId sequence) {
  const SequenceView view = cache.view(sequence);
  std::vector<std::int64_t> ids;
  for (std::int64_t at = view.begin; at < view.length; ++at) {
    const std::int64_t page_size = cache.options().page_size;
    const std::int64_t page = view.pages[static_cast<std::size_t>(at / page_size)];
    double first = 0;
    bool fits = true;
    for (std::int64_t layer = 0; layer < cache.options().layers; ++layer) {
      for (const ConstTensorView& pages : {cache.k_pages(layer), cache.v_pages(layer)}) {
        for (std::int64_t head = 0; head < pages.dim(1); ++head) {
          for (std::int64_t d = 0; d < pages.dim(3); ++d) {
            const double id = pages.load_float({page, head, at % page_size, d}) -
                              static_cast<double>(100 * layer + 10 * head + d);
            if (ids.size() == static_cast<std::size_t>(at - view.begin) && first == 0) first = id;
            fits = fits && id == first;
          }
        }
      }
    }
    ids.push_back(fits ? static_cast<std::int64_t>(first / 1000) : -1);
  }
  return ids;
}

}  // namespace quire::testing

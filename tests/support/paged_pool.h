// Dense keys and values put into pages of a pool, for tests: pages in random order, everything that
// is no live key NaN. Tests only.
#pragma once
#include <cstdint>
#include <vector>

#include "quire/paged.h"
#include "quire/tensor.h"

namespace quire::testing {

struct PoolOptions {
  std::int64_t page_size = 16;
  std::int64_t spare_pages = 3;  // pages of the pool that nobody has
  bool flat = false;             // [1, heads, pages * page_size, dim], else head-major pages
  bool shuffle = true;           // else page after page
  DType id_dtype = DType::i32;
  std::uint64_t seed = 1;
};

struct PagedPool {
  /// k, v: [n, heads, most, dim], of which sequence i has the first lengths[i] keys.
  PagedPool(const ConstTensorView& k, const ConstTensorView& v,
            const std::vector<std::int64_t>& lengths, const PoolOptions& options);

  PagedKeys keys() const;

  Tensor k, v;        // as options.flat says
  Tensor page_table;  // [n, most pages + 1], -1 after the last
  Tensor lengths;     // i64
  std::int64_t page_size;
  bool flat;
};

}  // namespace quire::testing

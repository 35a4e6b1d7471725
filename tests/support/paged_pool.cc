// Keys to pages. Tests only.
#include "tests/support/paged_pool.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace quire::testing {
namespace {

// [pages, heads, page_size, dim] of a pool, whichever way it lies.
TensorView pages_view(Tensor& pool, std::int64_t page_size, bool flat) {
  if (!flat) return pool.view();
  const Shape strides = pool.view().strides();
  return {pool.data(),
          pool.dtype(),
          {pool.dim(2) / page_size, pool.dim(1), page_size, pool.dim(3)},
          {strides[2] * page_size, strides[1], strides[2], strides[3]}};
}

}  // namespace

PagedPool::PagedPool(const ConstTensorView& k_from, const ConstTensorView& v_from,
                     const std::vector<std::int64_t>& of_sequences, const PoolOptions& options)
    : page_size(options.page_size), flat(options.flat) {
  const auto count = static_cast<std::int64_t>(of_sequences.size());
  const auto pages_for = [&](std::int64_t length) { return (length + page_size - 1) / page_size; };
  std::int64_t pages = options.spare_pages, most = 0;
  for (const std::int64_t length : of_sequences) {
    pages += pages_for(length);
    most = std::max(most, pages_for(length));
  }
  std::vector<std::int64_t> places(static_cast<std::size_t>(pages));
  std::iota(places.begin(), places.end(), 0);
  std::mt19937_64 random(options.seed);
  if (options.shuffle) std::shuffle(places.begin(), places.end(), random);
  Tensor table({count, most + 1}, DType::i64);
  std::fill_n(table.data_as<std::int64_t>(), table.numel(), -1);
  lengths = Tensor({count}, DType::i64);
  std::copy(of_sequences.begin(), of_sequences.end(), lengths.data_as<std::int64_t>());
  std::size_t next = 0;
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t page = 0; page < pages_for(of_sequences[static_cast<std::size_t>(i)]); ++page)
      table.at<std::int64_t>({i, page}) = places[next++];

  const auto fill = [&](const ConstTensorView& from) {
    const Shape shape = flat ? Shape{1, from.dim(1), pages * page_size, from.dim(3)}
                             : Shape{pages, from.dim(1), page_size, from.dim(3)};
    Tensor pool(shape, DType::f64);
    std::fill_n(pool.data_as<double>(), pool.numel(), std::numeric_limits<double>::quiet_NaN());
    const TensorView to_pages = pages_view(pool, page_size, flat);
    const Tensor values = to(from, DType::f64);
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t h = 0; h < from.dim(1); ++h)
        for (std::int64_t key = 0; key < of_sequences[static_cast<std::size_t>(i)]; ++key)
          for (std::int64_t d = 0; d < from.dim(3); ++d)
            to_pages.at<double>({table.at<std::int64_t>({i, key / page_size}), h, key % page_size,
                                 d}) = values.at<double>({i, h, key, d});
    return pool.to(from.dtype());
  };
  k = fill(k_from);
  v = fill(v_from);
  page_table = table.to(options.id_dtype);
}

PagedKeys PagedPool::keys() const {
  if (!flat) return {k, v, page_table, lengths};
  return {pages_of(k, page_size), pages_of(v, page_size), page_table, lengths};
}

}  // namespace quire::testing

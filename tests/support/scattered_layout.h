// ScatteredLayout: every sequence's keys in spans of one length, in random order and apart from
// each other in the rows of its batch entry: a layout that is neither dense nor paged. Tests only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "layout/key_layout.h"
#include "quire/tensor.h"

namespace quire::testing {

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

  /// Keys in the places of the layout; NaN everywhere else.
  Tensor scatter(const ConstTensorView& from) const {
    Tensor pool({from.dim(0), from.dim(1), pool_rows(), from.dim(3)}, DType::f64);
    std::fill_n(pool.data_as<double>(), pool.numel(), std::numeric_limits<double>::quiet_NaN());
    const Tensor values = to(from, DType::f64);
    for (std::int64_t b = 0; b < from.dim(0); ++b)
      for (std::int64_t h = 0; h < from.dim(1); ++h)
        for (std::int64_t key = 0; key < from.dim(2); ++key)
          for (std::int64_t d = 0; d < from.dim(3); ++d)
            pool.at<double>({b, h, row_of(key), d}) = values.at<double>({b, h, key, d});
    return pool.to(from.dtype());
  }

 private:
  std::int64_t keys_, length_;
  std::vector<std::int64_t> places_;
};

}  // namespace quire::testing

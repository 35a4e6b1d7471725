// Converts the offsets of sequences to spans. Layout layer.
#include "layout/jagged_layout.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace quire::layout {

JaggedQueries::JaggedQueries(JaggedRows rows) : rows_(std::move(rows)), longest_(0) {
  assert(rows_.begin.size() == rows_.length.size());
  for (const std::int64_t length : rows_.length) longest_ = std::max(longest_, length);
}

JaggedLayout::JaggedLayout(JaggedRows keys, std::vector<std::int64_t> value_begin)
    : keys_(std::move(keys)), value_begin_(std::move(value_begin)) {
  assert(keys_.begin.size() == keys_.length.size() && keys_.begin.size() == value_begin_.size());
}

std::int64_t JaggedLayout::write_spans(std::int64_t sequence, std::int64_t kv_head, KeyRange,
                                       const KeyStrides& strides,
                                       std::span<kernels::KeySpan> out) const {
  const std::size_t i = sequence;
  if (keys_.length[i] == 0) return 0;
  out[0] = {.begin = 0,
            .end = keys_.length[i],
            .key_offset = kv_head * strides.k_head + keys_.begin[i] * strides.k_row,
            .value_offset = kv_head * strides.v_head + value_begin_[i] * strides.v_row,
            .key_scale_offset = strides.k_scales.at(0, kv_head, keys_.begin[i]),
            .value_scale_offset = strides.v_scales.at(0, kv_head, value_begin_[i])};
  return 1;
}

}  // namespace quire::layout

// One span per sequence and head. Layout layer.
#include "layout/key_layout.h"

namespace quire::layout {

std::int64_t DenseLayout::write_spans(std::int64_t sequence, std::int64_t kv_head, KeyRange,
                                      const KeyStrides& strides,
                                      std::span<kernels::KeySpan> out) const {
  const std::int64_t batch = kv_batch_ == 1 ? 0 : sequence;
  out[0] = {.begin = 0,
            .end = kv_len_,
            .key_offset = batch * strides.k_batch + kv_head * strides.k_head,
            .value_offset = batch * strides.v_batch + kv_head * strides.v_head,
            .key_scale_offset = strides.k_scales.at(batch, kv_head, 0),
            .value_scale_offset = strides.v_scales.at(batch, kv_head, 0)};
  return kv_len_ > 0 ? 1 : 0;
}

}  // namespace quire::layout

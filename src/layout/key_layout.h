// KeyLayout: where keys and values are in memory. The keys of a sequence, counted 0, 1, 2, ...
// wherever they are stored, become spans of consecutive rows. It says where keys are, never which
// may be seen. Layout layer.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/forward_problem.h"

namespace quire::layout {

/// Strides of a tensor of scales, in scales; 0 along axes on which they are constant.
struct RowStrides {
  std::int64_t batch = 0, head = 0, row = 0;

  std::int64_t at(std::int64_t b, std::int64_t h, std::int64_t r) const {
    return b * batch + h * head + r * row;
  }
};

/// Strides of the key and value tensors, in elements.
struct KeyStrides {
  std::int64_t k_batch = 0, k_head = 0, k_row = 0;
  std::int64_t v_batch = 0, v_head = 0, v_row = 0;
  RowStrides k_scales = {}, v_scales = {};  // of the scales, for codes
};

/// Keys [begin, end) of a sequence.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};

class KeyLayout {
 public:
  KeyLayout() = default;
  KeyLayout(const KeyLayout&) = delete;  // not copyable: some contain pointers into themselves
  KeyLayout& operator=(const KeyLayout&) = delete;
  virtual ~KeyLayout() = default;

  /// Keys of a sequence (a batch entry).
  virtual std::int64_t length(std::int64_t sequence) const = 0;
  /// At most this many spans, for any sequence.
  virtual std::int64_t max_spans() const = 0;
  /// Writes the spans of a sequence for one key head, ascending, without gaps, covering at least
  /// the keys of `range` that exist; returns how many. Takes time in proportion to the range, not
  /// the sequence. Allocates nothing.
  virtual std::int64_t write_spans(std::int64_t sequence, std::int64_t kv_head, KeyRange range,
                                   const KeyStrides& strides,
                                   std::span<kernels::KeySpan> out) const = 0;
  /// How many keys of a head are contiguous before the same keys of the next head follow; 0: all.
  virtual std::int64_t page_size() const { return 0; }
  /// Whether a page is followed by the next page of the same head instead, so that every head has
  /// memory of its own.
  virtual bool heads_are_apart() const { return false; }
  /// Whether sequences can have keys in the same memory; the functions below are used only then.
  virtual bool may_share() const { return false; }
  /// How many keys, from the first, two sequences have in the same memory.
  virtual std::int64_t shared_keys(std::int64_t, std::int64_t) const { return 0; }
  /// The page a key is in: the same number for all sequences that have it in the same memory;
  /// negative: none.
  virtual std::int64_t place(std::int64_t sequence, std::int64_t) const { return sequence; }
};

/// [batch, heads, kv_len, dim] tensors: one span. A batch of 1 serves every sequence.
class DenseLayout final : public KeyLayout {
 public:
  DenseLayout(std::int64_t kv_batch, std::int64_t kv_len) : kv_batch_(kv_batch), kv_len_(kv_len) {}

  std::int64_t length(std::int64_t) const override { return kv_len_; }
  std::int64_t max_spans() const override { return 1; }
  std::int64_t write_spans(std::int64_t sequence, std::int64_t kv_head, KeyRange range,
                           const KeyStrides& strides,
                           std::span<kernels::KeySpan> out) const override;

 private:
  std::int64_t kv_batch_, kv_len_;
};

}  // namespace quire::layout

// Layouts of sequences of different lengths one after the other in the rows of one batch entry,
// with or without holes between them. The order of the axes in memory is expressed by strides
// alone. Layout layer.
#pragma once
#include <cstdint>
#include <vector>

#include "layout/jagged_rows.h"
#include "layout/key_layout.h"
#include "layout/query_layout.h"

namespace quire::layout {

/// [1, heads, total, dim] tensors of queries.
class JaggedQueries final : public QueryLayout {
 public:
  explicit JaggedQueries(JaggedRows rows);

  std::int64_t length(std::int64_t sequence) const override { return rows_.length[sequence]; }
  std::int64_t longest() const override { return longest_; }
  QueryPlace place(std::int64_t sequence) const override { return {0, rows_.begin[sequence]}; }

 private:
  JaggedRows rows_;
  std::int64_t longest_;
};

/// [1, heads, total, dim] tensors of keys and of values, which may have their holes in different
/// places: one span per sequence.
class JaggedLayout final : public KeyLayout {
 public:
  /// value_begin: where the values of each sequence begin; lengths are those of the keys.
  JaggedLayout(JaggedRows keys, std::vector<std::int64_t> value_begin);

  std::int64_t length(std::int64_t sequence) const override { return keys_.length[sequence]; }
  std::int64_t max_spans() const override { return 1; }
  std::int64_t write_spans(std::int64_t sequence, std::int64_t kv_head, KeyRange range,
                           const KeyStrides& strides,
                           std::span<kernels::KeySpan> out) const override;

 private:
  JaggedRows keys_;
  std::vector<std::int64_t> value_begin_;
};

}  // namespace quire::layout

// QueryLayout: where queries are in memory: how many a sequence has, and at which row of the q, out
// and statistics tensors they begin. A sequence's queries are consecutive rows of one batch entry.
// It says where queries are, never what they may see. Layout layer.
#pragma once
#include <cstdint>

namespace quire::layout {

/// Where a sequence's first query is.
struct QueryPlace {
  std::int64_t batch = 0, row = 0;
};

class QueryLayout {
 public:
  virtual ~QueryLayout() = default;

  /// Queries of a sequence.
  virtual std::int64_t length(std::int64_t sequence) const = 0;
  /// The largest length of any sequence.
  virtual std::int64_t longest() const = 0;
  virtual QueryPlace place(std::int64_t sequence) const = 0;
};

/// [batch, heads, q_len, dim] tensors: one batch entry per sequence.
class DenseQueries final : public QueryLayout {
 public:
  explicit DenseQueries(std::int64_t q_len) : q_len_(q_len) {}

  std::int64_t length(std::int64_t) const override { return q_len_; }
  std::int64_t longest() const override { return q_len_; }
  QueryPlace place(std::int64_t sequence) const override { return {sequence, 0}; }

 private:
  std::int64_t q_len_;
};

}  // namespace quire::layout

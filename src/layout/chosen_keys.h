// ChosenKeys: the keys that every query of a batch chose (key_indices), checked and sorted
// ascending, in the form the kernels walk. It limits what may be seen; masks hide more. Layout
// layer.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/forward_problem.h"

namespace quire::layout {

/// Lists in the order sequence, head, query; `heads` is 1 if all heads choose the same keys.
class ChosenKeys {
 public:
  /// first_query: index of each sequence's first query, and the total. reserve: expected keys.
  ChosenKeys(std::vector<std::int64_t> first_query, std::int64_t heads, std::int64_t reserve);

  // For filling in: once per list, in order.
  std::vector<std::int32_t>& keys() { return keys_; }
  void end_list() { ends_.push_back(static_cast<std::int64_t>(keys_.size())); }
  /// Call after the last list.
  void finish();

  bool by_head() const { return heads_ > 1; }
  /// The list of query `row` of a sequence; those of the following queries come after it.
  const kernels::KeyList* lists(std::int64_t sequence, std::int64_t h, std::int64_t row) const {
    const std::int64_t queries = first_query_[sequence + 1] - first_query_[sequence];
    const std::int64_t head = by_head() ? h : 0;
    return lists_.data() + first_query_[sequence] * heads_ + head * queries + row;
  }
  /// Average number of keys in a list of the sequence.
  std::int64_t average_keys(std::int64_t sequence) const;

 private:
  std::vector<std::int64_t> first_query_;
  std::int64_t heads_;
  std::vector<std::int32_t> keys_;
  std::vector<std::int64_t> ends_;
  std::vector<kernels::KeyList> lists_;
};

}  // namespace quire::layout

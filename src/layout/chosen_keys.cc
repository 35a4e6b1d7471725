// Builds the lists of chosen keys in one array. Layout layer.
#include "layout/chosen_keys.h"

#include <utility>

namespace quire::layout {

ChosenKeys::ChosenKeys(std::vector<std::int64_t> first_query, std::int64_t heads,
                       std::int64_t reserve)
    : first_query_(std::move(first_query)), heads_(heads) {
  keys_.reserve(reserve);
  ends_.reserve(first_query_.back() * heads_);
}

void ChosenKeys::finish() {
  lists_.reserve(ends_.size());
  std::int64_t begin = 0;
  for (const std::int64_t end : ends_) {
    lists_.push_back({keys_.data() + begin, end - begin});
    begin = end;
  }
}

std::int64_t ChosenKeys::average_keys(std::int64_t sequence) const {
  const std::int64_t first = first_query_[sequence] * heads_;
  const std::int64_t end = first_query_[sequence + 1] * heads_;
  if (first == end) return 0;
  const std::int64_t begin = first == 0 ? 0 : ends_[first - 1];
  return (ends_[end - 1] - begin) / (end - first);
}

}  // namespace quire::layout

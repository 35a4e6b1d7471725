// Walks lists of chosen keys ahead of the decode kernel. No SIMD. Kernels layer.
#include "kernels/decode/chosen_ahead.h"

#include <algorithm>

namespace quire::kernels {

template <class T>
ChosenAhead<T>::ChosenAhead(const QueryRow* rows, int row_count, UnitRows<T>& keys,
                            UnitRows<T>* values, int64_t end)
    : keys_(keys), values_(values), end_(end) {
  const int32_t* of = nullptr;
  for (int i = 0; i < row_count; ++i) {
    const KeyList& list = rows[i].chosen;
    if (!list.is_choice() || (i > 0 && list.keys == of)) continue;
    of = list.keys;
    lists_[list_count_++] = {list.keys, list.keys + list.count};
  }
}

template <class T>
void ChosenAhead<T>::run(int64_t first, const int32_t* near, int further) noexcept {
  if (list_count_ == 0) return;
  const bool is_near = lists_[0].end - near > further;
  const int64_t end = is_near ? std::min<int64_t>(near[further], end_) : end_;
  for (int i = 0; i < list_count_; ++i) {
    List& list = lists_[i];
    if (list.at != list.end && *list.at < first)
      list.at = std::lower_bound(list.at, list.end, first);
    for (; list.at != list.end && *list.at < end; ++list.at) {
      keys_.prefetch(*list.at);
      if (values_ != nullptr) values_->prefetch(*list.at);
    }
  }
}

template class ChosenAhead<float>;
template class ChosenAhead<double>;

}  // namespace quire::kernels

// Prefetches the rows of chosen keys into L2, as far ahead in the lists as the walk asks for. Which
// of them a mask hides is not known yet, and mostly none is. Kernels layer.
#pragma once
#include <cstdint>

#include "kernels/decode/decode.h"
#include "kernels/decode/key_units.h"
#include "kernels/forward_problem.h"

namespace quire::kernels {

template <class T>
class ChosenAhead {
 public:
  /// values: null if they are the first columns of the keys. `end`: keys from there on have no
  /// address.
  ChosenAhead(const QueryRow* rows, int row_count, UnitRows<T>& keys, UnitRows<T>* values,
              int64_t end);

  /// Prefetches the keys of all lists up to that which is `further` places after `near` in the
  /// first row's. Keys before `first` are not wanted any more.
  void run(int64_t first, const int32_t* near, int further) noexcept;

 private:
  struct List {
    const int32_t *at, *end;  // of a row: what has not been prefetched yet
  };

  UnitRows<T>& keys_;
  UnitRows<T>* values_;
  int64_t end_;
  List lists_[kManyDecodeRows];  // different ones; heads of a group mostly share one
  int list_count_ = 0;
};

}  // namespace quire::kernels

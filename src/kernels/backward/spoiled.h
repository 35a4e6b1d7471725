// The sums of the backward pass where a row that is multiplied holds inf or NaN: a weight of
// exactly 0 then adds nothing, instead of NaN. The same chains as the fast ones (products-inl.h),
// one element at a time. Slow and rare. Kernels layer.
#pragma once
#include "kernels/backward/functions.h"

namespace quire::kernels {

template <class T>
void add_to_keys_weighted(const AddToKeysArgs<T>& args) noexcept;
template <class T>
void add_to_queries_weighted(const AddToQueriesArgs<T>& args) noexcept;

}  // namespace quire::kernels

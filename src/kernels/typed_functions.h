// Selects the tables of primitives by compute type, float or double, for code that is templated on
// it. Kernels layer.
#pragma once
#include <type_traits>

#include "kernels/backward/functions.h"
#include "kernels/coding/functions.h"
#include "kernels/decode/functions.h"
#include "kernels/kernel_table.h"
#include "kernels/prefill/forward_functions.h"

namespace quire::kernels {

template <class T>
const ForwardFunctions<T>& forward_functions(const KernelTable& table) noexcept {
  if constexpr (std::is_same_v<T, double>)
    return *table.forward_f64;
  else
    return *table.forward_f32;
}

template <class T>
const DecodeFunctions<T>& decode_functions(const KernelTable& table) noexcept {
  if constexpr (std::is_same_v<T, double>)
    return *table.decode_f64;
  else
    return *table.decode_f32;
}

template <class T>
const BackwardFunctions<T>& backward_functions(const KernelTable& table) noexcept {
  if constexpr (std::is_same_v<T, double>)
    return *table.backward_f64;
  else
    return *table.backward_f32;
}

template <class T>
void decode_rows(const KernelTable& table, const DecodeRowsArgs<T>& args) noexcept {
  if constexpr (std::is_same_v<T, double>)
    table.coding->decode_f64(args);
  else if constexpr (std::is_same_v<T, uint16_t>)
    table.coding->decode_bf16(args);
  else
    table.coding->decode_f32(args);
}

}  // namespace quire::kernels

// Dispatch from a DType at run time to a C++ type at compile time, and loads of one element of any
// dtype. Tensor layer.
#pragma once
#include <cstdint>
#include <type_traits>
#include <utility>

#include "quire/dtype.h"

namespace quire {

// Calls visit(std::type_identity<T>{}) with the element type T of `dtype`.
template <class Visit>
decltype(auto) visit_dtype(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::f32:
      return visit(std::type_identity<float>{});
    case DType::f64:
      return visit(std::type_identity<double>{});
    case DType::bf16:
      return visit(std::type_identity<BFloat16>{});
    case DType::f16:
      return visit(std::type_identity<Float16>{});
    case DType::i8:
      return visit(std::type_identity<int8_t>{});
    case DType::u8:
      return visit(std::type_identity<uint8_t>{});
    case DType::i16:
      return visit(std::type_identity<int16_t>{});
    case DType::i32:
      return visit(std::type_identity<int32_t>{});
    case DType::i64:
      return visit(std::type_identity<int64_t>{});
    case DType::boolean:
      break;
  }
  return visit(std::type_identity<bool>{});
}

// A boolean is read as a byte: foreign memory may hold values other than 0 and 1, which are not
// valid bools.
template <Element T>
T load_element(const void* data, int64_t offset) {
  if constexpr (std::is_same_v<T, bool>) {
    return static_cast<const uint8_t*>(data)[offset] != 0;
  } else {
    return static_cast<const T*>(data)[offset];
  }
}

}  // namespace quire

// DType: the element types of tensors, their sizes and names, and the C++ type of each. Public;
// tensor layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "quire/export.h"
#include "quire/float16.h"

namespace quire {

enum class DType : uint8_t { f32, f64, bf16, f16, i8, u8, i16, i32, i64, boolean };

inline constexpr int kDTypeCount = 10;

// Bytes per element.
constexpr size_t dtype_size(DType dtype) noexcept {
  constexpr size_t kSizes[kDTypeCount] = {4, 8, 2, 2, 1, 1, 2, 4, 8, 1};
  return kSizes[static_cast<size_t>(dtype)];
}

constexpr bool is_floating(DType dtype) noexcept {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16 || dtype == DType::f16;
}

// Neither floating nor boolean.
constexpr bool is_integer(DType dtype) noexcept {
  return !is_floating(dtype) && dtype != DType::boolean;
}

// "f32", "f64", "bf16", "f16", "i8", "u8", "i16", "i32", "i64", "bool". A string literal.
constexpr const char* dtype_name(DType dtype) noexcept {
  constexpr const char* kNames[kDTypeCount] = {"f32", "f64", "bf16", "f16", "i8",
                                               "u8",  "i16", "i32",  "i64", "bool"};
  return kNames[static_cast<size_t>(dtype)];
}

// From the names above or NumPy's ("float32", "bfloat16", "int64", "bool", ...). Throws Error on
// any other.
QUIRE_API DType parse_dtype(std::string_view name);

namespace detail {
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType kValue = DType::f32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType kValue = DType::f64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType kValue = DType::bf16;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType kValue = DType::f16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType kValue = DType::i8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType kValue = DType::u8;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType kValue = DType::i16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType kValue = DType::i32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType kValue = DType::i64;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType kValue = DType::boolean;
};
}  // namespace detail

// A C++ type that is the element type of some DType.
template <class T>
concept Element = requires { detail::DTypeOf<T>::kValue; };

template <Element T>
inline constexpr DType dtype_of = detail::DTypeOf<T>::kValue;

}  // namespace quire

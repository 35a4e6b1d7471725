// Structs of the C interface for its tests, and what they assert. Tests only.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "quire/quire_c.h"
#include "quire/tensor.h"

namespace quire::c_api_testing {

inline Tensor numbers(const Shape& shape, std::uint32_t seed) {
  Tensor tensor = Tensor::empty(shape, DType::f32);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    seed = seed * 1664525 + 1013904223;
    tensor.data_as<float>()[i] = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
  }
  return tensor;
}

inline quire_tensor c_tensor(const ConstTensorView& view) {
  quire_tensor tensor{};
  tensor.size = sizeof tensor;
  tensor.data = const_cast<void*>(view.data());
  tensor.dtype = static_cast<quire_dtype>(view.dtype());
  tensor.rank = static_cast<std::int32_t>(view.rank());
  std::copy(view.shape().begin(), view.shape().end(), tensor.shape);
  std::copy(view.strides().begin(), view.strides().end(), tensor.strides);
  return tensor;
}

template <class Struct>
Struct sized() {
  Struct result{};
  result.size = sizeof result;
  return result;
}

inline void expect_failed(quire_status wanted, const std::string& text, quire_status status) {
  EXPECT_EQ(status, wanted) << text;
  EXPECT_EQ(text, quire_last_error());
}

inline void expect_same_bits(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.shape(), b.shape());
  const auto bytes = static_cast<std::size_t>(a.numel()) * dtype_size(a.dtype());
  EXPECT_EQ(0, std::memcmp(a.data(), b.data(), bytes));
}

}  // namespace quire::c_api_testing

// Tensors of random numbers, the same for the same seed. Tests only.
#pragma once
#include <cstdint>
#include <random>

#include "quire/tensor.h"

namespace quire::testing {

/// Uniform in -size .. size, rounded to `dtype`.
Tensor random_tensor(const Shape& shape, DType dtype, std::mt19937_64& random, double size = 1);
/// From a generator of its own.
Tensor random_tensor(const Shape& shape, DType dtype, std::uint64_t seed);

/// Normally distributed.
Tensor random_normal(const Shape& shape, DType dtype, std::mt19937_64& random);
Tensor random_normal(const Shape& shape, DType dtype, std::uint64_t seed);

}  // namespace quire::testing

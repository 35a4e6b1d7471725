// Numbers in f64, then rounded. Tests only.
#include "tests/support/random_tensor.h"

namespace quire::testing {

Tensor random_tensor(const Shape& shape, DType dtype, std::mt19937_64& random, double size) {
  Tensor values(shape, DType::f64);
  for (std::int64_t i = 0; i < values.numel(); ++i)
    values.data_as<double>()[i] = (static_cast<double>(random() >> 11) * 0x1p-52 - 1) * size;
  return values.to(dtype);
}

Tensor random_tensor(const Shape& shape, DType dtype, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  return random_tensor(shape, dtype, random);
}

Tensor random_normal(const Shape& shape, DType dtype, std::mt19937_64& random) {
  Tensor values(shape, DType::f64);
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < values.numel(); ++i) values.data_as<double>()[i] = normal(random);
  return values.to(dtype);
}

Tensor random_normal(const Shape& shape, DType dtype, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  return random_normal(shape, dtype, random);
}

}  // namespace quire::testing

// The score of a hidden key, in the compute type. Kernels layer.
#pragma once
#include <limits>

namespace quire::kernels {

template <class T>
inline constexpr T kMinusInf = -std::numeric_limits<T>::infinity();

}  // namespace quire::kernels

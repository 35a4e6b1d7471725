// Rotations of queries and outputs: Hadamard's matrix over blocks of a power of two, divided by the
// square root of the block, which is its own inverse. Codes of rotated keys lose less to their
// largest channels. Plain loops: additions and one product, the same for every ISA. Kernels layer.
#pragma once
#include <cmath>
#include <cstddef>

namespace quire::kernels {

/// x[i * step + lane], i < count, each lane by itself, in place. `block` divides count.
template <class T>
void rotate(T* x, int count, int block, ptrdiff_t step = 1, int lanes = 1) noexcept {
  if (block <= 1) return;
  for (int half = 1; half < block; half *= 2) {
    for (int begin = 0; begin < count; begin += 2 * half) {
      for (int i = begin; i < begin + half; ++i) {
        T* const a = x + i * step;
        T* const b = a + half * step;
        for (int lane = 0; lane < lanes; ++lane) {
          const T sum = a[lane] + b[lane], difference = a[lane] - b[lane];
          a[lane] = sum;
          b[lane] = difference;
        }
      }
    }
  }
  const T factor = static_cast<T>(1 / std::sqrt(static_cast<double>(block)));
  for (int i = 0; i < count; ++i)
    for (int lane = 0; lane < lanes; ++lane) x[i * step + lane] *= factor;
}

}  // namespace quire::kernels

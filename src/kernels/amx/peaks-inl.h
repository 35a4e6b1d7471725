// The most that tile registers can do: products on registers alone, six sums one after the other.
// Kernels layer.
#pragma once
#include "kernels/amx/tiles-inl.h"
#include "kernels/peaks.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// `steps` x 12 products of 16 x 16 x 32.
inline double peak_tiles_bf16(int64_t steps) noexcept {
  begin_tiles();
  for (int64_t step = 0; step < 2 * steps; ++step) {
    multiply_tiles<0, 6, 7>();
    multiply_tiles<1, 6, 7>();
    multiply_tiles<2, 6, 7>();
    multiply_tiles<3, 6, 7>();
    multiply_tiles<4, 6, 7>();
    multiply_tiles<5, 6, 7>();
  }
  end_tiles();
  return static_cast<double>(steps) * 12 * kTileRows * kTileRows * kStepPairs * 4;
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

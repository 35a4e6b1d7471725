// What this machine can do at best: multiply-adds on registers and reads of memory. Timed next to a
// kernel, they turn its time into a share of the peak that does not depend on the clock. Kernels
// layer.
#pragma once
#include <cstddef>
#include <cstdint>

namespace quire::kernels {

struct PeakFunctions {
  /// `steps` x 12 independent vector multiply-adds; returns the floating point operations done.
  double (*fma_f32)(int64_t steps) noexcept;
  /// The same with products of bf16 pairs; null where the ISA has none.
  double (*pairs_bf16)(int64_t steps) noexcept;
  /// Reads all bytes (a multiple of 1024, aligned to 64); returns something that depends on them.
  float (*read)(const void* data, size_t bytes) noexcept;
};

}  // namespace quire::kernels

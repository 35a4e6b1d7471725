// The only thing isa/*.cc include: all kernels for one ISA and the one symbol they export,
// quire::kernels::<isa>::table(). Kernels layer.
#pragma once
#include "kernels/backward/table-inl.h"
#include "kernels/coding/table-inl.h"
#include "kernels/decode/table-inl.h"
#include "kernels/kernel_table.h"
#include "kernels/math/math_table-inl.h"
#include "kernels/peaks-inl.h"
#include "kernels/prefill/forward_table-inl.h"
#include "kernels/simd-inl.h"
#include "kernels/tile/tile_table-inl.h"

// Outside HWY_BEFORE_NAMESPACE: baseline instructions only, callable before the CPU has been
// checked.
namespace quire::kernels::QUIRE_ISA_NS {

const KernelTable& table() noexcept;

const KernelTable& table() noexcept {
  static constexpr KernelTable kTable{.isa = Isa::QUIRE_ISA_NS,
                                      .name = HWY_STR(QUIRE_ISA_NS),
                                      .lanes = kLanes,
                                      .tile_f32 = &kTileF32,
                                      .tile_f64 = &kTileF64,
                                      .forward_f32 = &kForward<float>,
                                      .forward_f64 = &kForward<double>,
                                      .pairs = kPairs,
                                      .integers = &kIntegerFunctions,
                                      .bytes = &kIntegerFunctions,
                                      .decode_f32 = &kDecodeF32,
                                      .decode_f64 = &kDecodeF64,
                                      .backward_f32 = &kBackward<float>,
                                      .backward_f64 = &kBackward<double>,
                                      .coding = &kCoding,
                                      .peaks = &kPeaks,
                                      .math = &kMathTable};
  return kTable;
}

}  // namespace quire::kernels::QUIRE_ISA_NS

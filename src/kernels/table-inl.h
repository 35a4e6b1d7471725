// The only thing isa/*.cc include: all kernels for one ISA and the one symbol they export,
// quire::kernels::<isa>::table(). Kernels layer.
#pragma once
#include "kernels/kernel_table.h"
#include "kernels/math_table-inl.h"
#include "kernels/simd-inl.h"
#include "kernels/tile_table-inl.h"

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
                                      .math = &kMathTable};
  return kTable;
}

}  // namespace quire::kernels::QUIRE_ISA_NS

// What the rest of the library sees of kernels/: plain structs and function pointers, one table per
// ISA. Every ISA's object includes this header, so it holds no SIMD type and no inline function
// with a body. Kernels layer.
#pragma once
#include <cstddef>

#include "quire/isa.h"

namespace quire::kernels {

struct MathTable;
struct TileFunctions;

struct KernelTable {
  Isa isa;
  const char* name;               // as QUIRE_ISA spells it
  size_t lanes;                   // floats per vector
  const TileFunctions* tile_f32;  // tile programs
  const TileFunctions* tile_f64;
  const MathTable* math;  // for tests
};

}  // namespace quire::kernels

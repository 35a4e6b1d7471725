// What the rest of the library sees of kernels/: plain structs and function pointers, one table per
// ISA. Every ISA's object includes this header, so it holds no SIMD type and no inline function
// with a body. Kernels layer.
#pragma once
#include <cstddef>

#include "quire/isa.h"

namespace quire::kernels {

template <class T>
struct BackwardFunctions;
template <class T>
struct DecodeFunctions;
template <class T>
struct ForwardFunctions;
struct CodingFunctions;
struct MathTable;
struct PairFunctions;
struct PeakFunctions;
struct TileFunctions;

struct KernelTable {
  Isa isa;
  const char* name;               // as QUIRE_ISA spells it
  size_t lanes;                   // floats per vector
  const TileFunctions* tile_f32;  // tile programs
  const TileFunctions* tile_f64;
  const ForwardFunctions<float>* forward_f32;  // queries across the lanes
  const ForwardFunctions<double>* forward_f64;
  const PairFunctions* pairs;                // null where the ISA has no bf16 products
  const PairFunctions* integers;             // products of codes
  const PairFunctions* bytes;                // the same where all are int8 as they are
  const DecodeFunctions<float>* decode_f32;  // keys across the lanes
  const DecodeFunctions<double>* decode_f64;
  const BackwardFunctions<float>* backward_f32;  // beside those of forward
  const BackwardFunctions<double>* backward_f64;
  const CodingFunctions* coding;  // rows of keys and values to and from codes
  const PeakFunctions* peaks;     // for benchmarks
  const MathTable* math;          // for tests
};

}  // namespace quire::kernels

// The vector types of one ISA, which every kernel file shares; no functions and no tile shapes. One
// ISA per translation unit, so #pragma once is enough (no HWY_TARGET_TOGGLE guards). Kernels layer.
#pragma once
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

// QUIRE_ISA_NS is a namespace of our own, not HWY_NAMESPACE: avx512 and avx512_bf16 are both N_AVX3
// to Highway, and two objects must never define the same inline symbol with different instructions.
#ifndef QUIRE_ISA_NS
#error "include kernels/table-inl.h from kernels/isa/*.cc"
#endif
#if HWY_HAVE_SCALABLE
#error "arrays of vectors need a fixed size: SVE and RVV are not supported; use NEON"
#endif

// Every loop over registers carries this; g++ 12 then keeps acc[R][C] in registers. Not on one lane
// and not under sanitizers: with an emulated fma or a check at every access, the unrolled blocks
// take minutes to compile (avx512.cc: 1 minute instead of more than 4).
#if HWY_TARGET == HWY_SCALAR || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUIRE_UNROLL HWY_UNROLL(1)
#else
#define QUIRE_UNROLL HWY_UNROLL(32)
#endif

// Types and constants only, so no HWY_BEFORE_NAMESPACE here (clang warns about one without
// functions).
namespace quire::kernels::QUIRE_ISA_NS {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using V = hn::Vec<F32>;
using VI = hn::Vec<I32>;
using VU = hn::Vec<U32>;
using M = hn::Mask<F32>;
using F64 = hn::ScalableTag<double>;
using VD = hn::Vec<F64>;
constexpr F32 kF32;
constexpr I32 kI32;
constexpr U32 kU32;
constexpr F64 kF64;
constexpr size_t kLanes = hn::MaxLanes(kF32);  // Lanes(d) is not constexpr in Highway 1.0

}  // namespace quire::kernels::QUIRE_ISA_NS

// AVX-512 with vdpbf16ps, VNNI and permutations of bytes (Zen 4, Sapphire Rapids): as avx512, with
// products of bf16 and of integers. Kernels layer.
#define QUIRE_ISA_NS avx512_bf16
#define QUIRE_BF16_DOT
#define QUIRE_VBMI
#define QUIRE_VNNI
#define HWY_BASELINE_TARGETS HWY_AVX3
#define HWY_COMPILE_ONLY_STATIC
#include <hwy/highway.h>
// Highway 1.0 has no target with these features: add them to the one HWY_BEFORE_NAMESPACE pushes
// from here on.
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512bf16,avx512vbmi,avx512vnni"
#include "kernels/table-inl.h"
static_assert(HWY_TARGET == HWY_AVX3);

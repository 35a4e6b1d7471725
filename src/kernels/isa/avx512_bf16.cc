// AVX-512 with vdpbf16ps and permutations of bytes (Zen 4, Sapphire Rapids): as avx512, and bf16
// products. Kernels layer.
#define QUIRE_ISA_NS avx512_bf16
#define QUIRE_BF16_DOT
#define QUIRE_VBMI
#define HWY_BASELINE_TARGETS HWY_AVX3
#define HWY_COMPILE_ONLY_STATIC
#include <hwy/highway.h>
// Highway 1.0 has no target with these features: add them to the one HWY_BEFORE_NAMESPACE pushes
// from here on.
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512bf16,avx512vbmi"
#include "kernels/table-inl.h"
static_assert(HWY_TARGET == HWY_AVX3);

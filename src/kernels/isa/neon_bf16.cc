// AArch64 with BFDOT (Neoverse V1, N2 and later, Apple M2): as neon, and bf16 products. Kernels
// layer.
#define QUIRE_ISA_NS neon_bf16
#define QUIRE_BF16_DOT
#define HWY_BASELINE_TARGETS HWY_NEON
#define HWY_COMPILE_ONLY_STATIC
#include <hwy/highway.h>
// Highway 1.0 has no target with this feature: add it to the one HWY_BEFORE_NAMESPACE pushes from
// here on. The intrinsics ask for Armv8.2, which every CPU with the feature is.
#undef HWY_TARGET_STR
#define HWY_TARGET_STR "arch=armv8.2-a+crypto+bf16"
#include "kernels/table-inl.h"
static_assert(HWY_TARGET == HWY_NEON);

// x86 with AVX-512 F, BW, CD, DQ, VL: 16 lanes. Kernels layer.
#define QUIRE_ISA_NS avx512
#define HWY_BASELINE_TARGETS HWY_AVX3
#define HWY_COMPILE_ONLY_STATIC
#include "kernels/table-inl.h"
static_assert(HWY_TARGET == HWY_AVX3);

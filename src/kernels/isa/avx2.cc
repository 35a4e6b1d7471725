// x86 with AVX2, FMA, BMI2, F16C: 8 lanes. Kernels layer.
#define QUIRE_ISA_NS avx2
#define HWY_BASELINE_TARGETS HWY_AVX2
#define HWY_COMPILE_ONLY_STATIC
#include "kernels/table-inl.h"
static_assert(HWY_TARGET == HWY_AVX2);

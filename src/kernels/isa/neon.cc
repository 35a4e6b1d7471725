// AArch64: 4 lanes, 32 registers. Kernels layer.
#define QUIRE_ISA_NS neon
#define HWY_BASELINE_TARGETS HWY_NEON
#define HWY_COMPILE_ONLY_STATIC
#include "kernels/table-inl.h"
static_assert(HWY_TARGET == HWY_NEON);

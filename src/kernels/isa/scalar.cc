// Any CPU: one lane, exact FMA in double. The fallback, and the reference for the bits. Kernels
// layer.
#define QUIRE_ISA_NS scalar
#define HWY_COMPILE_ONLY_SCALAR
#include "kernels/table-inl.h"
static_assert(HWY_TARGET == HWY_SCALAR);

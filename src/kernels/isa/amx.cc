// AVX-512 with products of bf16 and of integers, and the tile registers of AMX (Sapphire Rapids and
// later). Kernels layer.
#define QUIRE_ISA_NS amx
#define QUIRE_BF16_DOT
#define QUIRE_VNNI
#define HWY_BASELINE_TARGETS HWY_AVX3
#define HWY_COMPILE_ONLY_STATIC
#include <hwy/highway.h>
// As avx512_bf16.cc. The tile instructions are inline assembly and need no target.
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",avx512bf16,avx512vnni"
#include "kernels/amx/table-inl.h"
static_assert(HWY_TARGET == HWY_AVX3);

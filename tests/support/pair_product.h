// What the instruction for products of bf16 pairs computes in one lane, of each ISA that has one,
// in plain C++ from the manuals: each has an order and roundings of its own. Tests only.
#pragma once
#include <span>

#include "quire/isa.h"

namespace quire::testing {

/// acc and a0 b0 and a1 b1 summed up as the instruction of `isa` does; 0 is the even element.
float bf16_pair_product(Isa isa, float acc, float a0, float a1, float b0, float b1);

/// tdpbf16ps for one element: two chains of fused multiply-adds over the even and over the odd of
/// (mostly 32) numbers, from 0, their sum added to acc; subnormals are 0 everywhere.
float bf16_tile_product(float acc, std::span<const float> a, std::span<const float> b);

/// What recorded results in bf16 are called behind their names, because they have bits of their
/// own; empty where an ISA widens to f32.
const char* pair_bits_name(Isa isa);

}  // namespace quire::testing

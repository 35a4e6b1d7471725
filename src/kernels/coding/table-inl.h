// The primitives that decode and encode rows, collected. Kernels layer.
#pragma once
#include "kernels/coding/decode-inl.h"
#include "kernels/coding/encode-inl.h"

namespace quire::kernels::QUIRE_ISA_NS {

constexpr CodingFunctions kCoding{
    .decode_f32 = &decode_rows_f32, .decode_f64 = &decode_rows_f64, .encode = &encode_rows};

}  // namespace quire::kernels::QUIRE_ISA_NS

// The primitives that decode and encode rows, collected. Kernels layer.
#pragma once
#include "kernels/coding/decode-inl.h"
#include "kernels/coding/encode-inl.h"
#include "kernels/coding/integer_rows-inl.h"

namespace quire::kernels::QUIRE_ISA_NS {

constexpr CodingFunctions kCoding{.decode_f32 = &decode_rows_f32,
                                  .decode_f64 = &decode_rows_f64,
                                  .encode = &encode_rows,
                                  .find_integers = &find_integers,
                                  .integer_rows = &integer_rows};

}  // namespace quire::kernels::QUIRE_ISA_NS

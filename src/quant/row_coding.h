// Converts a public KVFormat to the RowCoding of kernels. Quant layer.
#pragma once
#include <cstdint>

#include "kernels/coding/row_coding.h"
#include "quire/kv_format.h"

namespace quire::quant {

/// `format` exists and fits the head dim.
kernels::RowCoding row_coding(const KVFormat& format, std::int64_t head_dim);

}  // namespace quire::quant

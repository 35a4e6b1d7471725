// What an attention call must satisfy, checked before anything is planned. Texts of errors begin
// with [flex_attention]. Attention layer.
#pragma once
#include <cstdint>

#include "quire/flex_attention.h"

namespace quire::attention {

/// Head dims the kernels take.
inline constexpr std::int64_t kMostDims = 1024;

/// Throws Error naming what does not fit: dtypes, heads, batches, dims, lengths, scale, q_begin,
/// the block mask.
void validate(const AttentionShape& shape, const FlexAttentionOptions& options);

/// The tensors of a run against what the plan was made for.
void validate_run(const AttentionShape& planned, const ConstTensorView& q, const ConstTensorView& k,
                  const ConstTensorView& v);
void validate_planned(const char* name, const ConstTensorView& given, const Shape& shape,
                      DType dtype);
void validate_output(const char* name, const TensorView& view, const Shape& shape, DType dtype);
void validate_row_major(const char* name, const TensorView& view);

/// f64 if one of q, k, v is, else f32.
DType compute_type(const AttentionShape& shape);
/// [batch, q_heads, q_len, v_head_dim]
Shape output_shape(const AttentionShape& shape);

}  // namespace quire::attention

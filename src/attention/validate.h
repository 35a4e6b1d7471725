// What an attention call must satisfy, checked before anything is planned. `where` is the public
// function that was called; texts of errors begin with it. Attention layer.
#pragma once
#include <cstdint>

#include "kernels/attention_order.h"
#include "quire/flex_attention.h"

namespace quire::attention {

/// Head dims the kernels take.
inline constexpr std::int64_t kMostDims = kernels::kMostHeadDim;
/// Batches, heads.
inline constexpr std::int64_t kMostCount = std::int64_t{1} << 30;

/// Throws Error naming what does not fit: dtypes, heads, batches, dims, lengths, scale, q_begin,
/// the block mask.
void validate(const char* where, const AttentionShape& shape, const FlexAttentionOptions& options);

/// AttentionShape::of for a function of any name.
AttentionShape shape_of(const char* where, const ConstTensorView& q, const ConstTensorView& k,
                        const ConstTensorView& v);

/// The tensors of a run against what the plan was made for.
void validate_run(const char* where, const AttentionShape& planned, const ConstTensorView& q,
                  const ConstTensorView& k, const ConstTensorView& v);
void validate_planned(const char* where, const char* name, const ConstTensorView& given,
                      const Shape& shape, DType dtype);
void validate_tensor(const char* where, const char* name, const ConstTensorView& view,
                     const Shape& shape, DType dtype);

/// f64 if one of q, k, v is, else f32.
DType compute_type(const AttentionShape& shape);
/// [batch, q_heads, q_len, v_head_dim]
Shape output_shape(const AttentionShape& shape);

}  // namespace quire::attention

// The checks, in the order in which a user would find the mistakes. Attention layer.
#include "attention/validate.h"

#include <cmath>
#include <utility>

#include "attention/function_names.h"
#include "mask/size_limits.h"
#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"

namespace quire {
namespace attention {
namespace {

using mask::kMostPosition;

void validate_dtypes(const char* where, const AttentionShape& shape) {
  const std::pair<const char*, DType> all[] = {
      {"query", shape.q_dtype}, {"key", shape.k_dtype}, {"value", shape.v_dtype}};
  for (const auto& [name, dtype] : all) {
    if (!is_floating(dtype)) {
      fail(ErrorKind::type, where, "{} must be f32, f64, bf16 or f16; got {}", name,
           dtype_name(dtype));
    }
  }
}

void validate_sizes(const char* where, const AttentionShape& shape) {
  check_size(where, "the batch size", shape.batch, 0, kMostCount);
  check_size(where, "the number of query heads", shape.q_heads, 0, kMostCount);
  check_size(where, "the number of key heads", shape.kv_heads, 0, kMostCount);
  check_size(where, "q_len", shape.q_len, 0, kMostPosition);
  check_size(where, "kv_len", shape.kv_len, 0, kMostPosition);
  check_size(where, "the head dim of query and key", shape.head_dim, 0, kMostDims);
  check_size(where, "the head dim of value", shape.v_head_dim, 1, kMostDims);
}

void validate_heads(const char* where, const AttentionShape& shape, bool enable_gqa) {
  if (shape.q_heads == shape.kv_heads) return;
  if (!enable_gqa) {
    fail(ErrorKind::value, where,
         "query and key must have the same number of heads, or enable_gqa must be set; got {} and "
         "{}",
         shape.q_heads, shape.kv_heads);
  }
  if (shape.kv_heads == 0 || shape.q_heads % shape.kv_heads != 0) {
    fail(ErrorKind::value, where, "q_heads must be a multiple of kv_heads; got {} and {}",
         shape.q_heads, shape.kv_heads);
  }
}

void validate_batches(const char* where, const AttentionShape& shape,
                      const FlexAttentionOptions& options) {
  if (shape.batch == shape.kv_batch) return;
  if (shape.kv_batch != 1) {
    fail(ErrorKind::value, where,
         "query and key must have the same batch size, or key must have 1; got {} and {}",
         shape.batch, shape.kv_batch);
  }
  if (!options.block_mask.has_value()) {
    fail(ErrorKind::value, where, "a key batch of 1 for a query batch of {} needs a block mask",
         shape.batch);
  }
}

void validate_mask(const char* where, const AttentionShape& shape,
                   const FlexAttentionOptions& options) {
  if (!options.block_mask.has_value()) return;
  const BlockMask& mask = *options.block_mask;
  mask.mask_mod();  // throws for an indexed mask
  const auto [q_len, kv_len] = mask.seq_lengths();
  if (q_len != shape.q_len || kv_len != shape.kv_len) {
    fail(ErrorKind::value, where,
         "block_mask was created for {} queries and {} keys; got {} and {}. Make a new one, or "
         "take part of it with rows or adjust",
         q_len, kv_len, shape.q_len, shape.kv_len);
  }
  const std::int64_t blocks = ceil_div(q_len, mask.block_size().q);
  if (mask.q_blocks() < blocks) {
    fail(ErrorKind::value, where, "the block mask has {} rows of blocks where {} queries need {}",
         mask.q_blocks(), q_len, blocks);
  }
  // Of more entries than the queries have, the first count, as in torch.
  if (mask.batch() < shape.batch && mask.batch() != 1) {
    fail(ErrorKind::value, where,
         "the block mask must have a batch of 1, or one of {} or more, as the query; got {}",
         shape.batch, mask.batch());
  }
  if (mask.heads() < shape.q_heads && mask.heads() != 1) {
    fail(ErrorKind::value, where,
         "the block mask must have 1 head, or {} or more, as the query; got {}", shape.q_heads,
         mask.heads());
  }
}

void validate_q_begin(const char* where, const AttentionShape& shape,
                      const FlexAttentionOptions& options) {
  const std::vector<std::int64_t>& begin = options.q_begin;
  if (begin.size() > 1 && static_cast<std::int64_t>(begin.size()) != shape.batch) {
    fail(ErrorKind::value, where,
         "q_begin must have 1 number for all batch entries, or {}, one for each; got {}",
         shape.batch, begin.size());
  }
  for (const std::int64_t one : begin) {
    check_size(where, "q_begin", one, 0, kMostPosition);
    if (options.block_mask.has_value() && one != options.block_mask->q_begin()) {
      fail(ErrorKind::value, where,
           "q_begin must be that of the block mask, {}; got {}. A mask made with q_begin, or "
           "rows(q_begin, q_end) of one, brings it",
           options.block_mask->q_begin(), one);
    }
  }
}

}  // namespace

void validate(const char* where, const AttentionShape& shape, const FlexAttentionOptions& options) {
  validate_dtypes(where, shape);
  validate_sizes(where, shape);
  validate_heads(where, shape, options.enable_gqa);
  validate_batches(where, shape, options);
  validate_mask(where, shape, options);
  validate_q_begin(where, shape, options);
  if (options.scale.has_value() && !std::isfinite(*options.scale))
    fail(ErrorKind::value, where, "scale must be finite; got {}", *options.scale);
}

void validate_planned(const char* where, const char* name, const ConstTensorView& given,
                      const Shape& shape, DType dtype) {
  if (given.shape() == shape && given.dtype() == dtype) return;
  fail(ErrorKind::value, where, "the plan was made for a {} of {} {}; got {} {}", name,
       dtype_name(dtype), to_string(shape), dtype_name(given.dtype()), to_string(given.shape()));
}

void validate_run(const char* where, const AttentionShape& planned, const ConstTensorView& q,
                  const ConstTensorView& k, const ConstTensorView& v) {
  const AttentionShape& s = planned;
  validate_planned(where, "query", q, {s.batch, s.q_heads, s.q_len, s.head_dim}, s.q_dtype);
  validate_planned(where, "key", k, {s.kv_batch, s.kv_heads, s.kv_len, s.head_dim}, s.k_dtype);
  validate_planned(where, "value", v, {s.kv_batch, s.kv_heads, s.kv_len, s.v_head_dim}, s.v_dtype);
}

void validate_tensor(const char* where, const char* name, const ConstTensorView& view,
                     const Shape& shape, DType dtype) {
  if (view.shape() != shape) {
    fail(ErrorKind::value, where, "{} must have shape {}; got {}", name, to_string(shape),
         to_string(view.shape()));
  }
  if (view.dtype() != dtype) {
    fail(ErrorKind::type, where, "{} must be {}; got {}", name, dtype_name(dtype),
         dtype_name(view.dtype()));
  }
}

DType compute_type(const AttentionShape& shape) {
  const bool is_f64 =
      shape.q_dtype == DType::f64 || shape.k_dtype == DType::f64 || shape.v_dtype == DType::f64;
  return is_f64 ? DType::f64 : DType::f32;
}

Shape output_shape(const AttentionShape& shape) {
  return {shape.batch, shape.q_heads, shape.q_len, shape.v_head_dim};
}

AttentionShape shape_of(const char* where, const ConstTensorView& q, const ConstTensorView& k,
                        const ConstTensorView& v) {
  for (const ConstTensorView* view : {&q, &k, &v}) {
    if (view->rank() != 4) {
      fail(ErrorKind::value, where,
           "query, key and value must be [batch, heads, length, dim]; got {}",
           to_string(view->shape()));
    }
  }
  if (q.dim(3) != k.dim(3)) {
    fail(ErrorKind::value, where, "query and key must have the same head dim; got {} and {}",
         q.dim(3), k.dim(3));
  }
  if (k.dim(0) != v.dim(0) || k.dim(1) != v.dim(1) || k.dim(2) != v.dim(2)) {
    fail(ErrorKind::value, where,
         "key and value must have the same batch, heads and length; got {} and {}",
         to_string(k.shape()), to_string(v.shape()));
  }
  return {.batch = q.dim(0),
          .q_heads = q.dim(1),
          .q_len = q.dim(2),
          .head_dim = q.dim(3),
          .kv_batch = k.dim(0),
          .kv_heads = k.dim(1),
          .kv_len = k.dim(2),
          .v_head_dim = v.dim(3),
          .q_dtype = q.dtype(),
          .k_dtype = k.dtype(),
          .v_dtype = v.dtype()};
}

}  // namespace attention

AttentionShape AttentionShape::of(const ConstTensorView& q, const ConstTensorView& k,
                                  const ConstTensorView& v) {
  return attention::shape_of(attention::names::kFlexAttention, q, k, v);
}

}  // namespace quire

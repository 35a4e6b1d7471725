// The problem of a call over dense tensors: three tensors of rank 4 that fit together. Attention
// layer.
#include "attention/validate.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {

AttentionShape attention::shape_of(const char* where, const ConstTensorView& q,
                                   const KVView& k_view, const KVView& v_view) {
  for (const ConstTensorView* view : {&q, &k_view.data, &v_view.data}) {
    if (view->rank() != 4) {
      fail(ErrorKind::value, where,
           "query, key and value must be [batch, heads, length, dim]; got {}",
           to_string(view->shape()));
    }
  }
  const Shape k = k_view.shape(), v = v_view.shape();
  check_head_dims(where, q.dim(3), k[3]);
  if (k[0] != v[0] || k[1] != v[1] || k[2] != v[2]) {
    fail(ErrorKind::value, where,
         "key and value must have the same batch, heads and length; got {} and {}", to_string(k),
         to_string(v));
  }
  return {.batch = q.dim(0),
          .q_heads = q.dim(1),
          .q_len = q.dim(2),
          .head_dim = q.dim(3),
          .kv_batch = k[0],
          .kv_heads = k[1],
          .kv_len = k[2],
          .v_head_dim = v[3],
          .q_dtype = q.dtype(),
          .k_dtype = k_view.dtype(),
          .v_dtype = v_view.dtype(),
          .k_format = k_view.format,
          .v_format = v_view.format};
}

AttentionShape AttentionShape::of(const ConstTensorView& q, const KVView& k, const KVView& v) {
  return attention::shape_of("flex_attention", q, k, v);
}

AttentionProblem AttentionProblem::dense(const ConstTensorView& q, const KVView& k, const KVView& v,
                                         const AttentionOptions& options, const char* function) {
  return dense(attention::shape_of(function, q, k, v), options, function);
}

}  // namespace quire

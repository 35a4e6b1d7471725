// Checks, then broadcasts, then merges. Attention layer.
#include "attention/sdpa_call.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "attention/function_names.h"
#include "attention/validate.h"
#include "mask/size_limits.h"
#include "quire/error.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"

namespace quire::attention {
namespace {

// The axes in front of [heads, length, dim].
Shape leading_axes(const ConstTensorView& view) {
  Shape axes;
  for (std::size_t i = 0; i + 3 < view.rank(); ++i) axes.push_back(view.shape()[i]);
  return axes;
}

std::int64_t heads_of(const ConstTensorView& view) { return view.rank() < 3 ? 1 : view.dim(-3); }

// Nothing if a size is neither equal nor 1.
std::optional<Shape> broadcast(const Shape& a, const Shape& b) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  Shape both = longer;
  const std::size_t more = longer.rank() - shorter.rank();
  for (std::size_t i = 0; i < shorter.rank(); ++i) {
    std::int64_t& size = both[more + i];
    if (size == 1) size = shorter[i];
    if (shorter[i] != 1 && shorter[i] != size) return std::nullopt;
  }
  return both;
}

Shape common_batch(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v) {
  std::optional<Shape> all = broadcast(leading_axes(k), leading_axes(v));
  if (all) all = broadcast(leading_axes(q), *all);
  if (!all) {
    fail(ErrorKind::value, names::kSdpa,
         "the axes before [heads, length, dim] must be equal or 1; got {}, {} and {}",
         to_string(q.shape()), to_string(k.shape()), to_string(v.shape()));
  }
  return *all;
}

void validate_sizes(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v) {
  for (const ConstTensorView* view : {&q, &k, &v}) {
    if (view->rank() < 2) {
      fail(ErrorKind::value, names::kSdpa,
           "query, key and value must be [..., length, dim]; got {}", to_string(view->shape()));
    }
  }
  validate_dtypes(q.dtype(), k.dtype(), v.dtype());
  if (q.dim(-1) != k.dim(-1)) {
    fail(ErrorKind::value, names::kSdpa, "query and key must have the same head dim; got {} and {}",
         q.dim(-1), k.dim(-1));
  }
  if (k.dim(-2) != v.dim(-2)) {
    fail(ErrorKind::value, names::kSdpa, "key and value must have the same length; got {} and {}",
         k.dim(-2), v.dim(-2));
  }
  check_size(names::kSdpa, "the number of query heads", heads_of(q), 0, kMostCount);
  check_size(names::kSdpa, "the number of key heads", heads_of(k), 0, kMostCount);
  check_size(names::kSdpa, "the number of value heads", heads_of(v), 0, kMostCount);
  check_size(names::kSdpa, "q_len", q.dim(-2), 0, mask::kMostPosition);
  check_size(names::kSdpa, "kv_len", k.dim(-2), 0, mask::kMostPosition);
}

// [batch..., heads, rows, dim] as [B, heads, rows, dim]. A copy if strides cannot say that; it goes
// to `held`.
ConstTensorView merged(const ConstTensorView& view, std::vector<Tensor>& held) {
  const std::size_t axes = view.rank() - 3;
  std::int64_t size = 1, stride = 0;
  bool merges = true;
  for (std::size_t i = axes; i-- > 0;) {
    const std::int64_t one = view.shape()[i], step = view.strides()[i];
    if (one == 1) continue;
    if (size == 1)
      stride = step;
    else
      merges &= step == stride * size;
    size *= one;
  }
  const Shape &shape = view.shape(), &steps = view.strides();
  const Shape four{size, shape[axes], shape[axes + 1], shape[axes + 2]};
  if (!merges && view.numel() > 0) {
    held.push_back(contiguous(view));
    return ConstTensorView(held.back().data(), view.dtype(), four);
  }
  return ConstTensorView(view.data(), view.dtype(), four,
                         {stride, steps[axes], steps[axes + 1], steps[axes + 2]});
}

Shape with_heads(const Shape& batch, std::int64_t heads, std::int64_t rows, std::int64_t dims) {
  Shape shape = batch;
  for (const std::int64_t size : {heads, rows, dims}) shape.push_back(size);
  return shape;
}

}  // namespace

void validate_dtypes(DType q, DType k, DType v) {
  const std::pair<const char*, DType> all[] = {{"query", q}, {"key", k}, {"value", v}};
  for (const auto& [name, dtype] : all) {
    if (!is_floating(dtype))
      fail(ErrorKind::type, names::kSdpa, "{} must be f32, f64, bf16 or f16; got {}", name,
           dtype_name(dtype));
  }
  if (q != k || q != v) {
    fail(ErrorKind::runtime, names::kSdpa,
         "query, key and value must have the same dtype; got {}, {} and {}", dtype_name(q),
         dtype_name(k), dtype_name(v));
  }
}

SdpaHeads common_heads(std::int64_t q, std::int64_t k, std::int64_t v, bool enable_gqa) {
  if (k != v && k != 1 && v != 1) {
    fail(ErrorKind::value, names::kSdpa,
         "key and value must have the same number of heads, or 1; got {} and {}", k, v);
  }
  const std::int64_t kv = k == 1 ? v : k;
  if (q == kv || kv == 1) return {q, kv};
  if (q == 1) return {kv, kv};
  if (!enable_gqa) {
    fail(
        ErrorKind::value, names::kSdpa,
        "query and key must have the same number of heads, or 1, or enable_gqa must be set; got {} "
        "and {}",
        q, kv);
  }
  if (kv == 0 || q % kv != 0)
    fail(ErrorKind::value, names::kSdpa, "q_heads must be a multiple of kv_heads; got {} and {}", q,
         kv);
  return {q, kv};
}

void validate_options(const SdpaOptions& options) {
  if (options.scale.has_value() && !std::isfinite(*options.scale))
    fail(ErrorKind::value, names::kSdpa, "scale must be finite; got {}", *options.scale);
  if (!(options.dropout_p >= 0 && options.dropout_p <= 1))
    fail(ErrorKind::value, names::kSdpa, "dropout_p must be in 0..1; got {}", options.dropout_p);
  if (options.is_causal && !std::holds_alternative<std::monostate>(options.attn_mask)) {
    fail(ErrorKind::value, names::kSdpa,
         "Explicit attn_mask should not be set when is_causal=True: give a rule such as causal & "
         "mask");
  }
}

SdpaCall sdpa_call(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                   const SdpaOptions& options) {
  validate_sizes(q, k, v);
  const SdpaHeads heads = common_heads(heads_of(q), heads_of(k), heads_of(v), options.enable_gqa);
  SdpaCall call;
  call.batch = common_batch(q, k, v);
  check_size(names::kSdpa, "the batch size", element_count(call.batch), 0, kMostCount);
  validate_options(options);
  const std::int64_t q_len = q.dim(-2), kv_len = k.dim(-2), dims = q.dim(-1);
  call.q = merged(q.expand(with_heads(call.batch, heads.q, q_len, dims)), call.held);
  call.k = merged(k.expand(with_heads(call.batch, heads.kv, kv_len, dims)), call.held);
  call.v = merged(v.expand(with_heads(call.batch, heads.kv, kv_len, v.dim(-1))), call.held);
  call.shape = AttentionShape::of(call.q, call.k, call.v);
  call.out_shape = with_heads(call.batch, heads.q, q_len, v.dim(-1));
  if (std::max({q.rank(), k.rank(), v.rank()}) == 2) call.out_shape.erase(0);
  return call;
}

}  // namespace quire::attention

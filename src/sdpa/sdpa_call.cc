// Checks the arguments, broadcasts axes of size 1, then merges leading axes. Sdpa layer.
#include "sdpa/sdpa_call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "attention/validate.h"
#include "mask/size_limits.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"

namespace quire::sdpa {
namespace {

// The axes in front of [heads, length, dim].
Shape leading_axes(const ConstTensorView& view) {
  Shape axes;
  for (std::size_t i = 0; i + 3 < view.rank(); ++i) axes.push_back(view.shape()[i]);
  return axes;
}

std::int64_t heads_of(const ConstTensorView& view) { return view.rank() < 3 ? 1 : view.dim(-3); }

// nullopt if sizes are neither equal nor 1.
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

Shape common_batch(const char* where, const ConstTensorView& q, const ConstTensorView& k,
                   const ConstTensorView& v) {
  std::optional<Shape> all = broadcast(leading_axes(k), leading_axes(v));
  if (all) all = broadcast(leading_axes(q), *all);
  if (!all) {
    fail(ErrorKind::value, where,
         "the axes before [heads, length, dim] must be equal or 1; got {}, {} and {}",
         to_string(q.shape()), to_string(k.shape()), to_string(v.shape()));
  }
  return *all;
}

// All must be floats of the same dtype.
void validate_dtypes(const char* where, DType q, DType k, DType v) {
  attention::check_float(where, "query", q);
  attention::check_float(where, "key", k);
  attention::check_float(where, "value", v);
  if (q != k || q != v) {
    fail(ErrorKind::runtime, where,
         "query, key and value must have the same dtype; got {}, {} and {}", dtype_name(q),
         dtype_name(k), dtype_name(v));
  }
}

void validate_sizes(const char* where, const ConstTensorView& q, const ConstTensorView& k,
                    const ConstTensorView& v) {
  for (const ConstTensorView* view : {&q, &k, &v}) {
    if (view->rank() < 2) {
      fail(ErrorKind::value, where, "query, key and value must be [..., length, dim]; got {}",
           to_string(view->shape()));
    }
  }
  validate_dtypes(where, q.dtype(), k.dtype(), v.dtype());
  attention::check_head_dims(where, q.dim(-1), k.dim(-1));
  if (k.dim(-2) != v.dim(-2)) {
    fail(ErrorKind::value, where, "key and value must have the same length; got {} and {}",
         k.dim(-2), v.dim(-2));
  }
  check_size(where, "the number of query heads", heads_of(q), 0, attention::kMostCount);
  check_size(where, "the number of key heads", heads_of(k), 0, attention::kMostCount);
  check_size(where, "the number of value heads", heads_of(v), 0, attention::kMostCount);
  check_size(where, "q_len", q.dim(-2), 0, mask::kMostPosition);
  check_size(where, "kv_len", k.dim(-2), 0, mask::kMostPosition);
}

// [batch..., heads, rows, dim] as [B, heads, rows, dim]. A copy, kept in `held`, if strides cannot
// express that.
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

// Heads after broadcasting: equal, or 1 on any side, or groups with enable_gqa. kv is q, or 1, or
// divides it.
struct SdpaHeads {
  std::int64_t q = 0, kv = 0;
};

SdpaHeads common_heads(const char* where, std::int64_t q, std::int64_t k, std::int64_t v,
                       bool enable_gqa) {
  if (k != v && k != 1 && v != 1) {
    fail(ErrorKind::value, where,
         "key and value must have the same number of heads, or 1; got {} and {}", k, v);
  }
  const std::int64_t kv = k == 1 ? v : k;
  if (q == kv || kv == 1) return {q, kv};
  if (q == 1) return {kv, kv};
  if (!enable_gqa) {
    fail(
        ErrorKind::value, where,
        "query and key must have the same number of heads, or 1, or enable_gqa must be set; got {} "
        "and {}",
        q, kv);
  }
  if (kv == 0 || q % kv != 0)
    fail(ErrorKind::value, where, "q_heads must be a multiple of kv_heads; got {} and {}", q, kv);
  return {q, kv};
}

void validate_options(const char* where, const SdpaOptions& options) {
  attention::validate_scale(where, options.scale);
  attention::validate_dropout(where, options.dropout_p);
  if (options.is_causal && !std::holds_alternative<std::monostate>(options.attn_mask)) {
    fail(ErrorKind::value, where,
         "Explicit attn_mask should not be set when is_causal=True: give a rule such as causal & "
         "mask");
  }
}

Jagged with_heads(Jagged jagged, std::int64_t heads) {
  const bool by_token = jagged.order == JaggedOrder::kTokens;
  const std::int64_t total = jagged.values.dim(by_token ? 0 : 1);
  jagged.values = jagged.values.expand(
      attention::jagged_shape(jagged.order, total, heads, jagged.values.dim(2)));
  return jagged;
}

// In every sequence the last query sees the last key.
MaskMod bottom_right(const attention::JaggedBatch& batch) {
  std::vector<std::int64_t> shift(batch.q_rows.rows.length.size());
  for (std::size_t i = 0; i < shift.size(); ++i)
    shift[i] = batch.k_rows.rows.length[i] - batch.q_rows.rows.length[i];
  const Buffer table(shift, {.name = "shift"});
  return [&](const auto& b, const auto&, const auto& q_idx, const auto& kv_idx) {
    return q_idx + table[b] >= kv_idx;
  };
}

SdpaRules jagged_rules(const char* where, const attention::JaggedBatch& batch,
                       const SdpaOptions& options) {
  if (std::holds_alternative<ConstTensorView>(options.attn_mask))
    fail(ErrorKind::value, where, "the attn_mask of a jagged batch must be a rule; got a tensor");
  if (const auto* rule = std::get_if<MaskMod>(&options.attn_mask)) return {.mask_mod = *rule};
  if (!options.is_causal || batch.q_rows.count() == 0) return {};
  if (options.alignment == CausalAlignment::kTopLeft) return {.mask_mod = mods::causal()};
  return {.mask_mod = bottom_right(batch)};
}

}  // namespace

bool SdpaCall::is_empty() const {
  if (jagged.has_value()) return shape.v_head_dim == 0;
  return element_count(out_shape) == 0 || shape.kv_len == 0;
}

Shape SdpaCall::rows() const {
  Shape rows = out_shape;
  rows.erase(rows.rank() - 1);
  return rows;
}

SdpaCall sdpa_call(const char* function, const ConstTensorView& q, const ConstTensorView& k,
                   const ConstTensorView& v, const SdpaOptions& options) {
  validate_sizes(function, q, k, v);
  const SdpaHeads heads =
      common_heads(function, heads_of(q), heads_of(k), heads_of(v), options.enable_gqa);
  SdpaCall call;
  call.function = function;
  call.batch = common_batch(function, q, k, v);
  check_size(function, "the batch size", element_count(call.batch), 0, attention::kMostCount);
  validate_options(function, options);
  const std::int64_t q_len = q.dim(-2), kv_len = k.dim(-2), dims = q.dim(-1);
  call.q = merged(q.expand(with_heads(call.batch, heads.q, q_len, dims)), call.held);
  call.k = merged(k.expand(with_heads(call.batch, heads.kv, kv_len, dims)), call.held);
  call.v = merged(v.expand(with_heads(call.batch, heads.kv, kv_len, v.dim(-1))), call.held);
  call.shape = attention::shape_of(function, call.q, call.k, call.v);
  call.out_shape = with_heads(call.batch, heads.q, q_len, v.dim(-1));
  if (std::max({q.rank(), k.rank(), v.rank()}) == 2) call.out_shape.erase(0);
  call.rules = sdpa_rules(function, options, {call.batch, heads.q, q_len, kv_len});
  return call;
}

SdpaCall sdpa_call(const char* function, const Jagged& q, const Jagged& k, const Jagged& v,
                   const SdpaOptions& options) {
  attention::JaggedBatch batch = attention::read_batch(function, q, k, v);
  const attention::JaggedSequences &q_rows = batch.q_rows, &k_rows = batch.k_rows,
                                   &v_rows = batch.v_rows;
  validate_dtypes(function, q.values.dtype(), k.values.dtype(), v.values.dtype());
  attention::check_head_dims(function, q_rows.dim, k_rows.dim);
  const SdpaHeads heads =
      common_heads(function, q_rows.heads, k_rows.heads, v_rows.heads, options.enable_gqa);
  validate_options(function, options);
  if (options.wide_out) fail(ErrorKind::value, function, "wide_out is not for jagged batches");
  batch.q = with_heads(q, heads.q);
  batch.k = with_heads(k, heads.kv);
  batch.v = with_heads(v, heads.kv);
  batch.q_rows.heads = heads.q;
  batch.k_rows.heads = batch.v_rows.heads = heads.kv;
  SdpaCall call{.q = batch.q.values, .k = batch.k.values, .v = batch.v.values};
  call.function = function;
  call.shape = {.head_dim = q_rows.dim,
                .v_head_dim = v_rows.dim,
                .q_dtype = q.values.dtype(),
                .k_dtype = k.values.dtype(),
                .v_dtype = v.values.dtype()};
  call.out_shape = attention::jagged_shape(q.order, q_rows.total, heads.q, v_rows.dim);
  call.rules = jagged_rules(function, batch, options);
  call.jagged = std::move(batch);
  return call;
}

AttentionProblem sdpa_problem(SdpaCall& call, const SdpaOptions& options) {
  const AttentionOptions all{.score_mod = call.rules.score_mod,
                             .mask_mod = call.rules.mask_mod,
                             .scale = options.scale,
                             .enable_gqa = true,
                             .key_indices = options.key_indices,
                             .dropout_p = options.dropout_p,
                             .seed = options.seed,
                             .sinks = options.sinks,
                             .weight_mod = options.weight_mod,
                             .normalize = options.normalize,
                             .rope = options.rope,
                             .executor = options.executor};
  if (call.jagged.has_value())
    return attention::jagged_problem(std::move(*call.jagged), all, call.function);
  return AttentionProblem::dense(call.shape, all, call.function);
}

}  // namespace quire::sdpa

// scaled_dot_product_attention over jagged batches: flex_attention's request with dropout, or the
// reference, sequence by sequence. Attention layer.
#include "attention/sdpa_jagged.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "attention/function_names.h"
#include "attention/jagged_request.h"
#include "attention/jagged_sequences.h"
#include "attention/sdpa_backend.h"
#include "attention/sdpa_call.h"
#include "attention/sdpa_math.h"
#include "plan/forward_plan.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "quire/scaled_dot_product_attention.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {
namespace attention {
namespace {

Jagged with_heads(Jagged jagged, std::int64_t heads) {
  const bool by_token = jagged.order == JaggedOrder::kTokens;
  const std::int64_t total = jagged.values.dim(by_token ? 0 : 1);
  jagged.values =
      jagged.values.expand(jagged_shape(jagged.order, total, heads, jagged.values.dim(2)));
  return jagged;
}

}  // namespace

JaggedCall jagged_call(const Jagged& q, const Jagged& k, const Jagged& v,
                       const SdpaOptions& options) {
  JaggedCall call{.q = q,
                  .k = k,
                  .v = v,
                  .q_rows = read_sequences(names::kSdpa, "query", q),
                  .k_rows = read_sequences(names::kSdpa, "key", k),
                  .v_rows = read_sequences(names::kSdpa, "value", v)};
  check_lengths(names::kSdpa, call.q_rows, call.k_rows, call.v_rows);
  validate_dtypes(q.values.dtype(), k.values.dtype(), v.values.dtype());
  if (call.q_rows.dim != call.k_rows.dim) {
    fail(ErrorKind::value, names::kSdpa, "query and key must have the same head dim; got {} and {}",
         call.q_rows.dim, call.k_rows.dim);
  }
  const SdpaHeads heads =
      common_heads(call.q_rows.heads, call.k_rows.heads, call.v_rows.heads, options.enable_gqa);
  validate_options(options);
  if (options.wide_out) fail(ErrorKind::value, names::kSdpa, "wide_out is not for jagged batches");
  if (std::holds_alternative<ConstTensorView>(options.attn_mask)) {
    fail(ErrorKind::value, names::kSdpa,
         "the attn_mask of a jagged batch must be a rule; got a tensor");
  }
  call.q = with_heads(q, heads.q);
  call.k = with_heads(k, heads.kv);
  call.v = with_heads(v, heads.kv);
  return call;
}

namespace {

// Of every sequence: the last query sees the last key.
MaskMod bottom_right(const JaggedCall& call) {
  std::vector<std::int64_t> shift(call.q_rows.rows.length.size());
  for (std::size_t i = 0; i < shift.size(); ++i)
    shift[i] = call.k_rows.rows.length[i] - call.q_rows.rows.length[i];
  const Buffer table(shift, {.name = "shift"});
  return [&](auto b, auto, auto q_idx, auto kv_idx) { return q_idx + table[b] >= kv_idx; };
}

}  // namespace

SdpaRules jagged_rules(const JaggedCall& call, const SdpaOptions& options) {
  if (const auto* rule = std::get_if<MaskMod>(&options.attn_mask)) return {.mask_mod = *rule};
  if (!options.is_causal || call.q_rows.count() == 0) return {};
  if (options.alignment == CausalAlignment::kTopLeft) return {.mask_mod = mods::causal()};
  return {.mask_mod = bottom_right(call)};
}

plan::ForwardRequest jagged_sdpa_request(const JaggedCall& call, const SdpaOptions& options) {
  plan::ForwardRequest request = jagged_request(names::kSdpa, call.q, call.k, call.v,
                                                {.mask_mod = jagged_rules(call, options).mask_mod,
                                                 .scale = options.scale,
                                                 .enable_gqa = true,
                                                 .executor = options.executor});
  request.dropout = {.p = options.dropout_p, .seed = options.seed};
  return request;
}

}  // namespace attention

namespace {

using attention::JaggedCall;
using attention::JaggedSequences;

// [1, heads, rows, dim] into a view of that shape whose rows are contiguous.
void copy_rows(const Tensor& from, const TensorView& to) {
  const auto bytes = static_cast<std::size_t>(from.dim(3)) * dtype_size(from.dtype());
  const auto* at = static_cast<const char*>(from.data());
  for (std::int64_t h = 0; h < to.dim(1); ++h)
    for (std::int64_t row = 0; row < to.dim(2); ++row, at += bytes)
      std::memcpy(to.select(0, 0).select(0, h).select(0, row).data(), at, bytes);
}

attention::JaggedOutputs run_math(const JaggedCall& call, const SdpaOptions& options) {
  const attention::SdpaRules rules = attention::jagged_rules(call, options);
  const auto part = [](const auto& values, JaggedOrder order, const JaggedSequences& sequences,
                       std::size_t i) {
    const std::int64_t begin = sequences.rows.begin[i];
    return attention::four_axes(values, order).slice(2, begin, begin + sequences.rows.length[i]);
  };
  const std::int64_t heads = call.q.values.dim(call.q.order == JaggedOrder::kTokens);
  const auto shape = [&](std::int64_t dim) {
    return attention::jagged_shape(call.q.order, call.q_rows.total, heads, dim);
  };
  const DType dtype = call.q.values.dtype();
  const DType numbers = dtype == DType::f64 ? DType::f64 : DType::f32;
  attention::JaggedOutputs made{.out = Tensor(shape(call.v_rows.dim), dtype),
                                .aux = {.lse = Tensor(shape(1), numbers)}};
  if (made.out.numel() == 0) return made;
  for (std::size_t i = 0; i < call.q_rows.rows.length.size(); ++i) {
    if (call.q_rows.rows.length[i] == 0) continue;
    const attention::MathOutput one =
        attention::sdpa_math(part(call.q.values, call.q.order, call.q_rows, i),
                             part(call.k.values, call.k.order, call.k_rows, i),
                             part(call.v.values, call.v.order, call.v_rows, i), rules, options,
                             static_cast<std::int64_t>(i));
    copy_rows(one.out, part(made.out.view(), call.q.order, call.q_rows, i));
    const Shape rows{1, heads, call.q_rows.rows.length[i], 1};
    copy_rows(one.lse.reshape(rows), part(made.aux.lse->view(), call.q.order, call.q_rows, i));
  }
  return made;
}

}  // namespace

Tensor scaled_dot_product_attention(const Jagged& q, const Jagged& k, const Jagged& v,
                                    const SdpaOptions& options) {
  const FloatEnv float_env;
  const JaggedCall call = attention::jagged_call(q, k, v, options);
  attention::JaggedOutputs made;
  const SDPBackend backend = attention::required_backend(call.problem(), options);
  if (backend == SDPBackend::kMath || call.v_rows.dim == 0) {  // of no values: nothing
    made = run_math(call, options);
    const Shape& values = made.out.shape();
    made.aux.lse = made.aux.lse->reshape({values[0], values[1]});
  } else {
    plan::ForwardPlan plan(attention::jagged_sdpa_request(call, options));
    made = attention::run_jagged(plan, call.q, call.k, call.v, {.lse = options.lse != nullptr});
  }
  if (options.lse != nullptr) *options.lse = *made.aux.lse;
  return made.out;
}

std::vector<std::string> why_not(SDPBackend backend, const Jagged& q, const Jagged& k,
                                 const Jagged& v, const SdpaOptions& options) {
  const FloatEnv float_env;
  try {
    return attention::backend_reasons(backend, attention::jagged_call(q, k, v, options).problem(),
                                      options);
  } catch (const Error& error) {  // no backend computes a call that is wrong
    return {error.what()};
  }
}

SDPBackend choose_backend(const Jagged& q, const Jagged& k, const Jagged& v,
                          const SdpaOptions& options) {
  const FloatEnv float_env;
  try {
    return attention::first_backend(attention::jagged_call(q, k, v, options).problem(), options);
  } catch (const Error&) {
    return SDPBackend::kError;
  }
}

}  // namespace quire

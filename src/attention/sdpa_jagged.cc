// scaled_dot_product_attention over jagged batches: flex_attention's request with dropout, or the
// reference, sequence by sequence. Attention layer.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "attention/jagged_request.h"
#include "attention/jagged_sequences.h"
#include "attention/sdpa_backend.h"
#include "attention/sdpa_call.h"
#include "attention/sdpa_math.h"
#include "plan/forward_plan.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "quire/scaled_dot_product_attention.h"

namespace quire {
namespace {

using attention::JaggedSequences;

constexpr const char* kWhere = "scaled_dot_product_attention";

// A call, checked, with heads of size 1 broadcast.
struct JaggedCall {
  Jagged q, k, v;
  JaggedSequences q_rows, k_rows, v_rows;

  attention::BackendProblem problem() const {
    return {q.values.dtype(), q.values.dim(2), v.values.dim(2)};
  }
};

Jagged with_heads(Jagged jagged, std::int64_t heads) {
  const bool by_token = jagged.order == JaggedOrder::kTokens;
  const std::int64_t total = jagged.values.dim(by_token ? 0 : 1);
  jagged.values = jagged.values.expand(
      attention::jagged_shape(jagged.order, total, heads, jagged.values.dim(2)));
  return jagged;
}

JaggedCall checked_call(const Jagged& q, const Jagged& k, const Jagged& v,
                        const SdpaOptions& options) {
  JaggedCall call{.q = q,
                  .k = k,
                  .v = v,
                  .q_rows = attention::read_sequences(kWhere, "query", q),
                  .k_rows = attention::read_sequences(kWhere, "key", k),
                  .v_rows = attention::read_sequences(kWhere, "value", v)};
  attention::check_lengths(kWhere, call.q_rows, call.k_rows, call.v_rows);
  attention::validate_dtypes(q.values.dtype(), k.values.dtype(), v.values.dtype());
  if (call.q_rows.dim != call.k_rows.dim) {
    throw Error(ErrorKind::value,
                "[scaled_dot_product_attention] query and key must have the same head dim; got " +
                    std::to_string(call.q_rows.dim) + " and " + std::to_string(call.k_rows.dim));
  }
  const attention::SdpaHeads heads = attention::common_heads(call.q_rows.heads, call.k_rows.heads,
                                                             call.v_rows.heads, options.enable_gqa);
  attention::validate_options(options);
  if (std::holds_alternative<ConstTensorView>(options.attn_mask)) {
    throw Error(
        ErrorKind::value,
        "[scaled_dot_product_attention] the attn_mask of a jagged batch must be a rule; got "
        "a tensor");
  }
  call.q = with_heads(q, heads.q);
  call.k = with_heads(k, heads.kv);
  call.v = with_heads(v, heads.kv);
  return call;
}

// Of every sequence: the last query sees the last key.
MaskMod bottom_right(const JaggedCall& call) {
  std::vector<std::int64_t> shift(call.q_rows.rows.length.size());
  for (std::size_t i = 0; i < shift.size(); ++i)
    shift[i] = call.k_rows.rows.length[i] - call.q_rows.rows.length[i];
  const Buffer table(shift, {.name = "shift"});
  return [&](auto b, auto, auto q_idx, auto kv_idx) { return q_idx + table[b] >= kv_idx; };
}

attention::SdpaRules rules_of(const JaggedCall& call, const SdpaOptions& options) {
  if (const auto* rule = std::get_if<MaskMod>(&options.attn_mask)) return {.mask_mod = *rule};
  if (!options.is_causal || call.q_rows.count() == 0) return {};
  if (options.alignment == CausalAlignment::kTopLeft) return {.mask_mod = mods::causal()};
  return {.mask_mod = bottom_right(call)};
}

// [1, heads, rows, dim] into a view of that shape whose rows are contiguous.
void copy_rows(const Tensor& from, const TensorView& to) {
  const auto bytes = static_cast<std::size_t>(from.dim(3)) * dtype_size(from.dtype());
  const auto* at = static_cast<const char*>(from.data());
  for (std::int64_t h = 0; h < to.dim(1); ++h)
    for (std::int64_t row = 0; row < to.dim(2); ++row, at += bytes)
      std::memcpy(to.select(0, 0).select(0, h).select(0, row).data(), at, bytes);
}

Tensor run_math(const JaggedCall& call, const SdpaOptions& options) {
  const attention::SdpaRules rules = rules_of(call, options);
  const auto part = [](const auto& values, JaggedOrder order, const JaggedSequences& sequences,
                       std::size_t i) {
    const std::int64_t begin = sequences.rows.begin[i];
    return attention::four_axes(values, order).slice(2, begin, begin + sequences.rows.length[i]);
  };
  Tensor out(attention::jagged_shape(call.q.order, call.q_rows.total,
                                     call.q.values.dim(call.q.order == JaggedOrder::kTokens),
                                     call.v_rows.dim),
             call.q.values.dtype());
  if (out.numel() == 0) return out;
  for (std::size_t i = 0; i < call.q_rows.rows.length.size(); ++i) {
    if (call.q_rows.rows.length[i] == 0 || call.k_rows.rows.length[i] == 0) continue;
    copy_rows(attention::sdpa_math(part(call.q.values, call.q.order, call.q_rows, i),
                                   part(call.k.values, call.k.order, call.k_rows, i),
                                   part(call.v.values, call.v.order, call.v_rows, i), rules,
                                   options, static_cast<std::int64_t>(i)),
              part(out.view(), call.q.order, call.q_rows, i));
  }
  return out;
}

}  // namespace

Tensor scaled_dot_product_attention(const Jagged& q, const Jagged& k, const Jagged& v,
                                    const SdpaOptions& options) {
  const JaggedCall call = checked_call(q, k, v, options);
  if (attention::required_backend(call.problem(), options) == SDPBackend::kMath)
    return run_math(call, options);
  plan::ForwardRequest request =
      attention::jagged_request(call.q, call.k, call.v,
                                {.mask_mod = rules_of(call, options).mask_mod,
                                 .scale = options.scale,
                                 .enable_gqa = true,
                                 .executor = options.executor},
                                kWhere);
  request.dropout = {.p = options.dropout_p, .seed = options.seed};
  plan::ForwardPlan plan(std::move(request));
  return attention::run_jagged(plan, call.q, call.k, call.v).out;
}

std::vector<std::string> why_not(SDPBackend backend, const Jagged& q, const Jagged& k,
                                 const Jagged& v, const SdpaOptions& options) {
  try {
    return attention::backend_reasons(backend, checked_call(q, k, v, options).problem(), options);
  } catch (const Error& error) {  // no backend computes a call that is wrong
    return {error.what()};
  }
}

SDPBackend choose_backend(const Jagged& q, const Jagged& k, const Jagged& v,
                          const SdpaOptions& options) {
  try {
    return attention::first_backend(checked_call(q, k, v, options).problem(), options);
  } catch (const Error&) {
    return SDPBackend::kError;
  }
}

}  // namespace quire

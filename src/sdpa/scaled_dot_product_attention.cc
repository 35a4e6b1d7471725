// scaled_dot_product_attention, dense and jagged: check, turn masks into rules, choose a backend,
// run it. Sdpa layer.
#include "quire/scaled_dot_product_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "attention/validate.h"
#include "mask/size_limits.h"
#include "quire/error.h"
#include "reference/attention.h"
#include "runtime/float_env.h"
#include "sdpa/sdpa_call.h"

namespace quire {
namespace {

using sdpa::SdpaCall;

constexpr const char* kSdpa = "scaled_dot_product_attention";

// ---- which backend computes a call, and why the others do not

constexpr SDPBackend kInOrder[] = {SDPBackend::kFlashAttention, SDPBackend::kEfficientAttention,
                                   SDPBackend::kMath};

const char* name_of(SDPBackend backend) {
  switch (backend) {
    case SDPBackend::kMath:
      return "MATH";
    case SDPBackend::kFlashAttention:
      return "FLASH_ATTENTION";
    case SDPBackend::kEfficientAttention:
      return "EFFICIENT_ATTENTION";
    case SDPBackend::kError:
      break;
  }
  return "ERROR";
}

// Every reason why a backend cannot compute a valid call; none if it can.
std::vector<std::string> backend_reasons(SDPBackend backend, const SdpaCall& call,
                                         const SdpaOptions& options) {
  const AttentionShape& shape = call.shape;
  const char* const name = name_of(backend);
  if (std::find(std::begin(kInOrder), std::end(kInOrder), backend) == std::end(kInOrder))
    return {"ERROR is not a backend: it says that none is left."};
  std::vector<std::string> reasons;
  const auto add = [&]<class... Args>(fmt::format_string<Args...> text, Args&&... args) {
    reasons.push_back(fmt::format(text, std::forward<Args>(args)...));
  };
  if (std::find(options.backends.begin(), options.backends.end(), backend) ==
      options.backends.end())
    add("{} is not among the backends that may be used.", name);
  if (backend == SDPBackend::kMath) {
    if (call.jagged.has_value() && options.key_indices.has_value())
      add("{} takes no key_indices of jagged batches.", name);
    return reasons;
  }
  if (std::max(shape.head_dim, shape.v_head_dim) > attention::kMostDims) {
    add("{} takes head dims of 0 to {}; got {} for query and key and {} for value.", name,
        attention::kMostDims, shape.head_dim, shape.v_head_dim);
  }
  return reasons;
}

// The first of FLASH, EFFICIENT, MATH that can compute the call; kError if none can.
SDPBackend first_backend(const SdpaCall& call, const SdpaOptions& options) {
  for (const SDPBackend backend : kInOrder)
    if (backend_reasons(backend, call, options).empty()) return backend;
  return SDPBackend::kError;
}

// The same, but throws Error with all reasons if no backend is left.
SDPBackend required_backend(const SdpaCall& call, const SdpaOptions& options) {
  const SDPBackend found = first_backend(call, options);
  if (found != SDPBackend::kError) return found;
  std::string text =
      "[scaled_dot_product_attention] No viable backend for scaled_dot_product_attention was "
      "found.";
  for (const SDPBackend backend : kInOrder)
    for (const std::string& reason : backend_reasons(backend, call, options)) text += " " + reason;
  throw Error(ErrorKind::runtime, text);
}

struct Outputs {
  Tensor out, lse;
};

// ---- the MATH backend: the f64 reference, one element at a time, rounded once

std::optional<std::vector<double>> numbers_of(const std::optional<Buffer>& sinks) {
  if (!sinks.has_value()) return std::nullopt;
  std::vector<double> numbers;
  for (std::int64_t h = 0; h < sinks->shape()[0]; ++h)
    numbers.push_back(sinks->view().load_float({h}));
  return numbers;
}

// q [B, Hq, L, E], k [B, Hkv, S, E], v [B, Hkv, S, Ev]; b_begin: b of the first batch entry.
Outputs math(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
             const SdpaCall& call, const SdpaOptions& options, std::int64_t b_begin = 0) {
  const reference::AttentionOptions how{.score_mod = call.rules.score_mod,
                                        .mask_mod = call.rules.mask_mod,
                                        .scale = options.scale,
                                        .b_begin = b_begin,
                                        .key_indices = options.key_indices,
                                        .dropout = {options.dropout_p, options.seed},
                                        .sinks = numbers_of(options.sinks),
                                        .weight_mod = options.weight_mod,
                                        .normalize = options.normalize == Normalize::kSum,
                                        .rope = options.rope};
  const reference::AttentionOutput exact = reference::attention({q, k, v}, how);
  const DType wide = call.shape.compute_type();
  return {exact.out.to(options.wide_out ? wide : q.dtype()), exact.lse.to(wide)};
}

// [1, heads, rows, dim] into a view of that shape whose rows are contiguous.
void copy_rows(const Tensor& from, const TensorView& to) {
  const auto bytes = from.dim(3) * dtype_size(from.dtype());
  const auto* at = static_cast<const char*>(from.data());
  for (std::int64_t h = 0; h < to.dim(1); ++h)
    for (std::int64_t row = 0; row < to.dim(2); ++row, at += bytes)
      std::memcpy(to.select(0, 0).select(0, h).select(0, row).data(), at, bytes);
}

// The reference, sequence by sequence; holes and sequences without queries stay 0.
Outputs jagged_math(const SdpaCall& call, const SdpaOptions& options) {
  const attention::JaggedBatch& batch = *call.jagged;
  const JaggedOrder order = batch.q.order;
  const auto part = [](const auto& values, JaggedOrder of,
                       const attention::JaggedSequences& sequences, std::size_t i) {
    const std::int64_t begin = sequences.rows.begin[i];
    return attention::four_axes(values, of).slice(2, begin, begin + sequences.rows.length[i]);
  };
  Shape numbers = call.rows();
  numbers.push_back(1);
  Outputs made{Tensor(call.out_shape, call.shape.q_dtype),
               Tensor(numbers, call.shape.compute_type())};
  for (std::size_t i = 0; made.out.numel() > 0 && i < batch.q_rows.rows.length.size(); ++i) {
    const std::int64_t length = batch.q_rows.rows.length[i];
    if (length == 0) continue;
    const Outputs one = math(
        part(call.q, order, batch.q_rows, i), part(call.k, batch.k.order, batch.k_rows, i),
        part(call.v, batch.v.order, batch.v_rows, i), call, options, static_cast<std::int64_t>(i));
    copy_rows(one.out, part(made.out.view(), order, batch.q_rows, i));
    copy_rows(one.lse.reshape({1, one.lse.dim(1), length, 1}),
              part(made.lse.view(), order, batch.q_rows, i));
  }
  return {std::move(made.out), made.lse.reshape(call.rows())};
}

// The result where nothing is visible: 0, and an lse of -inf; weights of a formula have the sum 0.
Outputs nothing(const SdpaCall& call, DType type, bool has_weight_mod) {
  Tensor lse = Tensor::empty(call.rows(), DType::f64);
  std::fill_n(lse.data_as<double>(), lse.numel(),
              has_weight_mod ? 0 : -std::numeric_limits<double>::infinity());
  return {Tensor(call.out_shape, type), lse.to(call.shape.compute_type())};
}

Outputs fused(SdpaCall& call, const SdpaOptions& options, DType type) {
  AttentionProblem problem = sdpa::sdpa_problem(call, options);
  const bool wants_lse = options.lse != nullptr;
  if (type == problem.q_dtype) {
    AuxOutput aux;
    problem.return_aux.lse = wants_lse;
    problem.aux = &aux;
    const Tensor out = run_attention(std::move(problem), call.q, call.k, call.v);
    return {out.reshape(call.out_shape), wants_lse ? aux.lse->reshape(call.rows()) : Tensor()};
  }
  Outputs made{Tensor::empty(problem.out_shape(), type),
               Tensor::empty(problem.stats_shape(), problem.compute_type())};
  AttentionOutputs outputs{.out = made.out.view()};
  if (wants_lse) outputs.lse = made.lse.view();
  run_attention(std::move(problem), call.q, call.k, call.v, outputs);
  return {made.out.reshape(call.out_shape), made.lse.reshape(call.rows())};
}

// Checks a call that no plan is made for as a plan would.
void check_unplanned(SdpaCall call, const SdpaOptions& options) {
  AttentionProblem problem = sdpa::sdpa_problem(call, options);
  problem.most_dims = mask::kMostPosition;
  attention::check(problem);
}

bool has_hooks(const SdpaOptions& options) {
  return options.sinks || options.key_indices || options.weight_mod || options.rope ||
         options.normalize != Normalize::kNone;
}

Tensor run(SdpaCall call, const SdpaOptions& options) {
  const SDPBackend backend = required_backend(call, options);
  const DType type = options.wide_out ? call.shape.compute_type() : call.shape.q_dtype;
  if (has_hooks(options) && (backend == SDPBackend::kMath || call.is_empty()))
    check_unplanned(call, options);
  Outputs made;
  if (call.jagged.has_value() && (backend == SDPBackend::kMath || call.is_empty())) {
    made = jagged_math(call, options);
  } else if (call.is_empty()) {
    made = nothing(call, type, options.weight_mod.has_value());
  } else if (backend == SDPBackend::kMath) {
    const Outputs one = math(call.q, call.k, call.v, call, options);
    made = {one.out.reshape(call.out_shape), one.lse.reshape(call.rows())};
  } else {
    made = fused(call, options, type);
  }
  if (options.lse != nullptr) *options.lse = std::move(made.lse);
  return std::move(made.out);
}

template <class Input>
std::vector<std::string> reasons(SDPBackend backend, const Input& q, const Input& k, const Input& v,
                                 const SdpaOptions& options) {
  try {
    return backend_reasons(backend, sdpa::sdpa_call(kSdpa, q, k, v, options), options);
  } catch (const Error& error) {  // no backend computes an invalid call
    return {error.what()};
  }
}

template <class Input>
SDPBackend choose(const Input& q, const Input& k, const Input& v, const SdpaOptions& options) {
  try {
    return first_backend(sdpa::sdpa_call(kSdpa, q, k, v, options), options);
  } catch (const Error&) {
    return SDPBackend::kError;
  }
}

}  // namespace

Tensor scaled_dot_product_attention(const ConstTensorView& q, const ConstTensorView& k,
                                    const ConstTensorView& v, const SdpaOptions& options) {
  const FloatEnv float_env;
  return run(sdpa::sdpa_call(kSdpa, q, k, v, options), options);
}

Tensor scaled_dot_product_attention(const Jagged& q, const Jagged& k, const Jagged& v,
                                    const SdpaOptions& options) {
  const FloatEnv float_env;
  return run(sdpa::sdpa_call(kSdpa, q, k, v, options), options);
}

std::vector<std::string> why_not(SDPBackend backend, const ConstTensorView& q,
                                 const ConstTensorView& k, const ConstTensorView& v,
                                 const SdpaOptions& options) {
  const FloatEnv float_env;
  return reasons(backend, q, k, v, options);
}

std::vector<std::string> why_not(SDPBackend backend, const Jagged& q, const Jagged& k,
                                 const Jagged& v, const SdpaOptions& options) {
  const FloatEnv float_env;
  return reasons(backend, q, k, v, options);
}

SDPBackend choose_backend(const ConstTensorView& q, const ConstTensorView& k,
                          const ConstTensorView& v, const SdpaOptions& options) {
  const FloatEnv float_env;
  return choose(q, k, v, options);
}

SDPBackend choose_backend(const Jagged& q, const Jagged& k, const Jagged& v,
                          const SdpaOptions& options) {
  const FloatEnv float_env;
  return choose(q, k, v, options);
}

}  // namespace quire

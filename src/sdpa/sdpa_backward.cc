// scaled_dot_product_attention_backward: gradients by the fused kernels, summed over axes that were
// broadcast. Sdpa layer.
#include <utility>
#include <vector>

#include "attention/validate.h"
#include "mask/size_limits.h"
#include "quire/error.h"
#include "quire/scaled_dot_product_attention.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "sdpa/sdpa_call.h"

namespace quire {
namespace {

using sdpa::SdpaCall;

constexpr const char* kSdpaBackward = "scaled_dot_product_attention_backward";

void check_mask_wanted(const SdpaOptions& options, bool wanted) {
  const auto* mask = std::get_if<ConstTensorView>(&options.attn_mask);
  if (wanted && (mask == nullptr || !is_floating(mask->dtype())))
    fail(ErrorKind::value, kSdpaBackward,
         "only an attn_mask that is a tensor of floats has a gradient");
}

// Checks out, lse or d_out against the shape of the call and converts it to the plan's axes; a
// copy, kept in `held`, if strides cannot express that.
ConstTensorView merged(const char* name, const ConstTensorView& view, const Shape& given,
                       const Shape& merged, Tensor& held) {
  if (view.shape() != given) {
    fail(ErrorKind::value, kSdpaBackward, "{} must have shape {}; got {}", name, to_string(given),
         to_string(view.shape()));
  }
  if (given == merged) return view;
  if (view.is_contiguous()) return view.reshape(merged);
  held = contiguous(view);
  return std::as_const(held).view().reshape(merged);
}

// Sums `wide` over leading axes that `shape` lacks and axes where `shape` has size 1: in f64, in
// row-major order, then rounded to `dtype`.
Tensor sum_to(const ConstTensorView& wide, const Shape& shape, DType dtype) {
  const Tensor from = to(wide, DType::f64);
  Tensor sums(shape, DType::f64);
  const std::size_t rank = wide.rank(), more = rank - shape.rank();
  // Steps of `sums` along the axes of `wide`; 0 along those that are summed.
  std::vector<std::int64_t> step(rank, 0), index(rank, 0);
  for (std::size_t i = 0; i < shape.rank(); ++i)
    if (shape[i] != 1) step[more + i] = sums.view().strides()[i];
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < from.numel(); ++i) {
    sums.data_as<double>()[at] += from.data_as<double>()[i];
    for (std::size_t axis = rank; axis-- > 0;) {
      at += step[axis];
      if (++index[axis] < wide.shape()[axis]) break;
      at -= step[axis] * index[axis];
      index[axis] = 0;
    }
  }
  return sums.to(dtype);
}

// Converts a gradient from the axes of the call to those of `input`, summing broadcast axes.
std::optional<Tensor> narrowed(const std::optional<Tensor>& gradient, const ConstTensorView& input,
                               const SdpaCall& call) {
  if (!gradient.has_value()) return std::nullopt;
  if (gradient->numel() == input.numel()) return gradient->reshape(input.shape());
  if (call.jagged.has_value()) return sum_to(*gradient, input.shape(), input.dtype());
  Shape expanded = call.batch;  // the leading axes, which were merged
  for (const std::int64_t axis : {1, 2, 3}) expanded.push_back(gradient->dim(axis));
  return sum_to(gradient->reshape(expanded), input.shape(), input.dtype());
}

// Nothing was read, so nothing has a gradient.
std::optional<Tensor> zero(bool is_wanted, const ConstTensorView& like) {
  return is_wanted ? std::optional<Tensor>(Tensor(like.shape(), like.dtype())) : std::nullopt;
}

std::vector<BufferGradient> without_mask(std::vector<BufferGradient> made, bool has_mask) {
  if (has_mask) made.erase(made.begin());
  return made;
}

// `inputs`: q, k and v as given, before broadcasting.
SdpaGradients run(SdpaCall call, const SdpaBackwardInputs& inputs, const SdpaOptions& options,
                  const WantedGradients& wanted) {
  check_mask_wanted(options, wanted.attn_mask);
  AttentionProblem problem = sdpa::sdpa_problem(call, options);
  problem.most_dims = mask::kMostPosition;  // MATH may have computed the forward pass
  const Shape outs = problem.out_shape(), numbers = problem.stats_shape();
  Tensor held[3];
  const BackwardInputs given{.q = call.q,
                             .k = call.k,
                             .v = call.v,
                             .out = merged("out", inputs.out, call.out_shape, outs, held[0]),
                             .lse = merged("lse", inputs.lse, call.rows(), numbers, held[1]),
                             .d_out = merged("d_out", inputs.d_out, call.out_shape, outs, held[2])};
  const auto* mask = std::get_if<ConstTensorView>(&options.attn_mask);
  std::vector<BufferGradient> made;
  for (const Buffer& buffer : gradient_buffers(problem))
    made.push_back({buffer, Tensor(buffer.shape(), buffer.dtype())});
  const bool has_mask = problem.score_mod.has_value();  // a float mask, which is the first of them
  if (call.is_empty()) {
    attention::validate_loss(problem, given);
    SdpaGradients zeros{.q = zero(wanted.q, inputs.q),
                        .k = zero(wanted.k, inputs.k),
                        .v = zero(wanted.v, inputs.v)};
    if (wanted.attn_mask) zeros.attn_mask = zero(true, *mask);
    if (wanted.buffers) zeros.buffers = without_mask(std::move(made), has_mask);
    return zeros;
  }
  // The gradient in the axes of the call. Sums are rounded once, except over the heads of jagged
  // batches.
  const auto gradient = [&](bool is_wanted, const ConstTensorView& input,
                            const ConstTensorView& axes) -> std::optional<Tensor> {
    if (!is_wanted) return std::nullopt;
    const bool is_wide = input.numel() != axes.numel() && !call.jagged.has_value();
    return Tensor(axes.shape(), is_wide ? problem.compute_type() : input.dtype());
  };
  std::optional<Tensor> q = gradient(wanted.q, inputs.q, call.q),
                        k = gradient(wanted.k, inputs.k, call.k),
                        v = gradient(wanted.v, inputs.v, call.v);
  const auto view = [](std::optional<Tensor>& of) {
    return of ? std::optional(of->view()) : std::nullopt;
  };
  std::vector<TensorView> buffers;
  if (wanted.attn_mask || (wanted.buffers && made.size() > (has_mask ? 1U : 0U)))
    for (BufferGradient& one : made) buffers.push_back(one.gradient.view());
  run_attention_backward(std::move(problem), given,
                         {.q = view(q), .k = view(k), .v = view(v), .buffers = buffers});
  SdpaGradients result{.q = narrowed(q, inputs.q, call),
                       .k = narrowed(k, inputs.k, call),
                       .v = narrowed(v, inputs.v, call)};
  if (wanted.attn_mask) result.attn_mask = made.at(0).gradient.reshape(mask->shape());
  if (wanted.buffers) result.buffers = without_mask(std::move(made), has_mask);
  return result;
}

}  // namespace

SdpaGradients scaled_dot_product_attention_backward(const SdpaBackwardInputs& inputs,
                                                    const SdpaOptions& options,
                                                    const WantedGradients& wanted) {
  const FloatEnv float_env;
  return run(sdpa::sdpa_call(kSdpaBackward, inputs.q, inputs.k, inputs.v, options), inputs, options,
             wanted);
}

SdpaGradients scaled_dot_product_attention_backward(const JaggedSdpaBackwardInputs& inputs,
                                                    const SdpaOptions& options,
                                                    const WantedGradients& wanted) {
  const FloatEnv float_env;
  return run(
      sdpa::sdpa_call(kSdpaBackward, inputs.q, inputs.k, inputs.v, options),
      {inputs.q.values, inputs.k.values, inputs.v.values, inputs.out, inputs.lse, inputs.d_out},
      options, wanted);
}

}  // namespace quire

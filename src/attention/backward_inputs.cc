// The checks, in the order in which a user would find the mistakes. Attention layer.
#include "attention/backward_inputs.h"

#include "attention/function_names.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::attention {
namespace {

void check(const char* where, const char* name, const ConstTensorView& view, const Shape& shape) {
  if (view.shape() != shape)
    fail(ErrorKind::value, where, "{} must have shape {}; got {}", name, to_string(shape),
         to_string(view.shape()));
  if (!is_floating(view.dtype()))
    fail(ErrorKind::type, where, "{} must be f32, f64, bf16 or f16; got {}", name,
         dtype_name(view.dtype()));
}

}  // namespace

void validate_loss(const char* where, const LossInputs& inputs, const Shape& rows,
                   const Shape& wanted_out) {
  check(where, "lse", inputs.lse, rows);
  if (inputs.d_out.has_value()) {
    check(where, "out", inputs.out, wanted_out);
    check(where, "d_out", *inputs.d_out, wanted_out);
  }
  if (inputs.d_lse.has_value()) check(where, "d_lse", *inputs.d_lse, rows);
  if (!inputs.d_out.has_value() && !inputs.d_lse.has_value())
    fail(ErrorKind::value, where, "give d_out, d_lse or both: there is nothing to differentiate");
}

void validate_gradient(const char* name, bool is_wanted, const std::optional<TensorView>& given,
                       const ConstTensorView& of) {
  if (given.has_value() != is_wanted)
    fail(ErrorKind::value, names::kFlexAttentionBackward,
         "the gradient of {} was {} when the plan was made, and {} given", name,
         is_wanted ? "wanted" : "not wanted", is_wanted ? "none is" : "one is");
  if (!is_wanted) return;
  if (given->shape() != of.shape())
    fail(ErrorKind::value, names::kFlexAttentionBackward,
         "the gradient of {} must have shape {}; got {}", name, to_string(of.shape()),
         to_string(given->shape()));
  if (given->dtype() != of.dtype())
    fail(ErrorKind::type, names::kFlexAttentionBackward, "the gradient of {} must be {}; got {}",
         name, dtype_name(of.dtype()), dtype_name(given->dtype()));
}

void validate_buffers(const std::vector<Buffer>& buffers, std::span<const TensorView> given) {
  if (given.size() != buffers.size())
    fail(ErrorKind::value, names::kFlexAttentionBackward,
         "gradients of {} buffers are wanted; got {}", buffers.size(), given.size());
  for (std::size_t i = 0; i < buffers.size(); ++i)
    validate_gradient(buffers[i].name().c_str(), true, given[i], buffers[i].view());
}

std::vector<TensorView> make_buffers(const std::vector<Buffer>& buffers, AttentionGradients& made) {
  std::vector<TensorView> views;
  for (const Buffer& buffer : buffers) {
    made.buffers.push_back({buffer, Tensor(buffer.shape(), buffer.dtype())});
    views.push_back(made.buffers.back().gradient.view());
  }
  return views;
}

}  // namespace quire::attention

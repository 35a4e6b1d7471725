// The checks of the tensors of a run, and of its outputs and gradients, against the problem that
// was planned. Attention layer.
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "attention/jagged_batch.h"
#include "attention/validate.h"
#include "quant/coded_view.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::attention {
namespace {

void check_shape(const char* where, const char* name, const ConstTensorView& view,
                 const Shape& shape) {
  if (view.shape() == shape) return;
  fail(ErrorKind::value, where, "{} must have shape {}; got {}", name, to_string(shape),
       to_string(view.shape()));
}

void check_floats(const char* where, const char* name, const ConstTensorView& view,
                  const Shape& shape) {
  check_shape(where, name, view, shape);
  check_float(where, name, view.dtype());
}

void check_tensor(const char* where, const char* name, const ConstTensorView& view,
                  const Shape& shape, DType dtype) {
  check_shape(where, name, view, shape);
  if (view.dtype() != dtype) {
    fail(ErrorKind::type, where, "{} must be {}; got {}", name, dtype_name(dtype),
         dtype_name(view.dtype()));
  }
}

// A gradient has the dtype of its tensor, or the compute type.
void validate_gradient(const AttentionProblem& problem, const char* name, bool is_wanted,
                       const std::optional<TensorView>& given, const Shape& shape, DType dtype) {
  const char* const where = problem.function;
  if (given.has_value() != is_wanted)
    fail(ErrorKind::value, where, "the gradient of {} was {} when the plan was made, and {} given",
         name, is_wanted ? "wanted" : "not wanted", is_wanted ? "none is" : "one is");
  if (!is_wanted) return;
  if (given->shape() != shape)
    fail(ErrorKind::value, where, "the gradient of {} must have shape {}; got {}", name,
         to_string(shape), to_string(given->shape()));
  if (given->dtype() != dtype && given->dtype() != problem.compute_type())
    fail(ErrorKind::type, where, "the gradient of {} must be {}; got {}", name, dtype_name(dtype),
         dtype_name(given->dtype()));
}

}  // namespace

void validate_run(const AttentionProblem& problem, const ConstTensorView& q, const KVView& k,
                  const KVView& v) {
  const auto check = [&](const char* name, const KVView& given, const Shape& shape, DType dtype,
                         const KVFormat& format) {
    if (given.format == format && given.shape() == shape && given.dtype() == dtype) return;
    const auto kind = [](const KVFormat& one, DType plain) {
      return one.is_plain() ? std::string(dtype_name(plain)) : one.name();
    };
    fail(ErrorKind::value, problem.function, "the plan was made for a {} of {} {}; got {} {}", name,
         kind(format, dtype), to_string(shape), kind(given.format, given.dtype()),
         to_string(given.shape()));
  };
  // The cache determines how many tokens a step has.
  if (problem.step_of != nullptr)
    check_tensor(problem.function, "q", q, problem.q_shape, problem.q_dtype);
  check("query", q, problem.q_shape, problem.q_dtype, {});
  check("key", k, problem.k_shape, problem.k_dtype, problem.k_format);
  check("value", v, problem.v_shape, problem.v_dtype, problem.v_format);
  quant::check_coded(problem.function, "key", k, coded_axes(k, problem.k_order));
  quant::check_coded(problem.function, "value", v, coded_axes(v, problem.v_order));
}

void validate_outputs(const AttentionProblem& problem, const AttentionOutputs& outputs) {
  const char* const where = problem.function;
  const DType wide = problem.compute_type();
  if ((problem.states != KeptStates::kNone) != outputs.states.has_value())
    fail(ErrorKind::value, where, "a run that keeps states needs a tensor of states, and no other");
  if (outputs.states.has_value()) {
    if (outputs.resumes && problem.states == KeptStates::kSplits)
      fail(ErrorKind::value, where, "states of splits begin anew: nothing can be resumed");
    for (const std::optional<TensorView>* other :
         {&outputs.lse, &outputs.max_scores, &outputs.key_weights, &outputs.entropy})
      if (other->has_value())
        fail(ErrorKind::value, where, "a run that keeps states has no other output");
    return validate_states(problem, *outputs.states);
  }
  check_tensor(where, "out", outputs.out, problem.out_shape(),
               outputs.out.dtype() == wide ? wide : problem.q_dtype);
  const auto check = [&](const char* name, const std::optional<TensorView>& view) {
    if (!view.has_value()) return;
    check_tensor(where, name, *view, problem.stats_shape(), wide);
    if (!view->is_contiguous()) fail(ErrorKind::value, where, "{} must be row-major", name);
  };
  check("lse", outputs.lse);
  check("max_scores", outputs.max_scores);
  if (outputs.max_scores && problem.weight_mod)
    fail(ErrorKind::value, where, "there are no max_scores with weight_mod");
  if (outputs.entropy && problem.weight_mod)
    fail(ErrorKind::value, where,
         "entropy is of weights that sum up to 1; there is none with weight_mod");
  check("entropy", outputs.entropy);
  if (!outputs.key_weights.has_value()) return;
  check_tensor(where, "key_weights", *outputs.key_weights, problem.key_weights_shape(), wide);
  if (!outputs.key_weights->is_contiguous())
    fail(ErrorKind::value, where, "key_weights must be row-major");
  validate_query_range(problem, outputs.key_weights_queries);
}

std::int64_t state_rows(const AttentionProblem& problem, const ConstTensorView& states) {
  if (problem.q_shape.rank() != 4)
    return problem.q_shape[problem.q_order == JaggedOrder::kTokens ? 0 : 1];
  const std::int64_t row = states.strides()[2];
  return states.numel() == 0 ? 0 : states.strides()[1] / row;
}

void validate_states(const AttentionProblem& problem, const ConstTensorView& states) {
  check_tensor(problem.function, "states", states, problem.states_shape(), problem.compute_type());
  if (states.is_contiguous()) return;
  // The states may be some rows of a larger tensor.
  const bool are_rows =
      problem.q_shape.rank() == 4 && states.select(0, 0).select(0, 0).is_contiguous() &&
      states.strides()[1] % states.strides()[2] == 0 &&
      (states.dim(0) == 1 || states.strides()[0] == states.dim(1) * states.strides()[1]);
  if (!are_rows) fail(ErrorKind::value, problem.function, "states must be row-major");
}

void validate_query_range(const AttentionProblem& problem, const QueryRange& range) {
  const bool to_the_end = range.end == std::numeric_limits<std::int64_t>::max();
  if (problem.q_shape.rank() == 3) return;  // each sequence is limited to what it has
  const std::int64_t most = problem.q_len;
  const auto place = [&](std::int64_t at) { return at < 0 ? at + most : at; };
  const std::int64_t end = to_the_end ? most : place(range.end);
  if (range.begin >= -most && end <= most && place(range.begin) <= end) return;
  fail(ErrorKind::value, problem.function,
       "key_weights_queries must be a range of the {} queries; got {} to {}", most, range.begin,
       to_the_end ? most : range.end);
}

void validate_loss(const AttentionProblem& problem, const BackwardInputs& inputs) {
  const char* const where = problem.function;
  const Shape rows = problem.stats_shape(), out = problem.out_shape();
  check_floats(where, "lse", inputs.lse, rows);
  if (inputs.d_out.has_value()) {
    check_floats(where, "out", inputs.out, out);
    check_floats(where, "d_out", *inputs.d_out, out);
  }
  if (inputs.d_lse.has_value()) check_floats(where, "d_lse", *inputs.d_lse, rows);
  if (!inputs.d_out.has_value() && !inputs.d_lse.has_value())
    fail(ErrorKind::value, where, "give d_out, d_lse or both: there is nothing to differentiate");
}

void validate_gradients(const AttentionProblem& problem, const WantedGradients& wanted,
                        const std::vector<Buffer>& buffers, const GradientOutputs& outputs) {
  const AttentionProblem& p = problem;
  validate_gradient(p, "q", wanted.q, outputs.q, p.q_shape, p.q_dtype);
  validate_gradient(p, "k", wanted.k, outputs.k, p.k_shape, p.k_dtype);
  validate_gradient(p, "v", wanted.v, outputs.v, p.v_shape, p.v_dtype);
  if (outputs.buffers.size() != buffers.size())
    fail(ErrorKind::value, p.function, "gradients of {} buffers are wanted; got {}", buffers.size(),
         outputs.buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const TensorView& given = outputs.buffers[i];
    if (given.dtype() != buffers[i].dtype())
      fail(ErrorKind::type, p.function, "the gradient of {} must be {}; got {}", buffers[i].name(),
           dtype_name(buffers[i].dtype()), dtype_name(given.dtype()));
    validate_gradient(p, buffers[i].name().c_str(), true, given, buffers[i].shape(),
                      buffers[i].dtype());
  }
}

}  // namespace quire::attention

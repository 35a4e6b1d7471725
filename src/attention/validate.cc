// The checks, in the order in which a user would find the mistakes. Attention layer.
#include "attention/validate.h"

#include <cmath>
#include <limits>
#include <string>

#include "attention/jagged_batch.h"
#include "layout/key_layout.h"
#include "layout/query_layout.h"
#include "mask/size_limits.h"
#include "quant/coded_view.h"
#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"

namespace quire {
namespace attention {
namespace {

using mask::kMostPosition;

// That formats fit the head dims, and dtypes are those of numbers.
void validate_dtypes(const char* where, const AttentionShape& shape) {
  if (!shape.k_format.is_plain()) shape.k_format.code_bytes(shape.head_dim);
  if (!shape.v_format.is_plain()) shape.v_format.code_bytes(shape.v_head_dim);
  check_float(where, "query", shape.q_dtype);
  check_float(where, "key", shape.k_dtype);
  check_float(where, "value", shape.v_dtype);
}

void validate_sizes(const char* where, const AttentionProblem& shape) {
  check_size(where, "the batch size", shape.batch, 0, kMostCount);
  check_size(where, "the number of query heads", shape.q_heads, 0, kMostCount);
  check_size(where, "the number of key heads", shape.kv_heads, 0, kMostCount);
  check_size(where, "q_len", shape.q_len, 0, kMostPosition);
  check_size(where, "kv_len", shape.kv_len, 0, kMostPosition);
  check_size(where, "the head dim of query and key", shape.head_dim, 0, shape.most_dims);
  check_size(where, "the head dim of value", shape.v_head_dim, 1, shape.most_dims);
}

void validate_heads(const char* where, const AttentionProblem& problem) {
  if (problem.q_heads == problem.kv_heads) return;
  if (!problem.enable_gqa) {
    fail(ErrorKind::value, where,
         "query and key must have the same number of heads, or enable_gqa must be set; got {} and "
         "{}",
         problem.q_heads, problem.kv_heads);
  }
  if (problem.kv_heads == 0 || problem.q_heads % problem.kv_heads != 0) {
    fail(ErrorKind::value, where, "q_heads must be a multiple of kv_heads; got {} and {}",
         problem.q_heads, problem.kv_heads);
  }
}

void validate_batches(const char* where, const AttentionProblem& problem) {
  if (problem.batch == problem.kv_batch) return;
  if (problem.kv_batch != 1) {
    fail(ErrorKind::value, where,
         "query and key must have the same batch size, or key must have 1; got {} and {}",
         problem.batch, problem.kv_batch);
  }
  if (!problem.block_mask.has_value() && !problem.mask_mod.has_value()) {
    fail(ErrorKind::value, where, "a key batch of 1 for a query batch of {} needs a block mask",
         problem.batch);
  }
}

void validate_mask_lengths(const char* where, const AttentionProblem& problem) {
  const auto [q_len, kv_len] = problem.block_mask->seq_lengths();
  if (problem.layout != nullptr) {
    if (q_len == problem.q_len && kv_len >= problem.kv_len) return;
    fail(ErrorKind::value, where,
         "the block mask was made for {} queries and {} keys; got {}, and a longest sequence of {}",
         q_len, kv_len, problem.q_len, problem.kv_len);
  }
  if (q_len == problem.q_len && kv_len == problem.kv_len) return;
  fail(ErrorKind::value, where,
       "block_mask was created for {} queries and {} keys; got {} and {}. Make a new one, or take "
       "part of it with rows or adjust",
       q_len, kv_len, problem.q_len, problem.kv_len);
}

// One mask for the whole batch.
void validate_mask(const char* where, const AttentionProblem& problem) {
  const BlockMask& mask = *problem.block_mask;
  mask.mask_mod();  // throws for an indexed mask
  if (problem.queries != nullptr) {
    fail(ErrorKind::value, where,
         "sequences of different lengths need a mask each: give mask_mod or a JaggedBlockMask");
  }
  validate_mask_lengths(where, problem);
  const std::int64_t blocks = ceil_div(problem.q_len, mask.block_size().q);
  if (mask.q_blocks() < blocks) {
    fail(ErrorKind::value, where, "the block mask has {} rows of blocks where {} queries need {}",
         mask.q_blocks(), problem.q_len, blocks);
  }
  // A mask with more entries than queries is used up to the queries', as in torch.
  if (mask.batch() < problem.batch && mask.batch() != 1) {
    fail(ErrorKind::value, where,
         "the block mask must have a batch of 1, or one of {} or more, as the query; got {}",
         problem.batch, mask.batch());
  }
  if (mask.heads() < problem.q_heads && mask.heads() != 1) {
    fail(ErrorKind::value, where,
         "the block mask must have 1 head, or {} or more, as the query; got {}", problem.q_heads,
         mask.heads());
  }
}

// A mask per sequence.
void validate_masks(const char* where, const AttentionProblem& problem) {
  const JaggedBlockMask& masks = problem.block_mask.per_sequence();
  if (masks.sequences() != problem.batch) {
    fail(ErrorKind::value, where, "the block mask was made for {} sequences; got {}",
         masks.sequences(), problem.batch);
  }
  for (std::int64_t i = 0; i < problem.batch; ++i) {
    const BlockMask& one = masks[i];
    const auto [q_len, kv_len] = one.seq_lengths();
    const std::int64_t queries = problem.queries ? problem.queries->length(i) : problem.q_len;
    const std::int64_t keys = problem.layout ? problem.layout->length(i) : problem.kv_len;
    if (q_len != queries || kv_len != keys) {
      fail(ErrorKind::value, where,
           "the block mask of sequence {} was made for {} queries and {} keys; got {} and {}", i,
           q_len, kv_len, queries, keys);
    }
    if (one.heads() != problem.q_heads && one.heads() != 1) {
      fail(ErrorKind::value, where, "the block mask of sequence {} must have {} heads or 1; got {}",
           i, problem.q_heads, one.heads());
    }
  }
}

void validate_masks_and_rules(const char* where, const AttentionProblem& problem) {
  if (problem.block_mask.has_value() && problem.mask_mod.has_value())
    fail(ErrorKind::value, where, "give mask_mod or block_mask, not both");
  if (problem.visible != nullptr) return;  // checked where the step was read
  if (!problem.sequence_options.empty())
    fail(ErrorKind::value, where, "sequence_options are for attend");
  if (problem.window != 0) {
    fail(ErrorKind::value, where,
         "window is for attend; give the mask mod sliding_window({}) instead", problem.window);
  }
  if (!problem.block_mask.has_value()) return;
  if (problem.block_mask.is_per_sequence())
    validate_masks(where, problem);
  else
    validate_mask(where, problem);
}

void validate_q_begin(const char* where, const AttentionProblem& problem) {
  const std::vector<std::int64_t>& begin = problem.q_begin;
  if (begin.size() > 1 && static_cast<std::int64_t>(begin.size()) != problem.batch) {
    fail(ErrorKind::value, where,
         "q_begin must have 1 number for all batch entries, or {}, one for each; got {}",
         problem.batch, begin.size());
  }
  for (const std::int64_t one : begin) check_size(where, "q_begin", one, 0, kMostPosition);
  const BlockMasks& masks = problem.block_mask;
  if (!masks.has_value()) return;
  const auto count =
      masks.is_per_sequence() ? problem.batch : static_cast<std::int64_t>(begin.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t of_mask = masks.q_begin(i);
    if (problem.begin_of(i) == of_mask) continue;
    fail(ErrorKind::value, where,
         "q_begin must be that of the block mask, {}; got {}. A mask made with q_begin, or "
         "rows(q_begin, q_end) of one, brings it",
         of_mask, problem.begin_of(i));
  }
}

void validate_sinks(const char* where, const AttentionProblem& problem) {
  if (!problem.sinks.has_value()) {
    if (problem.lse_with_sinks)
      fail(ErrorKind::value, where, "lse_with_sinks is set, and there are no sinks");
    return;
  }
  const Buffer& sinks = *problem.sinks;
  check_float(where, "sinks", sinks.dtype());
  if (sinks.shape() != Shape{problem.q_heads})
    fail(ErrorKind::value, where, "sinks must be one number per query head, [{}]; got {}",
         problem.q_heads, to_string(sinks.shape()));
  if (!sinks.has_data()) fail(ErrorKind::value, where, "sinks have no data");
}

void validate_weight_mod(const char* where, const AttentionProblem& problem) {
  if (!problem.weight_mod.has_value()) {
    if (problem.normalize != Normalize::kNone)
      fail(ErrorKind::value, where, "normalize is for weight_mod, and there is none");
    return;
  }
  if (problem.sinks.has_value())
    fail(ErrorKind::value, where,
         "give sinks or weight_mod, not both: a sink is part of a softmax");
  if (problem.return_aux.max_scores)
    fail(ErrorKind::value, where, "there are no max_scores with weight_mod");
}

// The mask's q_begin, or 0, if none is given.
void fill_q_begin(AttentionProblem& problem) {
  if (!problem.q_begin.empty()) return;
  const BlockMasks& masks = problem.block_mask;
  std::int64_t count = masks.has_value() ? 1 : 0;
  if (masks.is_per_sequence()) count = masks.per_sequence().sequences();
  for (std::int64_t i = 0; i < count; ++i) problem.q_begin.push_back(masks.q_begin(i));
  if (count == 0) problem.q_begin = {0};
}

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

// The dtype of the tensor it is the gradient of, or the compute type.
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

void check_float(const char* where, const char* name, DType dtype) {
  if (is_floating(dtype)) return;
  fail(ErrorKind::type, where, "{} must be f32, f64, bf16 or f16; got {}", name, dtype_name(dtype));
}

void check_head_dims(const char* where, std::int64_t q, std::int64_t k) {
  if (q != k)
    fail(ErrorKind::value, where, "query and key must have the same head dim; got {} and {}", q, k);
}

void validate_scale(const char* where, const std::optional<double>& scale) {
  if (scale.has_value() && !std::isfinite(*scale))
    fail(ErrorKind::value, where, "scale must be finite; got {}", *scale);
}

void validate_dropout(const char* where, double dropout_p) {
  if (!(dropout_p >= 0 && dropout_p <= 1))
    fail(ErrorKind::value, where, "dropout_p must be in 0..1; got {}", dropout_p);
}

void validate(const AttentionProblem& problem, const char* where) {
  validate_dtypes(where, problem);
  validate_sizes(where, problem);
  validate_heads(where, problem);
  validate_batches(where, problem);
  validate_masks_and_rules(where, problem);
  validate_q_begin(where, problem);
  validate_scale(where, problem.scale);
  validate_dropout(where, problem.dropout_p);
  validate_sinks(where, problem);
  validate_weight_mod(where, problem);
  validate_rope(where, problem);
}

AttentionProblem checked(AttentionProblem problem) {
  fill_q_begin(problem);
  validate(problem, problem.function);
  read_key_indices(problem);
  return problem;
}

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
  // Some rows of a larger tensor of states.
  const bool are_rows =
      problem.q_shape.rank() == 4 && states.select(0, 0).select(0, 0).is_contiguous() &&
      states.strides()[1] % states.strides()[2] == 0 &&
      (states.dim(0) == 1 || states.strides()[0] == states.dim(1) * states.strides()[1]);
  if (!are_rows) fail(ErrorKind::value, problem.function, "states must be row-major");
}

void validate_query_range(const AttentionProblem& problem, const QueryRange& range) {
  const bool to_the_end = range.end == std::numeric_limits<std::int64_t>::max();
  if (problem.q_shape.rank() == 3) return;  // every sequence has what it has of it
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

AttentionShape shape_of(const char* where, const ConstTensorView& q, const KVView& k_view,
                        const KVView& v_view) {
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

}  // namespace attention

AttentionShape AttentionShape::of(const ConstTensorView& q, const KVView& k, const KVView& v) {
  return attention::shape_of("flex_attention", q, k, v);
}

}  // namespace quire

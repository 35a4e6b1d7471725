// The checks of a problem, in the order in which a user would find the mistakes. Attention layer.
#include "attention/validate.h"

#include <cmath>

#include "mask/size_limits.h"
#include "plan/prepare_problem.h"
#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"

namespace quire::attention {
namespace {

using mask::kMostPosition;

// Formats must fit the head dims, and dtypes must be floats.
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

// Checks one mask for the whole batch.
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
  // Of a mask with more entries than the queries have, the first are used, as in torch.
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

// Checks a mask per sequence.
void validate_masks(const char* where, const AttentionProblem& problem) {
  const JaggedBlockMask& masks = problem.block_mask.per_sequence();
  if (masks.sequences() != problem.batch) {
    fail(ErrorKind::value, where, "the block mask was made for {} sequences; got {}",
         masks.sequences(), problem.batch);
  }
  for (std::int64_t i = 0; i < problem.batch; ++i) {
    const BlockMask& one = masks[i];
    const auto [q_len, kv_len] = one.seq_lengths();
    const std::int64_t queries = problem.queries_of(i), keys = problem.keys_of(i);
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
  if (problem.visible != nullptr) return;  // checked when the step was read
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

// Sets q_begin to the mask's, or to 0, if none is given.
void fill_q_begin(AttentionProblem& problem) {
  if (!problem.q_begin.empty()) return;
  const BlockMasks& masks = problem.block_mask;
  std::int64_t count = masks.has_value() ? 1 : 0;
  if (masks.is_per_sequence()) count = masks.per_sequence().sequences();
  for (std::int64_t i = 0; i < count; ++i) problem.q_begin.push_back(masks.q_begin(i));
  if (count == 0) problem.q_begin = {0};
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

void check_step_options(const char* where, const AttentionOptions& options) {
  if (options.window < 0)
    fail(ErrorKind::value, where, "window must not be negative; got {}", options.window);
  if (options.block_mask.has_value())
    fail(ErrorKind::value, where, "a step has no block_mask; give mask_mod");
  if (!options.q_begin.empty())
    fail(ErrorKind::value, where, "q_begin follows from the cache; do not give it");
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

void check(AttentionProblem& problem) {
  fill_q_begin(problem);
  validate(problem, problem.function);
  plan::read_key_indices(problem);
}

}  // namespace quire::attention

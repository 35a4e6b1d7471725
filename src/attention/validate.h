// The checks of attention calls: a problem is checked once per call, before anything is planned,
// and the tensors of a run against the problem. Error texts begin with the name of the public
// function that was called. Attention layer.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/attention_order.h"
#include "quire/attention.h"

namespace quire::attention {

/// The largest head dim the kernels take.
inline constexpr std::int64_t kMostDims = kernels::kMostHeadDim;
/// The most batches or heads.
inline constexpr std::int64_t kMostCount = std::int64_t{1} << 30;

/// Throws Error naming what does not fit: dtypes, sizes, heads, batches, masks and rules, q_begin,
/// scale, dropout_p, sinks, weight_mod, rope.
void validate(const AttentionProblem& problem, const char* where);

/// The same, reported under the problem's function name; fills in q_begin and reads key_indices.
void check(AttentionProblem& problem);

/// The options of a step over a cache or over pages. Throws Error for a negative window, a block
/// mask and a q_begin.
void check_step_options(const char* where, const AttentionOptions& options);

// Parts of the check that others share.
void check_float(const char* where, const char* name, DType dtype);
void check_head_dims(const char* where, std::int64_t q, std::int64_t k);
void validate_scale(const char* where, const std::optional<double>& scale);
void validate_dropout(const char* where, double dropout_p);
void validate_rope(const char* where, const AttentionProblem& problem);

/// AttentionShape::of for a function of any name.
AttentionShape shape_of(const char* where, const ConstTensorView& q, const KVView& k,
                        const KVView& v);

/// Checks the tensors of a run against what the plan was made for.
void validate_run(const AttentionProblem& problem, const ConstTensorView& q, const KVView& k,
                  const KVView& v);
/// Checks shapes, dtypes and order of all outputs. Throws Error for one that the problem does not
/// have.
void validate_outputs(const AttentionProblem& problem, const AttentionOutputs& outputs);

/// Checks the states that a run of the problem keeps.
void validate_states(const AttentionProblem& problem, const ConstTensorView& states);
/// How many rows of states lie between those of two heads.
std::int64_t state_rows(const AttentionProblem& problem, const ConstTensorView& states);

/// Checks the query range of key_weights; for jagged batches nothing is checked, since the range is
/// cut to each sequence.
void validate_query_range(const AttentionProblem& problem, const QueryRange& range);

/// Checks out, lse and their gradients.
void validate_loss(const AttentionProblem& problem, const BackwardInputs& inputs);
/// Checks gradients against their tensors: one for each that is wanted, and no other.
void validate_gradients(const AttentionProblem& problem, const WantedGradients& wanted,
                        const std::vector<Buffer>& buffers, const GradientOutputs& outputs);

}  // namespace quire::attention

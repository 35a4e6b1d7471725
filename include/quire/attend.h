// attend: attention of the newest tokens of many sequences over a KVCache. Public; attention layer.
//
//   cache.append(step);                               // pages for the step's tokens
//   AttendPlan plan(cache, step, {.q_heads = 32});    // once per step
//   for (layer ...) {
//     cache.write(layer, step, k, v);
//     plan.run(cache, layer, q, {.out = out});        // q [tokens, q_heads, head_dim]
//   }
//
// Any mix of decode, speculative tokens and chunks of prompts in one step. A token's result has the
// bits of flex_attention over its sequence alone, whatever the batch, the pages and what sequences
// share. Sequences that begin with the same pages read them once for several where that pays.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "quire/executor.h"
#include "quire/export.h"
#include "quire/flex_attention.h"
#include "quire/kv_cache.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire {

struct AttendOptions {
  std::optional<ScoreMod> score_mod = {};
  /// Alone says what is visible, later tokens of the same step included. Not given: each token sees
  /// its own and those before it. In mods b is the number of the sequence in the step, q_idx and
  /// kv_idx are positions in the sequence.
  std::optional<MaskMod> mask_mod = {};
  std::int64_t window = 0;           // without mask_mod: the last so many tokens only; 0: all
  std::optional<double> scale = {};  // 1 / sqrt(head_dim) if not given
  AuxRequest return_aux = {};
  AuxOutput* aux = nullptr;      // attend only: where to put it, [tokens, q_heads]
  Executor* executor = nullptr;  // default_executor() if null
};

/// What a plan must know of the queries.
struct AttendQueries {
  std::int64_t q_heads = 1;  // a multiple of the cache's kv_heads
  DType dtype = DType::f32;
};

/// q [tokens, q_heads, head_dim], any strides: the last `count` tokens of each sequence of `step`
/// (the list append and write take; ids do not matter), one sequence behind the other. Returns
/// [tokens, q_heads, v_head_dim] in q's dtype. Throws Error, before anything is computed, for a
/// stale handle, a count that is negative or more than the sequence has, sizes that do not fit, and
/// for a sequence whose released keys (KVCache::release_before) are not hidden from every query;
/// else as flex_attention.
QUIRE_API Tensor attend(const KVCache& cache, std::int64_t layer, std::span<const NewTokens> step,
                        const ConstTensorView& q, const AttendOptions& options = {});

/// Everything about a step that is the same in all layers. Page tables are read where they lie: a
/// plan is good until the cache changes (write does not count). One run of a plan at a time.
class QUIRE_API AttendPlan {
 public:
  AttendPlan(const KVCache& cache, std::span<const NewTokens> step, const AttendQueries& queries,
             const AttendOptions& options = {});
  AttendPlan(AttendPlan&&) noexcept;
  AttendPlan& operator=(AttendPlan&&) noexcept;
  ~AttendPlan();

  struct Outputs {
    TensorView out;  // [tokens, q_heads, v_head_dim], q's dtype, any strides
    std::optional<TensorView> lse = {}, max_scores = {};  // [tokens, q_heads], row-major
  };

  /// Allocates nothing. Throws Error for another cache than the plan's, one that has changed since,
  /// a layer outside it, and tensors that do not fit.
  void run(const KVCache& cache, std::int64_t layer, const ConstTensorView& q,
           const Outputs& outputs);

  /// Of all sequences.
  std::int64_t tokens() const;
  DType compute_type() const;
  /// Bytes of scratch it holds, for all threads.
  std::size_t scratch_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire

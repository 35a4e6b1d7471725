// Attention with mods in plain f64 loops: the specification of the forward pass. Accepts any float
// dtypes and strides, returns f64. Used by tests, the MATH backend and `quire demo`; shares no code
// with kernels/. Reference layer.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "quire/mod.h"
#include "quire/rope.h"
#include "quire/tensor.h"
#include "reference/dropout.h"

namespace quire::reference {

/// Hq is a multiple of Hkv: query head h reads key head h / (Hq / Hkv).
struct AttentionInputs {
  ConstTensorView q;  // [B, Hq, L, E]
  ConstTensorView k;  // [B or 1, Hkv, S, E]
  ConstTensorView v;  // [B or 1, Hkv, S, Ev]
};

struct AttentionOptions {
  std::optional<ScoreMod> score_mod = std::nullopt;
  std::optional<MaskMod> mask_mod = std::nullopt;
  std::optional<double> scale = std::nullopt;  // 1 / sqrt(E) if not given
  std::int64_t b_begin = 0;                    // b of the first batch
  // q_idx = q_begin + row: empty for 0, one for all batches, or one per batch.
  std::vector<std::int64_t> q_begin = {};
  // Integers [B, L, k] or [B, Hq, L, k]: a row sees only the keys it lists, further restricted by
  // the mask; -1: unused.
  std::optional<ConstTensorView> key_indices = std::nullopt;
  // Queries [first, second) whose weights key_weights sums.
  std::optional<std::pair<std::int64_t, std::int64_t>> key_weights_queries = std::nullopt;
  Dropout dropout = {};  // of the weights; lse and max_scores are not affected
  // One logit per query head, which takes part in the sum of weights but has no value.
  std::optional<std::vector<double>> sinks = std::nullopt;
  // Replaces softmax: the weight of a key as a function of its score after scale and score mod. lse
  // is then the sum of the weights. `normalize`: they are divided by that sum unless it is 0.
  std::optional<ScoreMod> weight_mod = std::nullopt;
  bool normalize = false;
  std::optional<Rope> rope = std::nullopt;  // applied to row q_idx of q and row kv_idx of k
};

/// All f64. A row with nothing to attend to: 0, -inf, -inf.
struct AttentionOutput {
  Tensor out;             // [B, Hq, L, Ev]
  Tensor lse;             // [B, Hq, L], natural log; without the sink
  Tensor lse_with_sinks;  // [B, Hq, L]; for a row that sees nothing, the sink
  Tensor max_scores;      // [B, Hq, L], after the score mod
  Tensor key_weights;     // [B, Hq, S]: softmax weights summed over queries
  Tensor entropy;         // [B, Hq, L], of the softmax weights, in nats
};

/// out = softmax(mod(scale * q k^T)) v, row by row. Keys that the mask hides, or whose score
/// becomes -inf, contribute nothing, whatever they hold; a visible NaN or +inf score makes out and
/// lse of its row NaN. Throws Error for mismatched shapes and for the first fault, in the order b,
/// h, q_idx, kv_idx, of an element the mask does not hide (the mask's own faults before the score
/// mod's).
AttentionOutput attention(const AttentionInputs& inputs, const AttentionOptions& options = {});

}  // namespace quire::reference

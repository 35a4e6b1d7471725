// AttentionProblem: what an attention call computes, without its memory. Every public attention
// function (flex_attention, scaled_dot_product_attention and attend; dense, jagged and paged) fills
// one in; forward and backward plans are made from it. Public; plan layer.
//
//   adapter (flex_attention, attend, ...)  ->  AttentionProblem::dense / jagged / paged / step
//     ->  AttentionPlan: validate, prove the mask, plan  ->  run: tensors in, AttentionOutputs out
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "quire/block_masks.h"
#include "quire/buffer.h"
#include "quire/dtype.h"
#include "quire/executor.h"
#include "quire/export.h"
#include "quire/kv_cache.h"
#include "quire/mod.h"
#include "quire/quantize.h"
#include "quire/rope.h"
#include "quire/shape.h"
#include "quire/tensor.h"

namespace quire {

namespace layout {
class ChosenKeys;
class KeyLayout;
class QueryLayout;
}  // namespace layout
namespace plan {
class VisibleKeys;
}  // namespace plan
namespace attention {
struct CacheStep;
}  // namespace attention

/// Queries [begin, end) of a sequence; negative numbers count from its end.
struct QueryRange {
  std::int64_t begin = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
};

/// What to return besides the output.
struct AuxRequest {
  bool lse = false;  // natural log of the sum of exp(score), per row; -inf if nothing is visible
  bool max_scores = false;  // the largest score of a row, after scale and mod
  /// The sum over queries of the softmax weights, before dropout, that they gave to each key; of
  /// the queries in key_weights_queries, at the cost of these. No gradient.
  bool key_weights = false;
  bool entropy = false;  // of a row's weights and its sink's, in nats; 0 if nothing is visible
  QueryRange key_weights_queries = {};
};

/// f32 (f64 if computed in f64).
struct AuxOutput {
  std::optional<Tensor> lse = {}, max_scores = {};  // one number per row of the output
  /// [B, Hq, S], 0 behind a shorter sequence's keys; of jagged keys [total, Hq], or [Hq, total], in
  /// the keys' order.
  std::optional<Tensor> key_weights = {};
  std::optional<Tensor> entropy = {};  // as lse
};

/// Which gradients are computed. What is not wanted costs nothing.
struct WantedGradients {
  bool q = true;
  bool k = true;
  bool v = true;
  bool buffers = true;     // of the captured buffers that were made with wants_gradient
  bool attn_mask = false;  // scaled_dot_product_attention: of a mask tensor of floats
};

/// Sizes and types of a call. With different lengths of sequences q_len and kv_len are the longest.
struct AttentionShape {
  std::int64_t batch = 0, q_heads = 0, q_len = 0, head_dim = 0;
  std::int64_t kv_batch = 0, kv_heads = 0, kv_len = 0, v_head_dim = 0;
  /// Of codes f32, which they are decoded to.
  DType q_dtype = DType::f32, k_dtype = DType::f32, v_dtype = DType::f32;
  KVFormat k_format = {}, v_format = {};  // plain, or which codes keys and values are

  /// Of three tensors of rank 4. Throws Error for another rank and for sizes that differ.
  QUIRE_API static AttentionShape of(const ConstTensorView& q, const KVView& k, const KVView& v);
  /// f64 if one of q, k and v is, else f32.
  DType compute_type() const {
    const bool is_f64 = q_dtype == DType::f64 || k_dtype == DType::f64 || v_dtype == DType::f64;
    return is_f64 ? DType::f64 : DType::f32;
  }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

/// Which axis comes first in the values of a jagged batch.
enum class JaggedOrder : std::uint8_t {
  kTokens,  // [total, heads, dim]
  kHeads,   // [heads, total, dim]
};

/// A view of a batch of n sequences. Sequence i is the tokens offsets[i] .. offsets[i + 1] - 1, or,
/// with lengths, only the first lengths[i] of them: the rest are holes, never read. Offsets do not
/// fall and end at most at `total`; the first need not be 0. Lengths may be 0.
struct Jagged {
  ConstTensorView values;                       // order below, any strides
  ConstTensorView offsets;                      // i32 or i64 [n + 1]
  std::optional<ConstTensorView> lengths = {};  // i32 or i64 [n]
  JaggedOrder order = JaggedOrder::kTokens;
  /// Keys and values that are codes (quantize.h): `values` holds the codes.
  ConstTensorView scales = {};
  KVFormat format = {};

  KVView view() const { return {values, scales, format}; }
};

/// A view of the keys and values of n sequences. Key j of sequence i is slot j % page_size of page
/// page_table[i, j / page_size]. Sequences may share pages.
struct PagedKeys {
  KVView k, v;                 // [pages, kv_heads, page_size, dim], any strides, or codes
  ConstTensorView page_table;  // i32 or i64 [n, most pages of a sequence], any strides; entries
                               // after a sequence's last page are not read
  ConstTensorView lengths;     // i32 or i64 [n]: keys of each sequence; may be 0
};

/// The queries of a step over a KVCache.
struct AttendQueries {
  std::int64_t q_heads = 1;  // a multiple of the group's kv_heads
  DType dtype = DType::f32;
  std::int64_t group = 0;  // of layers: a plan is for the layers of one
};

/// What is particular about one sequence of a step over a KVCache.
struct SequenceOptions {
  SequenceId sequence;
  /// q_idx of its first query; not given: its queries are its last tokens.
  std::optional<std::int64_t> q_begin = {};
  std::optional<std::int64_t> window = {};  // instead of the step's; 0: none
  std::optional<MaskMod> mask_mod = {};     // instead of the step's
  /// Its last tokens, as many as these and at least its queries, are a tree: of each the number of
  /// its parent among them, which comes before it; -1: the last token before the tree. A token sees
  /// those before the tree, its ancestors and itself, and of these what mask_mod shows. Windows and
  /// mods count along paths: q_idx and kv_idx are depths, the positions that keep() would give.
  std::vector<std::int64_t> parents = {};
  std::optional<std::int64_t> b = {};  // what mods see as b; not given: its number in the step
};

/// What becomes of the weights of a weight_mod.
enum class Normalize : std::uint8_t {
  kNone,  // they are what the formula says
  kSum,   // they are divided by their sum over the row; a row whose sum is 0 gives 0
};

/// The options of every call. What a call has no use for is refused by name.
struct AttentionOptions {
  std::optional<ScoreMod> score_mod = {};
  /// The rule of the mask, proved when the plan is made; not together with block_mask. In mods b is
  /// the number of the batch entry or sequence; q_idx and kv_idx count inside it.
  std::optional<MaskMod> mask_mod = {};
  /// A mask made before: a BlockMask, of jagged batches a JaggedBlockMask. Without any mask
  /// everything is visible; in attend each token sees itself and those before it.
  BlockMasks block_mask = {};
  /// attend: each token sees itself and those before it, the last so many only, and of these what
  /// mask_mod shows. 0: what mask_mod shows; without one all of them.
  std::int64_t window = 0;
  /// attend: of single sequences of the step, by their handles, in any order. Those of sequences
  /// that are not in the step are not used.
  std::vector<SequenceOptions> sequence_options = {};
  std::optional<double> scale = {};  // 1 / sqrt(head_dim) if not given
  bool enable_gqa = false;           // q_heads may be a multiple of kv_heads
  /// q_idx of the first query: one number, or one per batch entry. Empty: the mask's q_begin, or 0;
  /// in attend the token's position.
  std::vector<std::int64_t> q_begin = {};
  /// The keys that each query may see, and of those what the mask shows: i32 or i64 [B, L, k] for
  /// all heads, or [B, Hq, L, k]; of jagged batches and steps [tokens, k], or the shape of q with k
  /// in place of its dim. -1: none. Other keys are never read. Bits are those of the same call with
  /// a mask that shows these keys. Read and checked when a plan is made, which keeps a copy; a key
  /// that is listed twice, or is not there, is an error.
  std::optional<ConstTensorView> key_indices = {};
  /// Weights are dropped with probability dropout_p and the rest divided by 1 - dropout_p, after
  /// the row sum was taken. Whether one is dropped depends on (seed, b, h, q_idx, kv_idx) alone.
  double dropout_p = 0;  // in 0..1
  std::uint64_t seed = 0;
  /// Floats [q_heads]: a logit per head that takes part in the sum of weights and has no value. The
  /// contents are read at each run; with wants_gradient the backward pass gives their gradient, the
  /// last of AttentionGradients::buffers.
  std::optional<Buffer> sinks = {};
  /// lse, where it is given and where the backward pass reads it, is of the whole sum, the sink's
  /// part included; of a row that sees nothing it is the sink. Otherwise of the keys alone.
  bool lse_with_sinks = false;
  /// Instead of softmax: the weight of a key is the formula, of the score after scale and score
  /// mod. A key that is hidden, or whose weight is -inf, has weight 0. lse is then the sum of the
  /// row's weights itself (0 if nothing is visible). Not together with sinks.
  std::optional<ScoreMod> weight_mod = {};
  Normalize normalize = Normalize::kNone;  // with weight_mod
  std::optional<Rope> rope = {};           // rotation of queries and keys when they are read
  AuxRequest return_aux = {};              // functions that return a Tensor: what to put into `aux`
  AuxOutput* aux = nullptr;                // where to put it
  Executor* executor = nullptr;            // default_executor() if null
};

/// What a run keeps of every row instead of writing outputs: (m, l, O) as the order of arithmetic
/// has them, so that keys can be attended to in several runs, by several machines (row_states.h).
enum class KeptStates : std::uint8_t {
  kNone,     // outputs are written
  kRunning,  // one state per row, which the next run goes on from
  kSplits,   // one for each 1,024 keys, to be folded elsewhere
};

/// Made by one of the functions below, which read and check offsets, lengths and page tables.
/// AttentionPlan and AttentionBackwardPlan check the rest. Views are not kept; layouts are shared
/// handles, so that a copy costs little.
struct QUIRE_API AttentionProblem : AttentionShape, AttentionOptions {
  /// The public function that was called: texts of errors begin with it. A string literal.
  const char* function = "flex_attention";
  /// Wider heads are refused. The backward pass of scaled_dot_product_attention takes any.
  std::int64_t most_dims = 1024;
  KeptStates states = KeptStates::kNone;

  std::shared_ptr<const layout::QueryLayout> queries = {};  // null: dense, q_len each
  std::shared_ptr<const layout::KeyLayout> layout = {};     // of the keys; null: dense
  std::shared_ptr<const layout::ChosenKeys> chosen = {};    // key_indices, read and checked
  /// Of a step over a cache: what its queries see, instead of a mask; what is asked where that does
  /// not decide; b of each sequence as mods see it; and which sequences of which cache.
  std::shared_ptr<const plan::VisibleKeys> visible = {};
  std::optional<MaskMod> visible_rule = {};
  std::vector<std::int64_t> mod_b = {};
  std::shared_ptr<const attention::CacheStep> step_of = {};

  // What the tensors of a run must be, in the order in which they are given.
  Shape q_shape = {}, k_shape = {}, v_shape = {};
  JaggedOrder q_order = JaggedOrder::kTokens;  // of rank 3; out and stats have q's
  JaggedOrder k_order = JaggedOrder::kTokens, v_order = JaggedOrder::kTokens;

  static AttentionProblem dense(const AttentionShape& shape, const AttentionOptions& options,
                                const char* function = "flex_attention");
  static AttentionProblem dense(const ConstTensorView& q, const KVView& k, const KVView& v,
                                const AttentionOptions& options,
                                const char* function = "flex_attention");
  static AttentionProblem jagged(const Jagged& q, const Jagged& k, const Jagged& v,
                                 const AttentionOptions& options,
                                 const char* function = "flex_attention");
  static AttentionProblem paged(const ConstTensorView& q, const PagedKeys& keys,
                                const AttentionOptions& options,
                                const char* function = "flex_attention");
  /// Queries of different numbers: those of sequence i of q over the keys of sequence i. No
  /// gradient.
  static AttentionProblem paged(const Jagged& q, const PagedKeys& keys,
                                const AttentionOptions& options,
                                const char* function = "flex_attention");
  /// Page tables are read where they lie: good until the cache changes (write does not count).
  static AttentionProblem step(const KVCache& cache, std::span<const NewTokens> tokens,
                               const AttendQueries& queries, const AttentionOptions& options,
                               const char* function = "attend");

  /// Query heads per key head.
  std::int64_t group() const { return kv_heads == 0 ? 1 : q_heads / kv_heads; }
  /// q_idx of the first query of a sequence.
  std::int64_t begin_of(std::int64_t sequence) const {
    if (q_begin.size() > 1) return q_begin[static_cast<std::size_t>(sequence)];
    return q_begin.empty() ? 0 : q_begin[0];
  }
  /// b of a sequence as mods see it, and a number that is larger than all of them.
  std::int64_t b_of(std::int64_t sequence) const {
    return mod_b.empty() ? sequence : mod_b[static_cast<std::size_t>(sequence)];
  }
  std::int64_t b_end() const;
  bool is_f64() const { return compute_type() == DType::f64; }
  /// All sequences read the same keys: gradients of keys and values are sums over the batch.
  bool shares_keys() const { return layout == nullptr && kv_batch == 1 && batch > 1; }
  /// The rule of mask_mod or block_mask; null if there is none.
  const MaskMod* rule() const;
  /// The shape of `out`, of lse, max_scores and entropy, and of key_weights.
  Shape out_shape() const;
  Shape stats_shape() const;
  Shape key_weights_shape() const;
  /// Of kept states: as q with the elements of a state in the place of its dim, before these the
  /// splits of the longest sequence if they are kept.
  Shape states_shape() const;
};

}  // namespace quire

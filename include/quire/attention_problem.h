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
struct CacheStep;
class VisibleKeys;
}  // namespace plan

/// Queries [begin, end) of a sequence; negative numbers count from its end.
struct QueryRange {
  std::int64_t begin = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
};

/// What to return besides the output.
struct AuxRequest {
  bool lse = false;  // natural log of the sum of exp(score), per row; -inf if nothing is visible
  bool max_scores = false;  // the largest score of a row, after scale and mod
  /// Per key, the sum of the softmax weights (before dropout) that queries gave to it. Only the
  /// queries in key_weights_queries are counted and paid for. No gradient.
  bool key_weights = false;
  bool entropy = false;  // of a row's weights and its sink's, in nats; 0 if nothing is visible
  QueryRange key_weights_queries = {};
};

/// f32, or f64 if computed in f64.
struct AuxOutput {
  std::optional<Tensor> lse = {}, max_scores = {};  // one number per row of the output
  /// [B, Hq, S], 0 after the end of a shorter sequence; for jagged keys [total, Hq] or [Hq, total],
  /// in the keys' order.
  std::optional<Tensor> key_weights = {};
  std::optional<Tensor> entropy = {};  // shaped as lse
};

/// Which gradients are computed. The others cost nothing.
struct WantedGradients {
  bool q = true;
  bool k = true;
  bool v = true;
  bool buffers = true;     // of the captured buffers that were made with wants_gradient
  bool attn_mask = false;  // scaled_dot_product_attention: of a mask tensor of floats
};

/// Sizes and types of a call. For sequences of different lengths, q_len and kv_len are maxima.
struct AttentionShape {
  std::int64_t batch = 0, q_heads = 0, q_len = 0, head_dim = 0;
  std::int64_t kv_batch = 0, kv_heads = 0, kv_len = 0, v_head_dim = 0;
  /// For codes f32, the type they are decoded to.
  DType q_dtype = DType::f32, k_dtype = DType::f32, v_dtype = DType::f32;
  KVFormat k_format = {}, v_format = {};  // plain, or how keys and values are coded

  /// From three tensors of rank 4. Throws Error for another rank and for mismatched sizes.
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

/// A view of a batch of n sequences. Sequence i is the tokens offsets[i] .. offsets[i + 1] - 1 or,
/// with lengths, only the first lengths[i] of them: the rest are holes and never read. Offsets
/// never decrease and end at `total` at most; the first need not be 0. Lengths may be 0.
struct Jagged {
  ConstTensorView values;                       // order below, any strides
  ConstTensorView offsets;                      // i32 or i64 [n + 1]
  std::optional<ConstTensorView> lengths = {};  // i32 or i64 [n]
  JaggedOrder order = JaggedOrder::kTokens;
  /// For codes (quantize.h): `values` holds the codes, this their scales.
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
  std::int64_t group = 0;  // of layers; a plan serves the layers of one group
};

/// Options of a single sequence in a step over a KVCache.
struct SequenceOptions {
  SequenceId sequence;
  /// q_idx of its first query. By default its queries are its last tokens.
  std::optional<std::int64_t> q_begin = {};
  std::optional<std::int64_t> window = {};  // overrides the step's; 0: none
  std::optional<MaskMod> mask_mod = {};     // overrides the step's
  /// Makes its last tokens a tree: for each of them (at least its queries) the index of its parent
  /// among them, which must come earlier; -1 stands for the last token before the tree. A token
  /// sees everything before the tree, its ancestors and itself, restricted by mask_mod. Windows and
  /// mods count along paths: q_idx and kv_idx are depths, the positions that keep() would give.
  std::vector<std::int64_t> parents = {};
  std::optional<std::int64_t> b = {};  // what mods see as b; by default its index in the step
};

/// What is done with the weights of a weight_mod.
enum class Normalize : std::uint8_t {
  kNone,  // used as the formula gives them
  kSum,   // divided by the sum of their row; a row whose sum is 0 gives 0
};

/// The options of every call. A call rejects, by name, options that mean nothing to it.
struct AttentionOptions {
  std::optional<ScoreMod> score_mod = {};
  /// The rule of the mask, proved when the plan is made; not together with block_mask. In mods, b
  /// is the index of the batch entry or sequence; q_idx and kv_idx count inside it.
  std::optional<MaskMod> mask_mod = {};
  /// A mask made earlier: a BlockMask or, for jagged batches, a JaggedBlockMask. Without any mask
  /// everything is visible; in attend each token sees itself and earlier ones.
  BlockMasks block_mask = {};
  /// attend: each token sees itself and earlier ones, `window` tokens in all, restricted by
  /// mask_mod. 0: mask_mod alone decides; without one, itself and all earlier ones.
  std::int64_t window = 0;
  /// attend: options of single sequences of the step, by handle, in any order. Entries for
  /// sequences that are not in the step are ignored.
  std::vector<SequenceOptions> sequence_options = {};
  std::optional<double> scale = {};  // 1 / sqrt(head_dim) if not given
  bool enable_gqa = false;           // q_heads may be a multiple of kv_heads
  /// q_idx of the first query: one number, or one per batch entry. If empty, the mask's q_begin or
  /// 0; in attend the token's position.
  std::vector<std::int64_t> q_begin = {};
  /// The only keys that each query may see, further restricted by the mask: i32 or i64 [B, L, k]
  /// for all heads or [B, Hq, L, k]; for jagged batches and steps [tokens, k], or q's shape with k
  /// in place of the dim. -1 marks an unused entry. Other keys are never read. The bits are those
  /// of the same call with a mask that shows just these keys. The plan checks and copies the list
  /// when it is made; a key that is listed twice or does not exist is an error.
  std::optional<ConstTensorView> key_indices = {};
  /// Weights are dropped with probability dropout_p and the others divided by 1 - dropout_p, after
  /// the row sum was taken. The choice depends only on (seed, b, h, q_idx, kv_idx).
  double dropout_p = 0;  // in 0..1
  std::uint64_t seed = 0;
  /// Floats [q_heads]: a logit per head that takes part in the sum of weights but has no value.
  /// Read at each run; with wants_gradient the backward pass returns its gradient, last in
  /// AttentionGradients::buffers.
  std::optional<Buffer> sinks = {};
  /// Whether lse, as returned and as read by the backward pass, covers the whole sum, the sink
  /// included (for a row that sees nothing it is then the sink), or only the keys.
  bool lse_with_sinks = false;
  /// Replaces softmax: a key's weight is this formula of the score after scale and score mod. A
  /// hidden key, or one whose weight is -inf, has weight 0. lse is then the sum of the row's
  /// weights itself (0 if nothing is visible). Not together with sinks.
  std::optional<ScoreMod> weight_mod = {};
  Normalize normalize = Normalize::kNone;  // with weight_mod
  std::optional<Rope> rope = {};           // rotation of queries and keys when they are read
  AuxRequest return_aux = {};    // what to store in `aux`, for functions that return a Tensor
  AuxOutput* aux = nullptr;      // receives it
  Executor* executor = nullptr;  // default_executor() if null
};

/// What a run keeps of every row instead of writing outputs: (m, l, O) as the order of arithmetic
/// defines them (row_states.h). Keys can then be attended to in several runs, on several machines.
enum class KeptStates : std::uint8_t {
  kNone,     // nothing: outputs are written
  kRunning,  // one state per row, which the next run continues from
  kSplits,   // one state per 1,024 keys, to be folded elsewhere
};

/// Made by one of the functions below, which read and check offsets, lengths and page tables.
/// AttentionPlan and AttentionBackwardPlan check the rest. Views are not kept; layouts are shared,
/// so copies are cheap.
struct QUIRE_API AttentionProblem : AttentionShape, AttentionOptions {
  /// The public function that was called: error texts begin with it. A string literal.
  const char* function = "flex_attention";
  /// Wider heads are rejected. The backward pass of scaled_dot_product_attention accepts any.
  std::int64_t most_dims = 1024;
  KeptStates states = KeptStates::kNone;

  std::shared_ptr<const layout::QueryLayout> queries = {};  // null: dense, q_len each
  std::shared_ptr<const layout::KeyLayout> layout = {};     // of the keys; null: dense
  std::shared_ptr<const layout::ChosenKeys> chosen = {};    // key_indices, read and checked
  /// For a step over a cache: what its queries see (replaces a mask), the rule where that does not
  /// decide, b of each sequence as mods see it, and the sequences and cache themselves.
  std::shared_ptr<const plan::VisibleKeys> visible = {};
  std::optional<MaskMod> visible_rule = {};
  std::vector<std::int64_t> mod_b = {};
  std::shared_ptr<const plan::CacheStep> step_of = {};

  // Required shapes of the tensors of a run, in the order in which they are passed.
  Shape q_shape = {}, k_shape = {}, v_shape = {};
  JaggedOrder q_order = JaggedOrder::kTokens;  // of rank-3 tensors; out and statistics follow q's
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
  /// A varying number of queries: those of sequence i of q over the keys of sequence i. No
  /// gradient.
  static AttentionProblem paged(const Jagged& q, const PagedKeys& keys,
                                const AttentionOptions& options,
                                const char* function = "flex_attention");
  /// Reads the page tables in place: valid until the cache changes (write does not count).
  static AttentionProblem step(const KVCache& cache, std::span<const NewTokens> tokens,
                               const AttendQueries& queries, const AttentionOptions& options,
                               const char* function = "attend");

  /// Query heads per key head.
  std::int64_t group() const { return kv_heads == 0 ? 1 : q_heads / kv_heads; }
  /// Queries and keys of a sequence.
  std::int64_t queries_of(std::int64_t sequence) const;
  std::int64_t keys_of(std::int64_t sequence) const;
  /// q_idx of the first query of a sequence.
  std::int64_t begin_of(std::int64_t sequence) const {
    if (q_begin.size() > 1) return q_begin[static_cast<std::size_t>(sequence)];
    return q_begin.empty() ? 0 : q_begin[0];
  }
  /// b of a sequence as mods see it, and a bound above all of them.
  std::int64_t b_of(std::int64_t sequence) const {
    return mod_b.empty() ? sequence : mod_b[static_cast<std::size_t>(sequence)];
  }
  std::int64_t b_end() const;
  bool is_f64() const { return compute_type() == DType::f64; }
  /// All sequences read the same keys: gradients of keys and values are sums over the batch.
  bool shares_keys() const { return layout == nullptr && kv_batch == 1 && batch > 1; }
  /// The rule of mask_mod or block_mask; null if there is none.
  const MaskMod* rule() const;
  /// The shapes of `out`, of lse, max_scores and entropy, and of key_weights.
  Shape out_shape() const;
  Shape stats_shape() const;
  Shape key_weights_shape() const;
  /// Shape of kept states: q's with the elements of a state in place of the dim; if splits are
  /// kept, the number of splits of the longest sequence comes before that.
  Shape states_shape() const;
};

}  // namespace quire

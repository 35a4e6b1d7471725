// Jagged batches: sequences of different lengths packed one behind the other without padding, and
// flex_attention over them. Sequences never see one another: each has its own keys. Public;
// attention layer.
//
//   Jagged q{q_values, offsets}, k{k_values, offsets}, v{v_values, offsets};
//   Tensor out = flex_attention(q, k, v, {.mask_mod = mods::causal()});
//
// In mods b is the number of the sequence, and q_idx and kv_idx count inside it. A sequence's
// result has the bits of flex_attention over that sequence alone.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "quire/block_mask.h"
#include "quire/executor.h"
#include "quire/export.h"
#include "quire/flex_attention.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire {

/// What comes first in the values of a jagged batch.
enum class JaggedOrder : std::uint8_t {
  kTokens,  // [total, heads, dim]
  kHeads,   // [heads, total, dim]
};

/// A view of a batch of n sequences. Sequence i is the tokens offsets[i] .. offsets[i + 1] - 1, or,
/// with lengths, only the first lengths[i] of them: what is left are holes, never read. Offsets do
/// not fall and end at most at `total`; the first need not be 0. Lengths may be 0.
struct Jagged {
  ConstTensorView values;                       // order below, any strides
  ConstTensorView offsets;                      // i32 or i64 [n + 1]
  std::optional<ConstTensorView> lengths = {};  // i32 or i64 [n]
  JaggedOrder order = JaggedOrder::kTokens;
};

/// The block mask of every sequence of a batch, made from one rule. Sequences of the same lengths
/// share one where the rule does not ask for b.
class QUIRE_API JaggedBlockMask {
 public:
  std::int64_t sequences() const { return static_cast<std::int64_t>(which_.size()); }
  /// That of a sequence: [1, heads, its q_len, its kv_len]. Its mask_mod is the rule, for the
  /// sequence's own b.
  const BlockMask& operator[](std::int64_t sequence) const;
  const MaskMod& mask_mod() const { return mask_mod_; }

  /// For the library's own files: sequence i has masks[which[i]].
  JaggedBlockMask(MaskMod mask_mod, std::vector<BlockMask> masks, std::vector<std::int64_t> which);
  const std::vector<BlockMask>& masks() const { return masks_; }
  const std::vector<std::int64_t>& which() const { return which_; }

 private:
  MaskMod mask_mod_;
  std::vector<BlockMask> masks_;     // different ones
  std::vector<std::int64_t> which_;  // of each sequence
};

/// By proof, each sequence for itself (torch: create_nested_block_mask). `heads` as of
/// create_block_mask. q and kv give offsets and lengths; their values are not read. q_begin,
/// max_bytes and report of the options are not used. Throws Error as create_block_mask does, and
/// for offsets and lengths that are wrong, naming the sequence.
QUIRE_API JaggedBlockMask create_jagged_block_mask(const MaskMod& mask_mod, std::int64_t heads,
                                                   const Jagged& q, const Jagged& kv,
                                                   const BlockMaskOptions& options = {});

struct JaggedAttentionOptions {
  std::optional<ScoreMod> score_mod = {};
  std::optional<MaskMod> mask_mod = {};            // proved per sequence; not with block_mask
  std::optional<JaggedBlockMask> block_mask = {};  // made before, for many layers
  std::optional<double> scale = {};                // 1 / sqrt(head_dim) if not given
  bool enable_gqa = false;
  AuxRequest return_aux = {};
  AuxOutput* aux = nullptr;  // [total, heads], or [heads, total], as q's order; holes: 0
  Executor* executor = nullptr;
};

/// q, k and v: n sequences each, k and v of the same lengths; heads, dims and dtypes as of
/// flex_attention. Returns values in q's order and dtype with as many tokens as q's; holes are 0. A
/// sequence without keys gives 0. Throws Error, naming the sequence, for offsets that fall, end
/// beyond the values or are negative, lengths that do not fit their slot, another dtype or rank,
/// and numbers of sequences that differ; else as flex_attention.
QUIRE_API Tensor flex_attention(const Jagged& q, const Jagged& k, const Jagged& v,
                                const JaggedAttentionOptions& options = {});

/// What depends on offsets, sizes, mods and masks alone, worked out once for every layer. Offsets
/// and lengths are read when it is made. One run of a plan at a time.
class QUIRE_API JaggedAttentionPlan {
 public:
  /// Of q, k and v the values' addresses and strides do not matter.
  JaggedAttentionPlan(const Jagged& q, const Jagged& k, const Jagged& v,
                      const JaggedAttentionOptions& options = {});
  JaggedAttentionPlan(JaggedAttentionPlan&&) noexcept;
  JaggedAttentionPlan& operator=(JaggedAttentionPlan&&) noexcept;
  ~JaggedAttentionPlan();

  struct Outputs {
    TensorView out;                                       // q's order, q's dtype, any strides
    std::optional<TensorView> lse = {}, max_scores = {};  // row-major, compute_type()
  };

  /// Values in the orders of the views the plan was made from. Allocates nothing. Rows that are
  /// holes are not written. Throws Error for tensors of another shape or dtype.
  void run(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
           const Outputs& outputs);

  DType compute_type() const;
  std::size_t scratch_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire

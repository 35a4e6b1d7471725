// Attention over a sequence that is spread over the ranks of a group: which rank holds which tokens
// (Shards), and flex_attention and attend on each rank's share. Outputs have the same bits as one
// process that holds everything. Public; context_parallel layer.
//
//   const Shards shards = plan_shards(mask, comm.size());
//   const Tensor mine = shard(q, shards, comm.rank());           // or made there
//   const Output out = context_parallel::flex_attention(mine, k, v, shards, comm,
//                                                       {.score_mod = mod, .block_mask = mask});
//
// Positions are those of the whole sequence: q_idx and kv_idx in mods, and the mask. A rank
// receives only the keys that one of its queries sees, in ascending order, and attends to them
// while the next ones are in transit.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/attention_problem.h"
#include "quire/block_mask.h"
#include "quire/communicator.h"
#include "quire/export.h"
#include "quire/kv_cache.h"
#include "quire/mod.h"
#include "quire/paged.h"
#include "quire/tensor.h"

namespace quire::context_parallel {

/// Tokens [begin, end) of the sequence.
struct Range {
  std::int64_t begin = 0, end = 0;

  std::int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// Pieces begin at multiples of this, where the order of arithmetic splits the keys of a row.
inline constexpr std::int64_t kPieceUnit = 1024;

/// Which rank holds which pieces of a sequence. A rank's tensors hold its pieces in ascending
/// order. A value.
class QUIRE_API Shards {
 public:
  /// Piece i, the tokens from i * piece_length on, belongs to rank owners[i]. Throws Error unless
  /// piece_length is a multiple of kPieceUnit and every piece has an owner below `ranks`.
  Shards(std::int64_t length, int ranks, std::int64_t piece_length, std::vector<int> owners);

  std::int64_t length() const { return length_; }
  int ranks() const { return ranks_; }
  std::int64_t piece_length() const { return piece_length_; }
  const std::vector<int>& owners() const { return owners_; }
  std::int64_t pieces() const { return static_cast<std::int64_t>(owners_.size()); }
  Range piece(std::int64_t index) const;
  /// Where a piece begins in its owner's tensors.
  std::int64_t place(std::int64_t index) const { return place_[static_cast<std::size_t>(index)]; }
  /// Tokens of a rank: their number, maximal ranges, and positions.
  std::int64_t tokens(int rank) const;
  std::vector<Range> ranges(int rank) const;
  std::vector<std::int64_t> positions(int rank) const;

  friend bool operator==(const Shards&, const Shards&) = default;

 private:
  std::int64_t length_, piece_length_;
  int ranks_;
  std::vector<int> owners_;
  std::vector<std::int64_t> place_, tokens_;
};

struct ShardOptions {
  /// 0: chosen short enough to balance, at most 64 pieces per rank.
  std::int64_t piece_length = 0;
  /// Acceptable imbalance (busiest rank ÷ mean) of visible pairs and of tokens; among plans within
  /// it the one that sends least is taken.
  double balance = 1.04, token_balance = 1.25;
};

/// Balances the visible pairs of a square mask; given a length instead, everything is visible.
/// Gives the same result on every rank. Throws Error for other masks.
QUIRE_API Shards plan_shards(const BlockMask& mask, int ranks, const ShardOptions& options = {});
QUIRE_API Shards plan_shards(std::int64_t length, int ranks, const ShardOptions& options = {});

/// What shards cost, by the blocks of the mask.
struct ShardReport {
  std::vector<double> pairs;              // visible pairs of each rank's queries
  std::vector<std::int64_t> tokens;       // of each rank
  std::vector<std::int64_t> received;     // tokens whose keys and values are sent to a rank
  double balance = 1, token_balance = 1;  // largest ÷ mean
  /// Tokens received ÷ (ranks - 1) * length, what gathering all keys on all ranks would move.
  double share_of_gathering = 0;
};
QUIRE_API ShardReport report(const Shards& shards, const BlockMask& mask);

/// What is sent in flex_attention and its backward pass. The bits of outputs do not depend on it.
enum class Exchange : std::uint8_t {
  kLeast,  // whichever of the two sends fewer bytes, among those that balance the work
  kKeys,   // keys and values, to ranks that need them; best for sparse masks and few key heads
  /// Every rank computes some key heads, and the query heads that share them, over the whole
  /// sequence: their queries, keys and values are sent there, and outputs back. Best where much is
  /// visible and there are about as many key heads as query heads. Gradients have the bits of one
  /// process.
  kHeads,
};

/// Bytes sent in the forward and in the backward pass, by all ranks together, and what gathering
/// all keys and values on all ranks would move.
struct Traffic {
  std::int64_t forward = 0, backward = 0, gathering = 0;
};
/// `shape`: that of the whole sequence or of a rank's part; its lengths are not read. Without a
/// mask everything is visible. Outputs and their gradients count in q's dtype.
QUIRE_API Traffic traffic(const Shards& shards, const std::optional<BlockMask>& mask,
                          const AttentionShape& shape, Exchange exchange = Exchange::kLeast);

/// A rank's tokens along `axis` of a tensor of the whole sequence; and, from the parts, the whole
/// tensor on every rank.
QUIRE_API Tensor shard(const ConstTensorView& whole, const Shards& shards, int rank,
                       std::int64_t axis = 2);
QUIRE_API Tensor unshard(const ConstTensorView& mine, const Shards& shards, Communicator& group,
                         std::int64_t axis = 2);

/// Must be the same on all ranks, which is checked (captured buffers by their shapes).
struct Options {
  std::optional<ScoreMod> score_mod = {};
  std::optional<BlockMask> block_mask = {};  // of the whole sequence; none: everything is visible
  std::optional<double> scale = {};          // 1 / sqrt(head_dim) if not given
  bool enable_gqa = false;
  Exchange exchange = Exchange::kLeast;
  Executor* executor = nullptr;
};

struct Output {
  Tensor out;  // q's shape with v's dim, q's dtype
  Tensor lse;  // out's shape without its last axis, compute type
};

/// q [B, Hq, tokens, E], k [B, Hkv, tokens, E], v [B, Hkv, tokens, Ev]: this rank's, any strides.
/// All ranks must call. out and lse are, bit for bit, this rank's rows of flex_attention over the
/// whole sequence. Memory if keys are sent: the states of q in compute type, a copy of this rank's
/// keys and values, and two pieces of other ranks' keys. If heads are sent: a copy of this rank's
/// tensors and outputs, and two heads of the whole sequence. If one rank finds a mistake, or
/// arguments differ between ranks, all ranks throw Error.
QUIRE_API Output flex_attention(const ConstTensorView& q, const ConstTensorView& k,
                                const ConstTensorView& v, const Shards& shards, Communicator& group,
                                const Options& options = {});

/// For bindings that find a mistake before they can call: makes the other ranks, which have called
/// `function`, throw Error with this text.
QUIRE_API void refuse(const char* function, Communicator& group, const std::string& text);

/// What the forward pass read and returned on this rank, and the gradients of the loss.
struct BackwardInputs {
  ConstTensorView q, k, v, out, lse;
  std::optional<ConstTensorView> d_out = {}, d_lse = {};
};

struct Gradients {
  Tensor q, k, v;  // of this rank's tensors
  /// For the score mod's buffers with wants_gradient, in the order of gradient_buffers: this rank's
  /// part. The sum over all ranks is the gradient, as with other parameters.
  std::vector<Tensor> buffers = {};
};

/// The gradients of flex_attention, the same bits from run to run. If heads are sent, they are
/// those of one process. If keys are sent, they are summed over pieces of keys ascending, then over
/// ranks ascending, in compute type: not the bits of one process, but within the same error bound.
QUIRE_API Gradients flex_attention_backward(const BackwardInputs& inputs, const Shards& shards,
                                            Communicator& group, const Options& options = {});

/// How attend combines the ranks' results.
enum class AttendMode : std::uint8_t {
  kExact,   // a state per 1,024 keys is sent: the bits of one process
  kMerged,  // one state per rank is sent: least traffic, within the error bound
};

struct AttendOptions {
  std::optional<ScoreMod> score_mod = {};
  std::optional<MaskMod> mask_mod = {};  // none: every key is visible
  std::optional<double> scale = {};
  /// Position of the first query of each sequence; if empty, the queries are the last tokens.
  std::vector<std::int64_t> q_begin = {};
  AttendMode mode = AttendMode::kExact;
  Executor* executor = nullptr;
};

/// Decode over spread contexts: q [n, Hq, queries, E], the same on all ranks, over this rank's keys
/// of n sequences in pages (for a KVCache: page_table and its pages), pieces in order as in
/// `shards`, which has one entry per sequence. Every rank gets the whole output.
QUIRE_API Output attend(const ConstTensorView& q, const PagedKeys& keys,
                        std::span<const Shards> shards, Communicator& group,
                        const AttendOptions& options = {});
/// The same over this rank's cache: `sequences` are its handles of the n sequences, which hold this
/// rank's tokens.
QUIRE_API Output attend(const KVCache& cache, std::int64_t layer,
                        std::span<const SequenceId> sequences, const ConstTensorView& q,
                        std::span<const Shards> shards, Communicator& group,
                        const AttendOptions& options = {});

}  // namespace quire::context_parallel

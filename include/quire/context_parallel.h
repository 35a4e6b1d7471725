// Attention over a sequence that is spread over the ranks of a group: which rank holds which tokens
// (Shards), and flex_attention and attend on what each of them holds. Outputs have the bits of one
// process that holds everything. Public; context_parallel layer.
//
//   const Shards shards = plan_shards(mask, comm.size());
//   const Tensor mine = shard(q, shards, comm.rank());           // or made there
//   const Output out = context_parallel::flex_attention(mine, k, v, shards, comm,
//                                                       {.score_mod = mod, .block_mask = mask});
//
// Positions are those of the whole sequence: in mods, q_idx and kv_idx are, and the mask is of the
// whole. Only keys that somebody on a rank sees travel to it, in ascending order, and are attended
// to while the next ones travel.
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

/// Pieces begin at multiples of it: where the order of arithmetic cuts the keys of a row.
inline constexpr std::int64_t kPieceUnit = 1024;

/// Which rank holds which pieces of a sequence. A rank's tensors have its pieces one behind the
/// other, ascending. A value.
class QUIRE_API Shards {
 public:
  /// Piece i, the tokens from i * piece_length on, is held by rank owners[i]. Throws Error unless
  /// piece_length is a multiple of kPieceUnit and there is an owner below `ranks` for every piece.
  Shards(std::int64_t length, int ranks, std::int64_t piece_length, std::vector<int> owners);

  std::int64_t length() const { return length_; }
  int ranks() const { return ranks_; }
  std::int64_t piece_length() const { return piece_length_; }
  const std::vector<int>& owners() const { return owners_; }
  std::int64_t pieces() const { return static_cast<std::int64_t>(owners_.size()); }
  Range piece(std::int64_t index) const;
  /// Where a piece begins in its owner's tensors.
  std::int64_t place(std::int64_t index) const { return place_[static_cast<std::size_t>(index)]; }
  /// Tokens of a rank: how many, as ranges without a gap between them, and one by one.
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
  /// 0: short enough to balance, at most 64 pieces per rank.
  std::int64_t piece_length = 0;
  /// Visible pairs and tokens of the busiest rank ÷ the mean that are good enough; among
  /// plans that hold them the one that sends least is taken.
  double balance = 1.04, token_balance = 1.25;
};

/// Balances the visible pairs of a mask, which is of a sequence with itself; without a mask (a
/// length) everything is visible. The same on every rank. Throws Error for another mask.
QUIRE_API Shards plan_shards(const BlockMask& mask, int ranks, const ShardOptions& options = {});
QUIRE_API Shards plan_shards(std::int64_t length, int ranks, const ShardOptions& options = {});

/// What shards cost, by the blocks of the mask.
struct ShardReport {
  std::vector<double> pairs;              // visible ones, of each rank's queries
  std::vector<std::int64_t> tokens;       // of each rank
  std::vector<std::int64_t> received;     // tokens whose keys and values travel to a rank
  double balance = 1, token_balance = 1;  // of the largest to the mean
  /// Of all tokens received, to what gathering all keys on all ranks moves: (ranks - 1) * length.
  double share_of_gathering = 0;
};
QUIRE_API ShardReport report(const Shards& shards, const BlockMask& mask);
/// Bytes that travel forward, and back in the backward pass, for all ranks together.
struct Traffic {
  std::int64_t forward = 0, backward = 0;
};
QUIRE_API Traffic traffic(const Shards& shards, const BlockMask& mask, const AttentionShape& shape);

/// A rank's tokens along `axis` of a tensor of the whole sequence; and the whole again, on every
/// rank.
QUIRE_API Tensor shard(const ConstTensorView& whole, const Shards& shards, int rank,
                       std::int64_t axis = 2);
QUIRE_API Tensor unshard(const ConstTensorView& mine, const Shards& shards, Communicator& group,
                         std::int64_t axis = 2);

/// The same on all ranks, which is checked (captured buffers by their shapes).
struct Options {
  std::optional<ScoreMod> score_mod = {};
  std::optional<BlockMask> block_mask = {};  // of the whole sequence; none: everything is visible
  std::optional<double> scale = {};          // 1 / sqrt(head_dim) if not given
  bool enable_gqa = false;
  Executor* executor = nullptr;
};

struct Output {
  Tensor out;  // as q with v's dim, q's dtype
  Tensor lse;  // as out without its last axis, compute type
};

/// q [B, Hq, tokens, E], k [B, Hkv, tokens, E], v [B, Hkv, tokens, Ev]: this rank's, any strides.
/// All ranks call at once. Out and lse are, bit by bit, this rank's rows of flex_attention over the
/// whole sequence. Memory: q's states in compute type, own keys and values once more, two pieces of
/// others'. What one rank finds wrong, or what differs between ranks, is an Error on all of them,
/// and no rank has a result.
QUIRE_API Output flex_attention(const ConstTensorView& q, const ConstTensorView& k,
                                const ConstTensorView& v, const Shards& shards, Communicator& group,
                                const Options& options = {});

/// For bindings that find a mistake before they can call: the other ranks, which have called
/// `function`, throw Error with this text.
QUIRE_API void refuse(const char* function, Communicator& group, const std::string& text);

/// What the forward pass read and returned on this rank, and the gradients of the loss.
struct BackwardInputs {
  ConstTensorView q, k, v, out, lse;
  std::optional<ConstTensorView> d_out = {}, d_lse = {};
};

struct Gradients {
  Tensor q, k, v;  // of this rank's tensors
  /// Of the score mod's buffers with wants_gradient, as gradient_buffers has them: the part of this
  /// rank's queries. The sum over all ranks is the gradient, as with other parameters.
  std::vector<Tensor> buffers = {};
};

/// The gradients of flex_attention, the same bits from run to run: sums over pieces of keys
/// ascending, then over ranks ascending, in compute type. Not those of one process, within the same
/// error bound.
QUIRE_API Gradients flex_attention_backward(const BackwardInputs& inputs, const Shards& shards,
                                            Communicator& group, const Options& options = {});

/// How attend brings together what ranks have seen.
enum class AttendMode : std::uint8_t {
  kExact,   // a state of every 1,024 keys travels: the bits of one process
  kMerged,  // one state per rank: least to send, within the error bound
};

struct AttendOptions {
  std::optional<ScoreMod> score_mod = {};
  std::optional<MaskMod> mask_mod = {};  // none: every key is visible
  std::optional<double> scale = {};
  /// Positions of the first queries, one for each sequence; empty: the queries are the last tokens.
  std::vector<std::int64_t> q_begin = {};
  AttendMode mode = AttendMode::kExact;
  Executor* executor = nullptr;
};

/// Decode over contexts that are spread: q [n, Hq, queries, E], the same on all ranks, over this
/// rank's keys of n sequences in pages (of a KVCache: page_table and its pages), pieces one behind
/// the other as in `shards`, one for each sequence. Every rank gets the whole output.
QUIRE_API Output attend(const ConstTensorView& q, const PagedKeys& keys,
                        std::span<const Shards> shards, Communicator& group,
                        const AttendOptions& options = {});
/// The same over this rank's cache: `sequences` are its handles of the n sequences, whose tokens
/// are the rank's.
QUIRE_API Output attend(const KVCache& cache, std::int64_t layer,
                        std::span<const SequenceId> sequences, const ConstTensorView& q,
                        std::span<const Shards> shards, Communicator& group,
                        const AttendOptions& options = {});

}  // namespace quire::context_parallel

// Call: one call of context_parallel on one rank: its sizes, which pieces of keys it needs, and the
// attention of some of its queries over one piece, with rules in the positions of the whole
// sequence. Context_parallel layer.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "context_parallel/agreement.h"
#include "context_parallel/piece_map.h"
#include "context_parallel/traffic.h"
#include "quire/attention.h"
#include "quire/context_parallel.h"

namespace quire::context_parallel {

/// Rows [at, at + range.size()) of a rank's tensors hold tokens `range`.
struct LocalRange {
  Range range;
  std::int64_t at = 0;
};

class Call {
 public:
  /// Checks what this rank was given and, together with the others, that all ranks were given the
  /// same; throws Error on every rank.
  Call(const char* where, const ConstTensorView& q, const ConstTensorView& k,
       const ConstTensorView& v, const Shards& shards, Communicator& group, const Options& options);

  const AttentionShape& shape() const { return shape_; }
  const Shards& shards() const { return shards_; }
  Communicator& group() const { return group_; }
  const Options& options() const { return options_; }
  int rank() const { return group_.rank(); }
  Agreement& agreement() { return agreement_; }
  bool is_mine(std::int64_t piece) const {
    return shards_.owners()[static_cast<std::size_t>(piece)] == rank();
  }
  bool needs(int rank, std::int64_t piece) const {
    return needs_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(piece)];
  }
  /// One past the last piece of keys that a piece of queries sees; 0 if it sees none.
  std::int64_t keys_end(std::int64_t piece) const;
  /// kKeys or kHeads.
  Exchange exchange(Pass pass) const {
    return choose_exchange(options_.exchange, options_.block_mask, shards_, *map_, shape_, pass);
  }
  /// This rank's queries that see a piece of keys, in as few ranges as possible; each range goes
  /// from its first piece of queries that sees it to the last.
  std::vector<LocalRange> queries_of(std::int64_t piece) const;
  /// The attention of those queries over that piece. Keys are counted from the piece's first.
  AttentionProblem problem(const LocalRange& queries, std::int64_t piece) const;

 private:
  AttentionShape shape_;
  const Shards& shards_;
  Communicator& group_;
  const Options& options_;
  Agreement agreement_;
  std::optional<PieceMap> map_;
  std::vector<std::vector<bool>> needs_;  // [rank][piece]
  std::vector<std::int64_t> mine_;        // pieces
};

}  // namespace quire::context_parallel

// PieceMap: a block mask seen piece by piece: which pieces of queries see anything of which pieces
// of keys, and how many visible pairs each piece of queries has. This decides which rank needs
// which keys and how work is balanced. Context_parallel layer.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "quire/block_mask.h"
#include "quire/context_parallel.h"

namespace quire::context_parallel {

class PieceMap {
 public:
  /// Without a mask everything is visible. Batch entries and heads of a mask are counted together.
  PieceMap(const std::optional<BlockMask>& mask, std::int64_t length, std::int64_t piece_length);

  std::int64_t pieces() const { return pieces_; }
  bool sees(std::int64_t q_piece, std::int64_t kv_piece) const {
    return sees_[static_cast<std::size_t>(q_piece * pieces_ + kv_piece)];
  }
  /// Visible pairs of a piece of queries; a partial block counts as half visible.
  double pairs(std::int64_t q_piece) const { return pairs_[static_cast<std::size_t>(q_piece)]; }
  /// [rank][piece]: whether a rank's queries see anything of a piece of keys.
  std::vector<std::vector<bool>> needs(const Shards& shards) const;

 private:
  std::int64_t pieces_;
  std::vector<bool> sees_;
  std::vector<double> pairs_;
};

}  // namespace quire::context_parallel

// Adds up the runs of blocks by pieces. Context_parallel layer.
#include "context_parallel/piece_map.h"

#include <algorithm>
#include <map>

#include "mask/block_rows.h"
#include "runtime/ceil_div.h"

namespace quire::context_parallel {

PieceMap::PieceMap(const std::optional<BlockMask>& mask, std::int64_t length,
                   std::int64_t piece_length)
    : pieces_(ceil_div(length, piece_length)),
      sees_(static_cast<std::size_t>(pieces_ * pieces_), !mask.has_value()),
      pairs_(static_cast<std::size_t>(pieces_)) {
  const auto size = [&](std::int64_t piece) {
    return std::min(piece_length, length - piece * piece_length);
  };
  if (!mask.has_value()) {
    for (std::int64_t i = 0; i < pieces_; ++i)
      pairs_[static_cast<std::size_t>(i)] =
          static_cast<double>(size(i)) * static_cast<double>(length);
    return;
  }
  const mask::BlockRows& rows = mask->block_rows();
  const BlockSize block = mask->block_size();
  std::map<std::int64_t, double> planes;  // how many (batch, head) share each plane
  for (std::int64_t b = 0; b < mask->batch(); ++b)
    for (std::int64_t h = 0; h < mask->heads(); ++h) planes[rows.plane(b, h)] += 1;
  for (const auto& [plane, times] : planes) {
    for (std::int64_t row = 0; row < rows.rows_per_plane(); ++row) {
      const std::int64_t q_begin = row * block.q, q_end = std::min(q_begin + block.q, length);
      double keys = 0;
      for (const BlockRun& run : rows.row(plane, row)) {
        const std::int64_t begin = run.begin * block.kv,
                           end = std::min(run.end() * block.kv, length);
        keys += static_cast<double>(end - begin) * (mask::is_full(run.kind) ? 1 : 0.5);
        for (std::int64_t q = q_begin / piece_length; q * piece_length < q_end; ++q)
          for (std::int64_t kv = begin / piece_length; kv * piece_length < end; ++kv)
            sees_[static_cast<std::size_t>(q * pieces_ + kv)] = true;
      }
      for (std::int64_t q = q_begin / piece_length; q * piece_length < q_end; ++q) {
        const std::int64_t first = std::max(q_begin, q * piece_length);
        const std::int64_t last = std::min(q_end, (q + 1) * piece_length);
        pairs_[static_cast<std::size_t>(q)] += times * keys * static_cast<double>(last - first);
      }
    }
  }
}

std::vector<std::vector<bool>> PieceMap::needs(const Shards& shards) const {
  std::vector<std::vector<bool>> found(static_cast<std::size_t>(shards.ranks()),
                                       std::vector<bool>(static_cast<std::size_t>(pieces_)));
  for (std::int64_t q = 0; q < pieces_; ++q) {
    std::vector<bool>& of =
        found[static_cast<std::size_t>(shards.owners()[static_cast<std::size_t>(q)])];
    for (std::int64_t kv = 0; kv < pieces_; ++kv)
      if (sees(q, kv)) of[static_cast<std::size_t>(kv)] = true;
  }
  return found;
}

}  // namespace quire::context_parallel

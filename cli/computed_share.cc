// Counts pairs in non-empty blocks, plane by plane. Command line layer.
#include "computed_share.h"

#include <algorithm>
#include <map>

namespace quire::cli {
namespace {

double pairs_of_plane(const BlockMask& mask, std::int64_t b, std::int64_t h) {
  const BlockSize size = mask.block_size();
  const auto [q_len, kv_len] = mask.seq_lengths();
  double pairs = 0;
  for (std::int64_t row = 0; row < mask.q_blocks(); ++row) {
    std::int64_t keys = 0;
    for (const BlockRun& run : mask.runs(b, h, row))
      keys += std::min(run.end() * size.kv, kv_len) - run.begin * size.kv;
    const std::int64_t queries = std::min(size.q, q_len - row * size.q);
    pairs += static_cast<double>(queries) * static_cast<double>(keys);
  }
  return pairs;
}

}  // namespace

double computed_share(const BlockMask& mask) {
  std::map<std::int64_t, double> of_plane;
  double pairs = 0;
  for (std::int64_t b = 0; b < mask.batch(); ++b) {
    for (std::int64_t h = 0; h < mask.heads(); ++h) {
      const auto [found, is_new] = of_plane.try_emplace(mask.plane(b, h));
      if (is_new) found->second = pairs_of_plane(mask, b, h);
      pairs += found->second;
    }
  }
  const auto [q_len, kv_len] = mask.seq_lengths();
  const double all = static_cast<double>(mask.batch() * mask.heads()) * static_cast<double>(q_len) *
                     static_cast<double>(kv_len);
  return all > 0 ? pairs / all : 0;
}

}  // namespace quire::cli

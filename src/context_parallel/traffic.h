// What travels in a call, in bytes, and which of two ways is taken. Context_parallel layer.
#pragma once
#include <cstdint>
#include <optional>

#include "context_parallel/piece_map.h"
#include "quire/context_parallel.h"

namespace quire::context_parallel {

/// kKeys or kHeads, for kLeast by bytes: heads where each rank gets as many of them, the mask is
/// the same for all, and fewer bytes travel.
enum class Pass : std::uint8_t { kForward, kBackward };
Exchange choose_exchange(Exchange asked, const std::optional<BlockMask>& mask, const Shards& shards,
                         const PieceMap& map, const AttentionShape& shape, Pass pass);

}  // namespace quire::context_parallel

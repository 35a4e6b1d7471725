// How many bytes a call sends, and which of the two exchanges it uses. Context_parallel layer.
#pragma once
#include <cstdint>
#include <optional>

#include "context_parallel/piece_map.h"
#include "quire/context_parallel.h"

namespace quire::context_parallel {

enum class Pass : std::uint8_t { kForward, kBackward };

/// Returns kKeys or kHeads. kLeast is decided by bytes: heads if all ranks get equally many, the
/// mask is the same for all heads, and fewer bytes are sent.
Exchange choose_exchange(Exchange asked, const std::optional<BlockMask>& mask, const Shards& shards,
                         const PieceMap& map, const AttentionShape& shape, Pass pass);

}  // namespace quire::context_parallel

// Groups sequences that begin with keys in the same memory, so that their rows walk those keys
// together, in whole tiles. Each continues alone from there with its own state, so no bit depends
// on the grouping. Plan layer.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/forward_request.h"

namespace quire::plan {

/// Rows of a key head that walk a prefix together. The decode kernel takes fewer; while it takes
/// the next ones the keys of the split, 256 KiB of bf16 at 64 + 64 dims, are in the caches.
inline constexpr std::int64_t kPrefixRows = 96;

struct SharedPrefix {
  std::int64_t first = 0, count = 0;  // of its members, in SharedPrefixes::members
  std::int64_t rows = 0;              // of all members, per key head
  std::int64_t tiles = 0;             // of keys
};

struct SharedPrefixes {
  std::vector<SharedPrefix> prefixes;
  std::vector<std::int32_t> members;  // sequences
};

/// Costs a sort of the sequences that decode and, where some may share, a comparison of neighbours.
SharedPrefixes find_shared_prefixes(const ForwardRequest& request);

}  // namespace quire::plan

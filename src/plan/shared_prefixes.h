// Groups sequences that begin with keys in the same memory, so that their rows walk those keys
// once: in whole tiles, as many sequences as the decode kernel takes rows. Each continues alone
// from there with its own state, so no bit depends on the grouping. Plan layer.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/forward_request.h"

namespace quire::plan {

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

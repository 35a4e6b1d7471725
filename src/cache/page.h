// Page: what the cache knows about one page of a group's pool; plain data, written by PagePool. The
// rows are elsewhere. Cache layer.
#pragma once
#include <cstdint>

#include "quire/kv_cache.h"

namespace quire::cache {

// No node of the prefix index.
inline constexpr std::int32_t kNoNode = -1;

// 32 bytes, half a cache line: taking or dropping a page touches one.
struct alignas(32) Page {
  std::int32_t refs = 0;  // sequences that hold it
  std::int32_t fill = 0;  // slots that hold a token
  // Links in the list of free pages (next only) or of cached ones.
  std::int32_t previous = kNoPage, next = kNoPage;
  // Its node in the prefix index; kNoNode: it cannot be found.
  std::int32_t node = kNoNode;

  bool is_findable() const noexcept { return node != kNoNode; }
};
static_assert(sizeof(Page) == 32);

}  // namespace quire::cache

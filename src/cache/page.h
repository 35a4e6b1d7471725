// Page: what the cache knows about one page of a group's pool; plain data that PagePool writes. The
// rows are elsewhere. Cache layer.
#pragma once
#include <cstdint>

#include "quire/kv_cache.h"

namespace quire::cache {

// Where there is no node of the prefix index.
inline constexpr std::int32_t kNoNode = -1;

// 32 bytes, half a cache line: taking or dropping a page touches one.
struct alignas(32) Page {
  std::int32_t refs = 0;  // sequences that hold it
  std::int32_t fill = 0;  // slots that hold a token
  // In the list of free pages (next only) or of cached ones.
  std::int32_t previous = kNoPage, next = kNoPage;
  // Of the prefix index, where it can be found; kNoNode: it cannot.
  std::int32_t node = kNoNode;

  bool is_findable() const noexcept { return node != kNoNode; }
};
static_assert(sizeof(Page) == 32);

}  // namespace quire::cache

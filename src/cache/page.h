// Page: what the cache records about one page of its pool. Plain data, written by PagePool and
// PrefixIndex; the rows are stored elsewhere. Cache layer.
#pragma once
#include <cstdint>

#include "quire/kv_cache.h"

namespace quire::cache {

// 64 bytes, a cache line: taking or dropping a page touches one.
struct alignas(64) Page {
  std::int32_t refs = 0;  // sequences that hold it
  std::int32_t fill = 0;  // slots that hold a token
  // In the list of free pages (next only) or of cached ones.
  std::int32_t previous = kNoPage, next = kNoPage;
  // In its bucket of the prefix index, while `serial` is not 0.
  std::int32_t bucket_previous = kNoPage, bucket_next = kNoPage;
  // Never given twice; 0: cannot be found by prefix. `parent` is the serial of the page before it
  // in its prefix, 0 for a first page, which has the salt instead.
  std::uint64_t serial = 0, parent = 0, salt = 0;
  // Of the prefix that ends with this page; valid while a sequence counts it among its `chained`
  // pages, or it can be found. The serial is that of the page that is found for these ids, which
  // may be another one with the same.
  std::uint64_t chain_hash = 0, chain_serial = 0;
};
static_assert(sizeof(Page) == 64);

}  // namespace quire::cache

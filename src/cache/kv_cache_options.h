// Checks the options of a KVCache and fills in defaults. Cache layer.
#pragma once
#include "quire/kv_cache.h"

namespace quire::cache {

// Throws Error for what KVCache's constructor rejects. Groups are filled in even if there is only
// one; layers and n_pages are sums.
KVCacheOptions checked_options(KVCacheOptions options);

}  // namespace quire::cache

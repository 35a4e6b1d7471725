// The options of a KVCache, checked and with everything filled in. Cache layer.
#pragma once
#include "quire/kv_cache.h"

namespace quire::cache {

// Throws Error for what KVCache's constructor refuses. Groups are filled in, also where there is
// one; layers and n_pages are sums.
KVCacheOptions checked_options(KVCacheOptions options);

}  // namespace quire::cache

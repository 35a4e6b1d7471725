// Any bytes as a saved sequence of a KVCache: load refuses them with an Error and leaves the cache
// as it was, or makes a sequence that is saved as the same bytes. They are tried as they are and
// with their checksum made right, without which no change would get past it.
#include <cstring>
#include <span>
#include <vector>

#include "cache/xxh64.h"
#include "fuzz/targets.h"
#include "quire/error.h"
#include "quire/kv_cache.h"

namespace quire::fuzz {
namespace {

// Where the checksum lies in a saved sequence, and what it is of: what is before and behind it.
constexpr std::size_t kChecksumAt = 72, kHeader = 80;

void make_checksum_right(std::vector<std::byte>& state) {
  const std::span<const std::byte> bytes(state);
  const std::uint64_t sum =
      cache::xxh64(bytes.subspan(kHeader), cache::xxh64(bytes.first(kChecksumAt), 0));
  std::memcpy(state.data() + kChecksumAt, &sum, sizeof(sum));
}

void load(KVCache& cache, const std::vector<std::byte>& state) {
  const KVCacheStats before = cache.stats();
  try {
    const SequenceId loaded = cache.load(state);
    check(cache.save(loaded) == state, "a sequence that was loaded is saved as the same bytes");
    cache.release(loaded);
  } catch (const Error&) {
  }
  check(
      cache.stats().sequences == before.sequences && cache.stats().used_pages == before.used_pages,
      "a load that fails leaves the cache as it was, and a release gives all back");
}

}  // namespace

void kv_cache_state(Bytes bytes) {
  KVCache cache({.layers = 2, .kv_heads = 1, .head_dim = 2, .page_size = 3, .n_pages = 6});
  const SequenceId other = cache.create();
  cache.append(other, 2);
  const auto all = std::as_bytes(bytes);
  std::vector<std::byte> state(all.begin(), all.end());
  load(cache, state);
  if (state.size() >= kHeader) {
    make_checksum_right(state);
    load(cache, state);
  }
  check(cache.length(other) == 2, "the other sequence stays");
}

}  // namespace quire::fuzz

// Any bytes as a saved sequence of a KVCache, from memory and from a source that gives them in
// pieces: load refuses them with an Error and leaves sequences as they were, or makes a sequence
// that is saved as the same bytes. They are tried as they are and with their checksums made right,
// without which no change would get past them; with one group of layers and with two.
#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "cache/xxh64.h"
#include "fuzz/targets.h"
#include "quire/error.h"
#include "quire/kv_cache.h"

namespace quire::fuzz {
namespace {

// Of the header, and of what follows it.
void make_checksums_right(std::vector<std::byte>& state, std::size_t header) {
  constexpr std::size_t kSum = 8;
  if (state.size() < header) return;
  const std::span<const std::byte> bytes(state);
  const std::uint64_t first = cache::xxh64(bytes.first(header - kSum), 0);
  std::memcpy(state.data() + header - kSum, &first, kSum);
  if (state.size() < header + kSum) return;
  const std::uint64_t rest = cache::xxh64(bytes.subspan(header, state.size() - header - kSum), 0);
  std::memcpy(state.data() + state.size() - kSum, &rest, kSum);
}

void load(KVCache& cache, const std::vector<std::byte>& state) {
  const KVCacheStats before = cache.stats();
  const auto is_as_before = [&] {
    return cache.stats().sequences == before.sequences &&
           cache.stats().used_pages == before.used_pages;
  };
  try {
    const SequenceId loaded = cache.load(state);
    check(cache.save(loaded) == state, "a sequence that was loaded is saved as the same bytes");
    cache.release(loaded);
  } catch (const Error&) {
  }
  check(is_as_before(),
        "a load that fails leaves the cache as it was, and a release gives all back");
  std::span<const std::byte> rest(state);
  const auto source = [&](std::span<std::byte> to) {
    const std::size_t n = std::min<std::size_t>({to.size(), rest.size(), 7});
    std::ranges::copy(rest.first(n), to.begin());
    rest = rest.subspan(n);
    return n;
  };
  try {
    cache.release(cache.load_from(source));
  } catch (const Error&) {
  }
  check(is_as_before(), "the same from a source");
  rest = state;
  try {
    for (const LoadedSequence& one : cache.load_all(source)) cache.release(one.sequence);
  } catch (const Error&) {
  }
  check(is_as_before(), "the same of all sequences of a cache");
}

void try_with(const KVCacheOptions& options, std::size_t header, std::vector<std::byte> state) {
  KVCache cache(options);
  const SequenceId other = cache.create();
  cache.append(other, 2);
  load(cache, state);
  make_checksums_right(state, header);
  load(cache, state);
  check(cache.length(other) == 2, "the other sequence stays");
}

}  // namespace

void kv_cache_state(Bytes bytes) {
  const auto all = std::as_bytes(bytes);
  const std::vector<std::byte> state(all.begin(), all.end());
  // 40 bytes, 56 for each group, 8 for each layer, the checksum.
  try_with({.layers = 2, .kv_heads = 1, .head_dim = 2, .page_size = 3, .n_pages = 6},
           40 + 56 + 2 * 8 + 8, state);
  try_with({.page_size = 3,
            .groups = {{.layers = {1}, .kv_heads = 1, .head_dim = 2, .n_pages = 6},
                       {.layers = {0}, .kv_heads = 2, .head_dim = 1, .window = 4, .n_pages = 4}}},
           40 + 2 * 56 + 2 * 8 + 8, state);
}

}  // namespace quire::fuzz

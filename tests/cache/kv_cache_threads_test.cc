// Many threads read one cache while nobody writes; writers take turns with them. For
// ThreadSanitizer, which sees what is not allowed.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "quire/kv_cache.h"
#include "tests/cache/kv_cache_rows.h"

namespace quire::testing {
namespace {

TEST(KVCacheThreads, ReadersDoNotDisturbOneAnother) {
  KVCache cache({.layers = 2, .kv_heads = 2, .head_dim = 3, .page_size = 4, .n_pages = 64});
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(21));
  const SequenceId b = cache.fork(a, 10);
  for (std::int64_t round = 0; round < 3; ++round) {
    const std::vector<std::int64_t> seen = read_ids(cache, b);
    std::atomic<int> wrong = 0;
    std::vector<std::thread> readers;
    for (int i = 0; i < 4; ++i) {
      readers.emplace_back([&] {
        const KVCache& shared = cache;
        for (int j = 0; j < 20; ++j) {
          const NewTokens step[] = {{a, 3}, {b, 2}};
          const bool right = read_ids(shared, a) == counting(21) && read_ids(shared, b) == seen &&
                             shared.can_reserve(step) && shared.stats().sequences == 2 &&
                             shared.cached_prefix(counting(21)) == 20 && shared.contains(a) &&
                             shared.save(b).size() > 80;
          wrong += !right;
        }
      });
    }
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(wrong, 0);
    append_ids(cache, b, counting(3, 50 + round));
  }
}

TEST(KVCacheThreads, CachesShareNothing) {
  std::vector<std::thread> writers;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&wrong, i] {
      KVCache cache({.layers = 1, .kv_heads = 1, .head_dim = 2, .page_size = 3, .n_pages = 20});
      for (int j = 0; j < 50; ++j) {
        const SequenceId a = cache.create_with_prefix(counting(6, i)).sequence;
        append_ids(cache, a, counting(5, 100 * i));
        const SequenceId b = cache.fork(a, 4);
        append_ids(cache, b, counting(3, i));
        wrong += cache.length(b) != 7;
        cache.release(a);
        cache.release(b);
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace quire::testing

// Many threads read one cache while nobody writes; writers take turns with them. For
// ThreadSanitizer, which sees what is not allowed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "quire/attend.h"
#include "quire/executor.h"
#include "quire/kv_cache.h"
#include "quire/mods.h"
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

// Plans of several threads ask the cache for what was proved before, and find out the same.
TEST(KVCacheThreads, StepsOfSeveralThreadsUnderRules) {
  KVCache cache({.kv_heads = 2, .head_dim = 3, .page_size = 4, .n_pages = 200});
  std::vector<NewTokens> step;
  for (std::int64_t i = 0; i < 6; ++i) {
    step.push_back({cache.create()});
    append_ids(cache, step.back().sequence, counting(40 + 17 * i));
  }
  const AttendOptions options[] = {
      {.mask_mod = mods::streaming(2, 20)}, {.window = 9}, {.mask_mod = mods::sliding_window(70)}};
  Tensor q({6, 2, 3}, DType::f32);
  for (std::int64_t i = 0; i < q.numel(); ++i) q.data_as<float>()[i] = static_cast<float>(i % 7);
  std::atomic<int> wrong = 0;
  for (int round = 0; round < 3; ++round) {
    std::vector<Tensor> expected;
    for (const AttendOptions& one : options) expected.push_back(attend(cache, 0, step, q, one));
    std::vector<std::thread> readers;
    for (std::size_t i = 0; i < 4; ++i) {
      readers.emplace_back([&, i] {
        const auto serial = make_thread_pool(1);
        for (std::size_t j = 0; j < 15; ++j) {
          AttendOptions own = options[(i + j) % 3];
          own.executor = serial.get();
          const Tensor found = attend(std::as_const(cache), 0, step, q, own);
          const Tensor& want = expected[(i + j) % 3];
          wrong += !std::equal(found.data_as<float>(), found.data_as<float>() + found.numel(),
                               want.data_as<float>());
        }
      });
    }
    for (std::thread& reader : readers) reader.join();
    for (const NewTokens& one : step) append_ids(cache, one.sequence, counting(1, 900 + round));
  }
  EXPECT_EQ(wrong, 0);
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

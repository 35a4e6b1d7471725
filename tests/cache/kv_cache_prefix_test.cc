// Prefixes found again: whole pages, by ids and salt and nothing else, evicted least recently used
// first.
#include <gtest/gtest.h>

#include "quire/kv_cache.h"
#include "tests/cache/kv_cache_invariants.h"
#include "tests/cache/kv_cache_rows.h"

namespace quire::testing {
namespace {

std::uint64_t always_equal(std::uint64_t, std::span<const std::int64_t>) noexcept { return 42; }

const KVCacheOptions kSmall{
    .layers = 2, .kv_heads = 1, .head_dim = 3, .page_size = 4, .n_pages = 8};

TEST(KVCachePrefix, FullPagesOfALiveSequenceAreShared) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(10));
  EXPECT_EQ(cache.cached_prefix(counting(20)), 8);
  const auto [b, found] = cache.create_with_prefix(counting(20));
  EXPECT_EQ(found, 8);
  EXPECT_EQ(cache.view(b).pages[0], cache.view(a).pages[0]);
  EXPECT_EQ(cache.view(b).pages[1], cache.view(a).pages[1]);
  EXPECT_EQ(read_ids(cache, b), counting(8));
  EXPECT_EQ(cache.stats().used_pages, 3);
  EXPECT_EQ(cache.cached_prefix(counting(7)), 4);
  EXPECT_EQ(cache.cached_prefix(counting(3)), 0);
  EXPECT_EQ(cache.cached_prefix({}), 0);
  std::vector<std::int64_t> other = counting(10);
  other[5] = -7;
  EXPECT_EQ(cache.cached_prefix(other), 4);
  other[0] = 1;
  EXPECT_EQ(cache.cached_prefix(other), 0);
}

TEST(KVCachePrefix, ReleasedPagesStayUntilTheyAreNeeded) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(10));
  cache.release(a);
  EXPECT_EQ(cache.stats().cached_pages, 2);
  EXPECT_EQ(cache.stats().free_pages, 6);
  EXPECT_EQ(cache.stats().used_pages, 0);
  const auto [b, found] = cache.create_with_prefix(counting(9));
  EXPECT_EQ(found, 8);
  EXPECT_EQ(read_ids(cache, b), counting(8));
  cache.release(b);
  const SequenceId c = cache.create();
  EXPECT_TRUE(cache.can_reserve(c, 32));
  append_ids(cache, c, counting(28, 100));  // takes the end of the prefix
  EXPECT_EQ(cache.stats().evictions, 1);
  EXPECT_EQ(cache.cached_prefix(counting(10)), 4);
  append_ids(cache, c, counting(1, 200));
  EXPECT_EQ(cache.cached_prefix(counting(10)), 0);
  EXPECT_EQ(broken_invariant(cache), "");
}

TEST(KVCachePrefix, TheLeastRecentlyUsedGoesFirst) {
  KVCache cache(kSmall);
  for (const std::int64_t first : {100, 200, 300}) {
    const SequenceId one = cache.create();
    append_ids(cache, one, counting(8, first));
    cache.release(one);
  }
  cache.release(cache.create_with_prefix(counting(8, 100)).sequence);  // used again
  const SequenceId c = cache.create();
  append_ids(cache, c, counting(16));  // two pages are free, two are taken
  EXPECT_EQ(cache.cached_prefix(counting(8, 100)), 8);
  EXPECT_EQ(cache.cached_prefix(counting(8, 200)), 0);
  EXPECT_EQ(cache.cached_prefix(counting(8, 300)), 8);
}

TEST(KVCachePrefix, TenantsDoNotSeeOneAnother) {
  for (const PageHash hash : {PageHash{nullptr}, PageHash{always_equal}}) {
    KVCacheOptions options = kSmall;
    options.page_hash = hash;
    KVCache cache(options);
    const SequenceId a = cache.create(7);
    append_ids(cache, a, counting(8));
    EXPECT_EQ(cache.cached_prefix(counting(8), 7), 8);
    EXPECT_EQ(cache.cached_prefix(counting(8), 8), 0);
    EXPECT_EQ(cache.cached_prefix(counting(8)), 0);
    const SequenceId b = cache.create_with_prefix(counting(8), 8).sequence;
    append_ids(cache, b, counting(8));
    EXPECT_NE(cache.view(a).pages[0], cache.view(b).pages[0]);
    EXPECT_EQ(cache.cached_prefix(counting(8), 8), 8);
    EXPECT_EQ(broken_invariant(cache), "");
  }
}

// All pages have one hash: only the ids, and what comes before, tell them apart.
TEST(KVCachePrefix, CollisionsNeverReturnAnothersPages) {
  KVCacheOptions options = kSmall;
  options.page_hash = always_equal;
  KVCache cache(options);
  const SequenceId a = cache.create(), b = cache.create();
  append_ids(cache, a, counting(8));
  std::vector<std::int64_t> swapped = counting(4, 4);
  for (const std::int64_t id : counting(4)) swapped.push_back(id);
  append_ids(cache, b, swapped);
  EXPECT_EQ(read_ids(cache, cache.create_with_prefix(counting(8)).sequence), counting(8));
  EXPECT_EQ(read_ids(cache, cache.create_with_prefix(swapped).sequence), swapped);
  EXPECT_EQ(cache.cached_prefix(counting(4, 8)), 0);
  // The same page after another prefix is another page.
  std::vector<std::int64_t> repeated = counting(4);
  for (const std::int64_t id : counting(4)) repeated.push_back(id);
  EXPECT_EQ(cache.cached_prefix(repeated), 4);
}

TEST(KVCachePrefix, OnlyTokensWithIdsFromTheBeginningCount) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  const std::vector<std::int64_t> ids = counting(4);
  const auto append = [&](std::int64_t count, std::span<const std::int64_t> with) {
    const NewTokens step[] = {{a, count, with}};
    const Tensor rows({2, count, 1, 3}, DType::f32);
    cache.append(step, rows, rows);
  };
  append(4, ids);
  append(1, {});
  append(4, ids);
  EXPECT_EQ(cache.view(a).pages.size(), 3u);
  EXPECT_EQ(cache.cached_prefix(ids), 4);
  cache.truncate(a, 4);  // with what had no id
  append(4, ids);
  std::vector<std::int64_t> both = ids;
  both.insert(both.end(), ids.begin(), ids.end());
  EXPECT_EQ(cache.cached_prefix(both), 8);
}

TEST(KVCachePrefix, PagesAreFoundOnlyOnceTheyAreWritten) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  const std::vector<std::int64_t> ids = counting(9);
  const NewTokens step[] = {{a, 9, ids}};
  cache.append(step);
  EXPECT_EQ(cache.cached_prefix(ids), 0);
  const Tensor rows({9, 1, 3}, DType::f32);
  cache.write(0, step, rows, rows);
  EXPECT_EQ(cache.cached_prefix(ids), 0);
  cache.write(1, step, rows, rows);
  EXPECT_EQ(cache.cached_prefix(ids), 8);
}

TEST(KVCachePrefix, RowsThatAreMissingBeforeKeepPagesFromBeingFound) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  const std::vector<std::int64_t> ids = counting(4);
  cache.append(a, 4, ids);
  const NewTokens step[] = {{a, 4, ids}};
  cache.append(step);
  cache.mark_written(step);  // of the second four only
  EXPECT_EQ(cache.cached_prefix(ids), 0);
  const NewTokens all[] = {{a, 8}};
  cache.mark_written(all);
  EXPECT_EQ(cache.cached_prefix(ids), 4);
}

TEST(KVCachePrefix, EqualPagesAreFoundOnceAndLongerPrefixesGoOn) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create(), b = cache.create();
  append_ids(cache, a, counting(4));
  append_ids(cache, b, counting(8));  // its first page equals a's
  EXPECT_NE(cache.view(a).pages[0], cache.view(b).pages[0]);
  const auto [c, found] = cache.create_with_prefix(counting(8));
  EXPECT_EQ(found, 8);
  EXPECT_EQ(cache.view(c).pages[0], cache.view(a).pages[0]);
  EXPECT_EQ(cache.view(c).pages[1], cache.view(b).pages[1]);
  EXPECT_EQ(read_ids(cache, c), counting(8));
}

TEST(KVCachePrefix, RewritingAFoundPageCopiesOrForgetsIt) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(8));
  const SequenceId b = cache.create_with_prefix(counting(8)).sequence;
  cache.truncate(b, 7);  // to compute the last token again
  append_ids(cache, b, counting(1, 7));
  EXPECT_EQ(cache.stats().copied_pages, 1);
  EXPECT_EQ(cache.cached_prefix(counting(8)), 8);
  cache.release(b);
  cache.truncate(a, 6);
  EXPECT_EQ(cache.cached_prefix(counting(8)), 8);  // still there as nobody wrote over it
  append_ids(cache, a, counting(2, 50));
  EXPECT_EQ(cache.stats().copied_pages, 1);
  EXPECT_EQ(cache.cached_prefix(counting(8)), 4);
  std::vector<std::int64_t> changed = counting(6);
  changed.push_back(50);
  changed.push_back(51);
  EXPECT_EQ(cache.cached_prefix(changed), 8);
  EXPECT_EQ(broken_invariant(cache), "");
}

}  // namespace
}  // namespace quire::testing

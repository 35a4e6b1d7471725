// A failure at every single allocation: each call is repeated with its first allocation failing,
// then its second, and so on until it succeeds; each time before that the cache must be as it was.
// Not under a sanitizer, which has allocators of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <new>

#include "quire/attend.h"
#include "quire/error.h"
#include "quire/kv_cache.h"
#include "quire/mods.h"
#include "tests/cache/kv_cache_invariants.h"
#include "tests/cache/kv_cache_rows.h"
#include "tests/support/counted_allocations.h"

namespace quire::testing {
namespace {

const KVCacheOptions kOptions{
    .layers = 2, .kv_heads = 2, .head_dim = 3, .page_size = 4, .n_pages = 64};

// A cache in which every kind of call has something to do: forks that share a page inside, found
// prefixes, cached pages.
struct Prepared {
  Prepared() : cache(kOptions) {
    a = cache.create();
    append_ids(cache, a, counting(10));
    b = cache.fork(a);
    c = cache.fork(a, 7);
    const SequenceId gone = cache.create();
    append_ids(cache, gone, counting(12, 500));
    bytes = cache.save(gone);
    cache.release(gone);
    // No slot is left: whoever makes a sequence needs memory for one.
    while (cache.state().first_free_slot != KVCache::State::kNoSlot) cache.create();
  }
  KVCache cache;
  SequenceId a, b, c;
  std::vector<std::byte> bytes;
};

// Returns how many allocations had to succeed.
long fail_everywhere(const std::function<void(Prepared&)>& call) {
  for (long n = 0; n < 1000; ++n) {
    Prepared prepared;
    const CacheSnapshot before(prepared.cache);
    bool failed = false;
    try {
      const FailingAllocations failing(n);
      call(prepared);
    } catch (const std::bad_alloc&) {
      failed = true;
    } catch (const Error& error) {  // bad_alloc must not become something else
      ADD_FAILURE() << error.what();
    }
    EXPECT_EQ(broken_invariant(prepared.cache), "") << "allocation " << n;
    if (!failed) return n;
    EXPECT_TRUE(before == CacheSnapshot(prepared.cache)) << "allocation " << n;
    call(prepared);  // and works as if nothing had been
    EXPECT_EQ(broken_invariant(prepared.cache), "") << "allocation " << n;
  }
  ADD_FAILURE() << "never succeeds";
  return -1;
}

TEST(KVCacheFailure, AtEveryAllocationNothingChanges) {
  if (!counts_allocations()) GTEST_SKIP();
  const std::vector<std::int64_t> found = counting(12, 500), ids = counting(100);
  const Tensor k = rows_of(kOptions, counting(61), 3);
  EXPECT_GE(fail_everywhere([](Prepared& p) { p.cache.create(); }), 1);
  EXPECT_GE(fail_everywhere([&](Prepared& p) { p.cache.create_with_prefix(found); }), 2);
  EXPECT_GE(fail_everywhere([](Prepared& p) { p.cache.fork(p.a); }), 2);
  EXPECT_GE(fail_everywhere([](Prepared& p) { p.cache.fork(p.b, 5); }), 2);
  EXPECT_GE(fail_everywhere([](Prepared& p) { p.cache.can_reserve(p.a, 5); }), 1);
  EXPECT_GE(fail_everywhere([](Prepared& p) { p.cache.reserve(p.a, 40); }), 2);
  EXPECT_GE(fail_everywhere([](Prepared& p) {
              const NewTokens step[] = {{p.c, 20}, {p.a, 21}, {p.b, 20}};
              p.cache.append(step);
            }),
            4);
  EXPECT_GE(fail_everywhere([&](Prepared& p) {
              const NewTokens step[] = {{p.c, 20}, {p.a, 21}, {p.b, 20}};
              p.cache.append(step, k, k);
            }),
            4);
  EXPECT_GE(fail_everywhere([](Prepared& p) { p.cache.save(p.a); }), 1);
  EXPECT_GE(fail_everywhere([](Prepared& p) { p.cache.load(p.bytes); }), 2);
  EXPECT_GE(fail_everywhere([](Prepared& p) {
              const std::int64_t positions[] = {3, 6, 9};
              p.cache.keep(p.b, 2, positions);
            }),
            2);
  EXPECT_GE(
      fail_everywhere([](Prepared& p) { p.cache.save_to(p.a, [](std::span<const std::byte>) {}); }),
      1);
  EXPECT_GE(fail_everywhere([](Prepared& p) {
              std::span<const std::byte> rest(p.bytes);
              p.cache.load_from([&](std::span<std::byte> to) {
                const std::size_t n = std::min(to.size(), rest.size());
                std::ranges::copy(rest.first(n), to.begin());
                rest = rest.subspan(n);
                return n;
              });
            }),
            2);
  EXPECT_GE(
      fail_everywhere([](Prepared& p) { p.cache.save_all([](std::span<const std::byte>) {}); }), 1);
  EXPECT_GE(fail_everywhere([](Prepared& p) {
              const std::int64_t positions[] = {4, 6};
              const KeptTokens kept[] = {{p.a, 3, positions}, {p.c, 2, positions}};
              p.cache.keep(kept);
            }),
            2);
  EXPECT_GE(fail_everywhere([](Prepared& p) {
              const NewTokens step[] = {{p.a, 2}, {p.b, 1}, {p.c, 3}};
              AttendOptions options{.mask_mod = mods::streaming(1, 4)};
              options.sequence_options = {{.sequence = p.c, .parents = {-1, 0, 0}}};
              const AttendPlan plan(p.cache, step, {.q_heads = 2}, options);
            }),
            10);
  // These need no memory.
  EXPECT_EQ(fail_everywhere([](Prepared& p) { p.cache.commit(p.a, 5); }), 0);
  EXPECT_EQ(fail_everywhere([](Prepared& p) { p.cache.release_between(p.a, 4, 8); }), 0);
  EXPECT_EQ(fail_everywhere([](Prepared& p) { p.cache.truncate(p.a, 5); }), 0);
  EXPECT_EQ(fail_everywhere([](Prepared& p) { p.cache.release_before(p.a, 8); }), 0);
  EXPECT_EQ(fail_everywhere([](Prepared& p) { p.cache.stats(); }), 0);
  EXPECT_EQ(fail_everywhere([&](Prepared& p) { p.cache.cached_prefix(ids); }), 0);
  EXPECT_EQ(fail_everywhere([](Prepared& p) {
              if (p.cache.contains(p.b)) p.cache.release(p.b);
            }),
            0);
}

// load_all into a cache of its own: what failed leaves no sequence and no page behind.
TEST(KVCacheFailure, LoadAllIsAllOrNothing) {
  if (!counts_allocations()) GTEST_SKIP();
  const Prepared from;
  std::vector<std::byte> bytes;
  from.cache.save_all([&](std::span<const std::byte> some) {
    bytes.insert(bytes.end(), some.begin(), some.end());
  });
  long n = 0;
  for (bool done = false; !done && n < 1000; ++n) {
    KVCache to(kOptions);
    std::span<const std::byte> rest(bytes);
    try {
      const FailingAllocations failing(n);
      to.load_all([&](std::span<std::byte> some) {
        const std::size_t count = std::min(some.size(), rest.size());
        std::ranges::copy(rest.first(count), some.begin());
        rest = rest.subspan(count);
        return count;
      });
      done = true;
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(to.stats().sequences, 0) << n;
      EXPECT_EQ(to.stats().used_pages, 0) << n;
    }
    EXPECT_EQ(broken_invariant(to), "") << n;
  }
  EXPECT_GT(n, 10);
  EXPECT_LT(n, 1000);
}

TEST(KVCacheFailure, ACacheThatCannotBeMadeLeaksNothing) {
  if (!counts_allocations()) GTEST_SKIP();
  long n = 0;
  for (bool made = false; !made && n < 1000; ++n) {
    try {
      const FailingAllocations failing(n);
      const KVCache cache(kOptions);
      made = true;
    } catch (const std::bad_alloc&) {
    }
  }
  EXPECT_GT(n, 5);
  EXPECT_LT(n, 1000);
}

TEST(KVCacheFailure, DecodingAllocatesNothing) {
  if (!counts_allocations()) GTEST_SKIP();
  KVCacheOptions options = kOptions;
  options.n_pages = 512;
  KVCache cache(options);
  std::vector<NewTokens> step;
  const std::vector<std::int64_t> id = {7};
  for (int i = 0; i < 64; ++i) {
    step.push_back({cache.create(), 1, id});
    cache.reserve(step.back().sequence, 32);
    cache.truncate(step.back().sequence, 0);  // the page tables stay as large
  }
  const Tensor k({64, 2, 3}, DType::f32);
  const long before = allocations();
  for (int i = 0; i < 30; ++i) {
    cache.append(step);
    for (std::int64_t layer = 0; layer < 2; ++layer) cache.write(layer, step, k, k);
  }
  EXPECT_EQ(allocations(), before);
  EXPECT_EQ(cache.stats().live_tokens, 64 * 30);
}

}  // namespace
}  // namespace quire::testing

// A failure at every single allocation: each call is repeated with its first allocation failing,
// then its second, and so on until it succeeds; each time before that the cache must be as it was.
// Not under a sanitizer, which has allocators of its own.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>

#include "quire/error.h"
#include "quire/kv_cache.h"
#include "tests/cache/kv_cache_invariants.h"
#include "tests/cache/kv_cache_rows.h"

namespace {
// Of this thread: how many allocations succeed before one fails (never, if negative), and how many
// there were.
thread_local long until_failure = -1;
thread_local long allocations = 0;

[[maybe_unused]] void count_allocation() {
  ++allocations;
  if (until_failure == 0) throw std::bad_alloc();
  if (until_failure > 0) --until_failure;
}
}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUIRE_COUNTS_ALLOCATIONS false
#else
#define QUIRE_COUNTS_ALLOCATIONS true
// Not inlined: the compiler would see malloc and free behind new and delete, and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
  count_allocation();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t align) {
  count_allocation();
  const auto unit = static_cast<std::size_t>(align);
  if (void* memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
#endif

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
    until_failure = n;
    try {
      call(prepared);
    } catch (const std::bad_alloc&) {
      failed = true;
    } catch (const Error& error) {  // bad_alloc must not become something else
      ADD_FAILURE() << error.what();
    }
    until_failure = -1;
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
  if (!QUIRE_COUNTS_ALLOCATIONS) GTEST_SKIP();
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
  // These need no memory.
  EXPECT_EQ(fail_everywhere([](Prepared& p) { p.cache.truncate(p.a, 5); }), 0);
  EXPECT_EQ(fail_everywhere([](Prepared& p) { p.cache.release_before(p.a, 8); }), 0);
  EXPECT_EQ(fail_everywhere([](Prepared& p) { p.cache.stats(); }), 0);
  EXPECT_EQ(fail_everywhere([&](Prepared& p) { p.cache.cached_prefix(ids); }), 0);
  EXPECT_EQ(fail_everywhere([](Prepared& p) {
              if (p.cache.contains(p.b)) p.cache.release(p.b);
            }),
            0);
}

TEST(KVCacheFailure, ACacheThatCannotBeMadeLeaksNothing) {
  if (!QUIRE_COUNTS_ALLOCATIONS) GTEST_SKIP();
  long n = 0;
  for (bool made = false; !made && n < 1000; ++n) {
    until_failure = n;
    try {
      const KVCache cache(kOptions);
      made = true;
    } catch (const std::bad_alloc&) {
    }
    until_failure = -1;
  }
  EXPECT_GT(n, 5);
  EXPECT_LT(n, 1000);
}

TEST(KVCacheFailure, DecodingAllocatesNothing) {
  if (!QUIRE_COUNTS_ALLOCATIONS) GTEST_SKIP();
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
  const long before = allocations;
  for (int i = 0; i < 30; ++i) {
    cache.append(step);
    for (std::int64_t layer = 0; layer < 2; ++layer) cache.write(layer, step, k, k);
  }
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(cache.stats().live_tokens, 64 * 30);
}

}  // namespace
}  // namespace quire::testing

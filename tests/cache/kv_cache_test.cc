// KVCache: sequences, tokens and rows, one operation at a time, and the text of every refusal.
// Prefixes, persistence, failures of memory and threads have files of their own.
#include "quire/kv_cache.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <utility>

#include "tests/cache/kv_cache_invariants.h"
#include "tests/cache/kv_cache_rows.h"
#include "tests/support/expect_error.h"

namespace quire::testing {
namespace {

const KVCacheOptions kSmall{.layers = 2,
                            .kv_heads = 3,
                            .head_dim = 5,
                            .v_head_dim = 2,
                            .dtype = DType::f32,
                            .page_size = 4,
                            .n_pages = 10};

std::vector<std::int32_t> pages_of(const KVCache& cache, SequenceId sequence) {
  const auto pages = cache.view(sequence).pages;
  return {pages.begin(), pages.end()};
}

TEST(KVCache, KeepsRowsOfManySequencesInPages) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create(), b = cache.create();
  append_ids(cache, a, counting(5));
  append_ids(cache, b, counting(3, 50));
  append_ids(cache, a, counting(2, 5));
  EXPECT_EQ(read_ids(cache, a), counting(7));
  EXPECT_EQ(read_ids(cache, b), counting(3, 50));
  EXPECT_EQ(cache.length(a), 7);
  EXPECT_EQ(cache.view(a).pages.size(), 2u);
  const KVCacheStats stats = cache.stats();
  EXPECT_EQ(stats.sequences, 2);
  EXPECT_EQ(stats.live_tokens, 10);
  EXPECT_EQ(stats.stored_tokens, 10);
  EXPECT_EQ(stats.used_pages, 3);
  EXPECT_EQ(stats.free_pages, 7);
  EXPECT_EQ(stats.waste, 2.0 / 12);
  EXPECT_EQ(broken_invariant(cache), "");
}

TEST(KVCache, HasHeadMajorPages) {
  const KVCache cache(kSmall);
  EXPECT_EQ(cache.k_pages(1).shape(), (Shape{10, 3, 4, 5}));
  EXPECT_EQ(cache.v_pages(0).shape(), (Shape{10, 3, 4, 2}));
  EXPECT_TRUE(cache.k_pages(0).is_contiguous());
  EXPECT_NE(cache.k_pages(0).data(), cache.k_pages(1).data());
}

TEST(KVCache, ValuesHaveTheKeysDimUnlessTheySayOtherwise) {
  const KVCache cache({.head_dim = 7, .page_size = 1, .n_pages = 1});
  EXPECT_EQ(cache.options().v_head_dim, 7);
  EXPECT_EQ(cache.v_pages(0).shape(), (Shape{1, 1, 1, 7}));
}

TEST(KVCache, AStepWritesLayerByLayer) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create(), b = cache.create();
  append_ids(cache, a, counting(3));
  const std::vector<std::int64_t> more_a = counting(1, 3), more_b = counting(6, 20);
  const NewTokens step[] = {{b, 6, more_b}, {a, 1, more_a}};
  cache.append(step);
  EXPECT_EQ(cache.length(a), 4);
  std::vector<std::int64_t> ids = more_b;
  ids.insert(ids.end(), more_a.begin(), more_a.end());
  const Tensor k = rows_of(kSmall, ids, 5), v = rows_of(kSmall, ids, 2);
  for (std::int64_t layer = 0; layer < 2; ++layer)
    cache.write(layer, step, k.view().select(0, layer), v.view().select(0, layer));
  EXPECT_EQ(read_ids(cache, a), counting(4));
  EXPECT_EQ(read_ids(cache, b), counting(6, 20));
}

TEST(KVCache, RowsMayHaveAnyStridesAndFloatingDtype) {
  for (const DType from : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    for (const DType to : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      KVCacheOptions options = kSmall;
      options.layers = 1;
      options.dtype = to;
      KVCache cache(options);
      const SequenceId a = cache.create();
      // Heads outside of tokens, and every element twice: [heads, tokens, dim, 2].
      Tensor wide({3, 6, 5, 2}, DType::f32);
      for (std::int64_t i = 0; i < wide.numel(); ++i)
        wide.data_as<float>()[i] = static_cast<float>(i % 97);
      const Tensor cast = wide.to(from);
      const ConstTensorView k = cast.view().select(3, 1).transpose(0, 1);
      const ConstTensorView v = k.slice(2, 1, 3);
      const NewTokens step[] = {{a, 6}};
      cache.append(step, k.unsqueeze(0), v.unsqueeze(0));
      const SequenceView view = cache.view(a);
      for (std::int64_t at = 0; at < 6; ++at) {
        const std::int64_t page = view.pages[static_cast<std::size_t>(at / 4)];
        for (std::int64_t head = 0; head < 3; ++head) {
          for (std::int64_t d = 0; d < 5; ++d)
            EXPECT_EQ(cache.k_pages(0).load_float({page, head, at % 4, d}),
                      wide.at<float>({head, at, d, 1}));
          for (std::int64_t d = 0; d < 2; ++d)
            EXPECT_EQ(cache.v_pages(0).load_float({page, head, at % 4, d}),
                      wide.at<float>({head, at, d + 1, 1}));
        }
      }
    }
  }
}

TEST(KVCache, AForkSharesPagesAndCopiesOneWhenSomebodyAppends) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(6));
  const SequenceId b = cache.fork(a, 5);
  EXPECT_EQ(pages_of(cache, a), pages_of(cache, b));
  EXPECT_EQ(cache.stats().used_pages, 2);
  EXPECT_EQ(cache.stats().shared_pages, 2);
  EXPECT_EQ(cache.stats().copied_pages, 0);
  append_ids(cache, b, counting(1, 90));
  EXPECT_EQ(cache.stats().copied_pages, 1);
  EXPECT_EQ(cache.stats().used_pages, 3);
  EXPECT_EQ(cache.stats().shared_pages, 1);
  append_ids(cache, a, counting(2, 6));  // alone with its page now
  EXPECT_EQ(cache.stats().copied_pages, 1);
  EXPECT_EQ(read_ids(cache, a), counting(8));
  EXPECT_EQ(read_ids(cache, b), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 90}));
  EXPECT_EQ(pages_of(cache, a)[0], pages_of(cache, b)[0]);
}

TEST(KVCache, AForkOnAPageBorderCopiesNothing) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(8));
  const SequenceId b = cache.fork(a), c = cache.fork(a, 4), d = cache.fork(a, 0);
  for (const SequenceId one : {a, b, c, d}) append_ids(cache, one, counting(1, 30));
  EXPECT_EQ(cache.stats().copied_pages, 0);
  EXPECT_EQ(read_ids(cache, c), (std::vector<std::int64_t>{0, 1, 2, 3, 30}));
  EXPECT_EQ(read_ids(cache, d), counting(1, 30));
}

// Four that share a page inside need three copies; the last one has it for itself.
TEST(KVCache, SharersAppendInOneStepWithoutACopyTooMany) {
  KVCacheOptions options = kSmall;
  options.n_pages = 4;
  KVCache cache(options);
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(2));
  const SequenceId b = cache.fork(a), c = cache.fork(a), d = cache.fork(a);
  const NewTokens step[] = {{a, 1}, {b, 2}, {c, 1}, {d, 2}};
  EXPECT_TRUE(cache.can_reserve(step));
  cache.append(step);
  EXPECT_EQ(cache.stats().copied_pages, 3);
  EXPECT_EQ(cache.stats().free_pages, 0);
  EXPECT_EQ(broken_invariant(cache), "");
}

TEST(KVCache, OutOfPagesNothingChanges) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create(), b = cache.create();
  append_ids(cache, a, counting(6));
  const NewTokens step[] = {{a, 3}, {b, 32}};
  const CacheSnapshot before(cache);
  EXPECT_FALSE(cache.can_reserve(step));
  expect_error(ErrorKind::runtime, "[KVCache::append] out of pages: 9 needed, 8 free and 0 cached",
               [&] { cache.append(step); });
  expect_error(ErrorKind::runtime, "[KVCache::reserve] out of pages: 9 needed, 8 free and 0 cached",
               [&] { cache.reserve(step); });
  EXPECT_FALSE(cache.can_reserve(b, std::numeric_limits<std::int64_t>::max()));
  EXPECT_TRUE(before == CacheSnapshot(cache));
  EXPECT_TRUE(cache.can_reserve(b, 32));
}

TEST(KVCache, ReservedPagesAreThereForTheSequenceAlone) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create(), b = cache.create();
  cache.reserve(a, 30);
  EXPECT_EQ(cache.stats().used_pages, 8);
  EXPECT_EQ(cache.length(a), 0);
  EXPECT_TRUE(cache.view(a).pages.empty());
  EXPECT_FALSE(cache.can_reserve(b, 9));
  EXPECT_TRUE(cache.can_reserve(a, 40));  // 2 more
  append_ids(cache, b, counting(8));
  append_ids(cache, a, counting(32));
  EXPECT_EQ(read_ids(cache, a), counting(32));
  cache.truncate(a, 5);
  EXPECT_EQ(cache.stats().used_pages, 4);
  cache.reserve(a, 24);
  cache.truncate(a, 5);  // gives reserved pages back as well
  EXPECT_EQ(cache.stats().used_pages, 4);
}

TEST(KVCache, TruncatedTokensAreGoneAndPagesFree) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(11));
  cache.truncate(a, 5);
  EXPECT_EQ(read_ids(cache, a), counting(5));
  EXPECT_EQ(cache.stats().stored_tokens, 8);  // its last page can still be found by prefix
  append_ids(cache, a, counting(2, 60));
  EXPECT_EQ(cache.stats().stored_tokens, 7);
  EXPECT_EQ(read_ids(cache, a), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 60, 61}));
  cache.truncate(a, 0);
  EXPECT_EQ(cache.stats().used_pages, 0);
  EXPECT_EQ(cache.length(a), 0);
}

TEST(KVCache, TruncatingOneOfTwoLeavesTheOther) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(7));
  const SequenceId b = cache.fork(a);
  cache.truncate(a, 5);
  append_ids(cache, a, counting(1, 70));
  EXPECT_EQ(read_ids(cache, b), counting(7));
  EXPECT_EQ(read_ids(cache, a), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 70}));
}

TEST(KVCache, ASlidingWindowGivesPagesBack) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  for (std::int64_t i = 0; i < 400; ++i) {  // ten times what the pool holds
    const NewTokens step[] = {{a, 1}};
    const std::vector<std::int64_t> id = counting(1, i);
    cache.append(step, rows_of(kSmall, id, 5), rows_of(kSmall, id, 2));
    cache.release_before(a, std::max<std::int64_t>(0, i - 9));
    EXPECT_LE(cache.stats().used_pages, 4);
  }
  const SequenceView view = cache.view(a);
  EXPECT_EQ(view.length, 400);
  EXPECT_EQ(view.begin, 388);
  EXPECT_EQ(view.pages[96], kNoPage);
  EXPECT_EQ(read_ids(cache, a), counting(12, 388));
  cache.release_before(a, 100);  // long gone
  EXPECT_EQ(cache.view(a).begin, 388);
  const SequenceId b = cache.fork(a, 390);
  EXPECT_EQ(read_ids(cache, b), counting(2, 388));
  expect_error(ErrorKind::value,
               "[KVCache::truncate] length must not lie before 388, what comes earlier was "
               "released; got 387",
               [&] { cache.truncate(a, 387); });
  expect_error(ErrorKind::value,
               "[KVCache::release_before] position must be in 0..400, the length; got 401",
               [&] { cache.release_before(a, 401); });
  EXPECT_EQ(broken_invariant(cache), "");
}

TEST(KVCache, HandlesOfReleasedSequencesAreRefused) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  cache.release(a);
  const SequenceId b = cache.create();  // in the same slot
  EXPECT_EQ(a.slot, b.slot);
  EXPECT_NE(a, b);
  EXPECT_FALSE(cache.contains(a));
  EXPECT_TRUE(cache.contains(b));
  EXPECT_FALSE(cache.contains(SequenceId{}));
  for (const auto& [name, call] : std::vector<std::pair<std::string, std::function<void()>>>{
           {"release", [&] { cache.release(a); }},
           {"fork", [&] { cache.fork(a); }},
           {"fork", [&] { cache.fork(a, 0); }},
           {"truncate", [&] { cache.truncate(a, 0); }},
           {"release_before", [&] { cache.release_before(a, 0); }},
           {"can_reserve", [&] { cache.can_reserve(a, 1); }},
           {"reserve", [&] { cache.reserve(a, 1); }},
           {"append", [&] { cache.append(a, 1); }},
           {"view", [&] { cache.length(a); }},
           {"save", [&] { cache.save(a); }}}) {
    expect_error(ErrorKind::value,
                 "[KVCache::" + name + "] the handle is stale: its sequence was released",
                 [&] { call(); });
  }
  expect_error(ErrorKind::value, "[KVCache::view] the handle belongs to no sequence of this cache",
               [&] { cache.view(SequenceId{}); });
}

TEST(KVCache, RefusesStepsThatMakeNoSense) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  const std::vector<std::int64_t> ids = counting(2);
  const NewTokens twice[] = {{a, 1}, {a, 1}};
  expect_error(ErrorKind::value, "[KVCache::append] a sequence must not appear twice in a step",
               [&] { cache.append(twice); });
  expect_error(ErrorKind::value,
               "[KVCache::can_reserve] a sequence must not appear twice in a step",
               [&] { cache.can_reserve(twice); });
  expect_error(ErrorKind::value, "[KVCache::append] count must not be negative; got -1",
               [&] { cache.append(a, -1); });
  expect_error(ErrorKind::value,
               "[KVCache::append] ids must be as many as count, or none; got 2 and 3",
               [&] { cache.append(a, 3, ids); });
  cache.append(a, 0);
  cache.append(std::span<const NewTokens>{});
  EXPECT_EQ(cache.length(a), 0);
}

TEST(KVCache, RefusesRowsThatDoNotFit) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  const NewTokens step[] = {{a, 2}};
  cache.append(step);
  const Tensor k({2, 3, 5}, DType::f32), v({2, 3, 2}, DType::f32), ints({2, 3, 5}, DType::i32);
  expect_error(ErrorKind::index, "[KVCache::write] layer must be in 0..1; got 2",
               [&] { cache.write(2, step, k, v); });
  expect_error(ErrorKind::value, "[KVCache::write] v must have shape [2, 3, 2]; got [2, 3, 5]",
               [&] { cache.write(0, step, k, k); });
  expect_error(ErrorKind::type, "[KVCache::write] k must be f32, f64, bf16 or f16; got i32",
               [&] { cache.write(0, step, ints, v); });
  const NewTokens more[] = {{a, 3}};
  expect_error(ErrorKind::value,
               "[KVCache::write] the sequence must have as many tokens as count; got 2 and 3",
               [&] { cache.write(0, more, k, v); });
  expect_error(ErrorKind::value, "[KVCache::append] k must have shape [2, 3, 3, 5]; got [2, 3, 5]",
               [&] { cache.append(more, k, v); });
  EXPECT_EQ(cache.length(a), 2);
  cache.write(0, step, k, v);
  cache.write(1, step, k, v);
  cache.fork(a);
  expect_error(ErrorKind::value,
               "[KVCache::write] position 0 is in a page that is shared or can be found by prefix; "
               "its rows were written before",
               [&] { cache.write(0, step, k, v); });
  expect_error(ErrorKind::index, "[KVCache::k_pages] layer must be in 0..1; got -1",
               [&] { cache.k_pages(-1); });
}

TEST(KVCache, RefusesSizesThatMakeNoSense) {
  const auto refuse = [](const std::string& text, auto change) {
    KVCacheOptions options = kSmall;
    change(options);
    expect_error(ErrorKind::value, text, [&] { KVCache cache(options); });
  };
  const std::string most = "2147483647";
  refuse("[KVCache] layers must be in 1.." + most + "; got 0", [](auto& o) { o.layers = 0; });
  refuse("[KVCache] kv_heads must be in 1.." + most + "; got -2", [](auto& o) { o.kv_heads = -2; });
  // Those that attention takes.
  refuse("[KVCache] head_dim must be in 1..1024; got 0", [](auto& o) { o.head_dim = 0; });
  refuse("[KVCache] head_dim must be in 1..1024; got 1025", [](auto& o) { o.head_dim = 1025; });
  refuse("[KVCache] v_head_dim must be in 1..1024; got -1", [](auto& o) { o.v_head_dim = -1; });
  refuse("[KVCache] v_head_dim must be in 1..1024; got 1025", [](auto& o) { o.v_head_dim = 1025; });
  refuse("[KVCache] page_size must be in 1.." + most + "; got 0", [](auto& o) { o.page_size = 0; });
  refuse("[KVCache] n_pages must be in 0.." + most + "; got -1", [](auto& o) { o.n_pages = -1; });
  KVCacheOptions ints = kSmall;
  ints.dtype = DType::i8;
  expect_error(ErrorKind::type, "[KVCache] dtype must be f32, f64, bf16 or f16; got i8",
               [&] { KVCache cache(ints); });
  KVCacheOptions huge = kSmall;
  huge.n_pages = huge.page_size = huge.layers = 2147483647;
  EXPECT_THROW(KVCache{huge}, Error);
}

TEST(KVCache, APoolWithoutPagesHoldsEmptySequences) {
  KVCache cache({.page_size = 3});
  const SequenceId a = cache.create(), b = cache.fork(a, 0);
  EXPECT_FALSE(cache.can_reserve(b, 1));
  EXPECT_TRUE(cache.can_reserve(b, 0));
  EXPECT_EQ(cache.stats().waste, 0);
  EXPECT_EQ(cache.length(cache.load(cache.save(a))), 0);
}

TEST(KVCache, VersionMovesWithTablesAndLengths) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  std::uint64_t last = cache.version();
  const auto moved = [&] { return std::exchange(last, cache.version()) != cache.version(); };
  cache.append(a, 9);
  EXPECT_TRUE(moved());
  const NewTokens step[] = {{a, 9}};
  const Tensor k({9, 3, 5}, DType::f32), v({9, 3, 2}, DType::f32);
  cache.write(0, step, k, v);
  cache.write(1, step, k, v);
  EXPECT_FALSE(moved());
  cache.reserve(a, 9);
  EXPECT_TRUE(moved());
  cache.release_before(a, 4);
  EXPECT_TRUE(moved());
  cache.truncate(a, 8);
  EXPECT_TRUE(moved());
  cache.release(cache.fork(a));
  EXPECT_TRUE(moved());
}

}  // namespace
}  // namespace quire::testing

// Saved sequences: what comes back, in caches with other pages too, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "cache/xxh64.h"
#include "quire/kv_cache.h"
#include "tests/cache/kv_cache_invariants.h"
#include "tests/cache/kv_cache_rows.h"
#include "tests/support/expect_error.h"

namespace quire::testing {
namespace {

const KVCacheOptions kSmall{
    .layers = 2, .kv_heads = 3, .head_dim = 5, .v_head_dim = 2, .page_size = 4, .n_pages = 10};

// Of a cache with one group of two layers.
constexpr std::size_t kHeader = 120, kSum = 8;

void make_checksums_right(std::vector<std::byte>& bytes) {
  const std::span<const std::byte> all = bytes;
  const std::uint64_t header = cache::xxh64(all.first(kHeader - kSum), 0);
  std::memcpy(bytes.data() + kHeader - kSum, &header, kSum);
  if (bytes.size() < kHeader + kSum) return;
  const std::uint64_t rest = cache::xxh64(all.subspan(kHeader, bytes.size() - kHeader - kSum), 0);
  std::memcpy(bytes.data() + bytes.size() - kSum, &rest, kSum);
}

// The bytes with one number of the header changed and the checksums made to fit again.
std::vector<std::byte> forged(std::vector<std::byte> bytes, std::size_t offset, std::int64_t value,
                              std::size_t size = 8) {
  std::memcpy(bytes.data() + offset, &value, size);
  make_checksums_right(bytes);
  return bytes;
}

std::uint64_t hash_text(const std::string& text, std::uint64_t seed) {
  return cache::xxh64(std::as_bytes(std::span(text)), seed);
}

// From the specification of xxHash and its reference program.
TEST(Xxh64, HasTheValuesOfTheSpecification) {
  EXPECT_EQ(hash_text("", 0), 0xef46db3751d8e999u);
  EXPECT_EQ(hash_text("a", 0), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(hash_text("abc", 0), 0x44bc2cf5ad770999u);
  EXPECT_EQ(hash_text("Nobody inspects the spammish repetition", 0), 0xfbcea83c8a378bf1u);
}

TEST(Xxh64, IsTheSameInPieces) {
  std::vector<std::byte> bytes(200);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(37 * i % 251);
  for (std::size_t a = 0; a <= bytes.size(); a += 7) {
    for (std::size_t b = a; b <= bytes.size(); b += 11) {
      cache::Xxh64 hash(5);
      hash.add(std::span(bytes).first(a));
      hash.add(std::span(bytes).subspan(a, b - a));
      hash.add(std::span(bytes).subspan(b));
      ASSERT_EQ(hash.digest(), cache::xxh64(bytes, 5)) << a << ' ' << b;
    }
  }
}

TEST(KVCacheSave, ComesBackInAnyPageSize) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create(3);
  append_ids(cache, a, counting(11));
  const std::vector<std::byte> bytes = cache.save(a);
  for (const std::int64_t page_size : {1, 3, 4, 16}) {
    KVCacheOptions options = kSmall;
    options.page_size = page_size;
    options.n_pages = 11;
    KVCache other(options);
    const SequenceId b = other.load(bytes, 5);
    EXPECT_EQ(read_ids(other, b), counting(11));
    // Ids came with it, the salt did not.
    EXPECT_EQ(other.cached_prefix(counting(11), 5), 11 / page_size * page_size);
    EXPECT_EQ(other.cached_prefix(counting(11), 3), 0);
    EXPECT_EQ(other.save(b), bytes);
    EXPECT_EQ(broken_invariant(other), "");
  }
}

TEST(KVCacheSave, AWindowComesBackWithItsPositions) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(27));
  cache.release_before(a, 18);  // rows from 16 on
  const std::vector<std::byte> bytes = cache.save(a);
  for (const std::int64_t page_size : {1, 3, 4, 7, 32}) {
    KVCacheOptions options = kSmall;
    options.page_size = page_size;
    options.n_pages = 40;
    KVCache other(options);
    const SequenceId b = other.load(bytes);
    EXPECT_EQ(other.view(b).begin, 16);
    EXPECT_EQ(other.length(b), 27);
    EXPECT_EQ(read_ids(other, b), counting(11, 16));
    EXPECT_EQ(broken_invariant(other), "");
    EXPECT_EQ(std::ssize(other.ids(b)), 27);
    append_ids(other, b, counting(9, 27));
    EXPECT_EQ(other.cached_prefix(counting(36)), 0);
    EXPECT_EQ(read_ids(other, other.fork(b, 30)), counting(14, 16));
    other.truncate(b, 16);
    append_ids(other, b, counting(2, 16));
    other.release_before(b, 18);
    EXPECT_EQ(broken_invariant(other), "");
    other.release(b);
  }
}

TEST(KVCacheSave, RowsThatWereNotWrittenAreNotSaved) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(3));
  cache.append(a, 1);
  expect_error(ErrorKind::value,
               "[KVCache::save] rows from position 3 on are not written in all layers",
               [&] { cache.save(a); });
}

class KVCacheLoad : public ::testing::Test {
 protected:
  KVCacheLoad() : cache_(kSmall), sequence_(cache_.create()) {
    append_ids(cache_, sequence_, counting(6));
    bytes_ = cache_.save(sequence_);
  }
  void refused(const std::string& text, const std::vector<std::byte>& bytes,
               ErrorKind kind = ErrorKind::value) {
    const CacheSnapshot before(cache_);
    expect_error(kind, "[KVCache::load] " + text, [&] { cache_.load(bytes); });
    EXPECT_TRUE(before == CacheSnapshot(cache_));
  }

  KVCache cache_;
  SequenceId sequence_;
  std::vector<std::byte> bytes_;
};

TEST_F(KVCacheLoad, RefusesEveryChangedBitAndEveryCut) {
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    std::vector<std::byte> changed = bytes_;
    changed[i] ^= std::byte{static_cast<unsigned char>(1u << (i % 8))};
    EXPECT_THROW(cache_.load(changed), Error) << i;
    EXPECT_THROW(cache_.load(std::span(bytes_).first(i)), Error) << i;
  }
  EXPECT_EQ(cache_.stats().sequences, 1);
  std::vector<std::byte> longer = bytes_;
  longer.push_back(std::byte{0});
  refused("1 bytes follow the saved sequence", longer);
}

TEST_F(KVCacheLoad, SaysWhatIsWrong) {
  refused("the bytes end too early: 24 more are needed", {bytes_.begin(), bytes_.begin() + 16});
  refused("these bytes are not a saved sequence", forged(bytes_, 0, 0));
  refused("version must be 2; got 1", forged(bytes_, 8, 1, 4));
  refused("groups must be the cache's; got 2, and the cache has 1", forged(bytes_, 12, 2, 4));
  refused("dtype must be the cache's, f32; got bf16", forged(bytes_, 40, 2));
  refused("dtype must be the cache's, f32; got none", forged(bytes_, 40, 99));
  refused("layers must be the cache's; got 3, and the cache has 2", forged(bytes_, 48, 3));
  refused("kv_heads must be the cache's; got 0, and the cache has 3", forged(bytes_, 56, 0));
  refused("head_dim must be the cache's; got -5, and the cache has 5", forged(bytes_, 64, -5));
  refused("v_head_dim must be the cache's; got 1, and the cache has 2", forged(bytes_, 72, 1));
  refused("the layers of a group must be the cache's; got 7, and the cache has 0",
          forged(bytes_, 96, 7));
  const std::string fit = "positions do not fit; got ";
  refused(fit + "length -1, 6 ids, 6 committed and 0..0 released", forged(bytes_, 16, -1));
  refused(fit + "length 6, 7 ids, 6 committed and 0..0 released", forged(bytes_, 24, 7));
  refused(fit + "length 6, 6 ids, 7 committed and 0..0 released", forged(bytes_, 32, 7));
  refused(fit + "length 6, 6 ids, 6 committed and 2..0 released", forged(bytes_, 80, 2));
  refused(fit + "length 6, 6 ids, 6 committed and 0..7 released", forged(bytes_, 88, 7));
  EXPECT_THROW(cache_.load(forged(bytes_, 16, 7)), Error);
  EXPECT_THROW(cache_.load(forged(bytes_, 16, std::numeric_limits<std::int64_t>::max())), Error);
}

// A header alone, of a sequence that was released to its end: there are no ids for its tokens.
TEST_F(KVCacheLoad, AFewBytesDoNotAskForMuchMemory) {
  const std::vector<std::byte> header(bytes_.begin(), bytes_.begin() + kHeader + kSum);
  for (const std::int64_t far : {std::int64_t{1} << 31, std::int64_t{1} << 60}) {
    std::vector<std::byte> bytes = forged(header, 16, far);
    bytes = forged(forged(forged(bytes, 24, 0), 88, far), 32, 0);
    refused("the bytes end too early: 4096 more are needed", {bytes.begin(), bytes.end() - 8});
    EXPECT_THROW(cache_.load(bytes), Error);
    std::span<const std::byte> rest(bytes);
    const auto source = [&](std::span<std::byte> to) {
      const std::size_t n = std::min(to.size(), rest.size());
      std::ranges::copy(rest.first(n), to.begin());
      rest = rest.subspan(n);
      return n;
    };
    EXPECT_THROW(cache_.load_from(source), Error);
  }
  EXPECT_EQ(cache_.stats().sequences, 1);
}

TEST_F(KVCacheLoad, RefusesWhatThePoolCannotHold) {
  cache_.reserve(cache_.create(), 28);
  // The first page is there.
  EXPECT_EQ(cache_.stats().free_pages, 1);
  const SequenceId second = cache_.load(bytes_);
  EXPECT_EQ(cache_.view(second).pages[0], cache_.view(sequence_).pages[0]);
  EXPECT_EQ(cache_.stats().free_pages, 0);
  refused("out of pages: 1 needed, 0 free and 0 cached", bytes_, ErrorKind::runtime);
  cache_.release(second);
  const CacheSnapshot before(cache_);
  expect_error(ErrorKind::runtime, "[KVCache::load] out of pages: 2 needed, 1 free and 0 cached",
               [&] { cache_.load(bytes_, 9); });
  EXPECT_TRUE(before == CacheSnapshot(cache_));
}

// 20 requests with one system prompt come back into the pool that held them.
TEST(KVCacheSave, LoadSharesWhatIsThere) {
  const KVCacheOptions options{.layers = 1, .kv_heads = 1, .head_dim = 4, .n_pages = 63};
  std::vector<std::vector<std::byte>> saved;
  {
    KVCache cache(options);
    append_ids(cache, cache.create(), counting(43 * 16));
    for (std::int64_t i = 0; i < 20; ++i) {
      const auto [sequence, found] = cache.create_with_prefix(counting(43 * 16));
      EXPECT_EQ(found, 43 * 16);
      append_ids(cache, sequence, counting(10, 1000 * i));
      saved.push_back(cache.save(sequence));
    }
  }
  KVCache cache(options);
  for (const auto& bytes : saved) cache.load(bytes);
  EXPECT_EQ(cache.stats().used_pages, 63);
  EXPECT_EQ(broken_invariant(cache), "");
}

class KVCacheFiles : public ::testing::Test {
 protected:
  KVCacheFiles() : folder_(std::filesystem::temp_directory_path() / "quire_kv_cache_files") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~KVCacheFiles() override { std::filesystem::remove_all(folder_); }
  std::int64_t files() const {
    return std::distance(std::filesystem::directory_iterator(folder_), {});
  }

  std::filesystem::path folder_;
};

TEST_F(KVCacheFiles, ASequenceInAFile) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(11));
  const std::filesystem::path file = folder_ / "a.kv";
  cache.save_to(a, file);
  EXPECT_EQ(std::filesystem::file_size(file), cache.save(a).size());
  append_ids(cache, a, counting(3));
  cache.save_to(a, file);  // replaced
  EXPECT_EQ(files(), 1);
  KVCache other(kSmall);
  const SequenceId b = other.load_from(file);
  EXPECT_EQ(other.save(b), cache.save(a));
  // Cut and changed files are refused before anything changes.
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  const CacheSnapshot before(other);
  EXPECT_THROW(other.load_from(file), Error);
  EXPECT_THROW(other.load_from(folder_ / "none.kv"), Error);
  EXPECT_TRUE(before == CacheSnapshot(other));
  EXPECT_THROW(cache.save_to(a, folder_ / "none" / "a.kv"), Error);
  EXPECT_EQ(files(), 1);
}

// Where writing fails the old file stays, and nothing else.
TEST_F(KVCacheFiles, AFileIsReplacedAsAWholeOrNotAtAll) {
  KVCache cache(kSmall);
  const SequenceId a = cache.create();
  append_ids(cache, a, counting(11));
  const std::filesystem::path file = folder_ / "a.kv";
  cache.save_to(a, file);
  cache.append(a, 1);  // not written
  expect_error(ErrorKind::value,
               "[KVCache::save_to] rows from position 11 on are not written in all layers",
               [&] { cache.save_to(a, file); });
  EXPECT_EQ(files(), 1);
  KVCache other(kSmall);
  EXPECT_EQ(other.length(other.load_from(file)), 11);
}

TEST_F(KVCacheFiles, AllSequencesInAFile) {
  KVCacheOptions options = kSmall;
  options.n_pages = 30;
  KVCache cache(options);
  const SequenceId a = cache.create(7);
  append_ids(cache, a, counting(20));
  const SequenceId b = cache.fork(a, 18);
  append_ids(cache, b, counting(5, 50));
  const SequenceId c = cache.create();
  append_ids(cache, c, counting(9));
  cache.release_before(c, 8);
  const std::filesystem::path file = folder_ / "all.kv";
  cache.save_all(file);
  KVCache other(options);
  const std::vector<LoadedSequence> loaded = other.load_all(file);
  ASSERT_EQ(loaded.size(), 3u);
  for (const LoadedSequence& one : loaded)
    EXPECT_EQ(other.save(one.sequence), cache.save(one.saved));
  EXPECT_EQ(loaded[0].saved, a);
  EXPECT_EQ(other.stats().shared_pages, 4);
  EXPECT_EQ(other.cached_prefix(counting(20), 7), 20);
  EXPECT_EQ(std::ssize(other.ids(loaded[2].sequence)), 9);
  EXPECT_EQ(broken_invariant(other), "");

  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 100);
  const CacheSnapshot before(other);
  EXPECT_THROW(other.load_all(file), Error);
  EXPECT_TRUE(before == CacheSnapshot(other));
}

}  // namespace
}  // namespace quire::testing

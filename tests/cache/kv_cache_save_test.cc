// Saved sequences: what comes back, in caches with other pages too, and what is refused.
#include <gtest/gtest.h>

#include <cstring>

#include "cache/xxh64.h"
#include "quire/kv_cache.h"
#include "tests/cache/kv_cache_invariants.h"
#include "tests/cache/kv_cache_rows.h"
#include "tests/support/expect_error.h"

namespace quire::testing {
namespace {

const KVCacheOptions kSmall{
    .layers = 2, .kv_heads = 3, .head_dim = 5, .v_head_dim = 2, .page_size = 4, .n_pages = 10};

constexpr std::size_t kHeader = 80, kChecksum = 72;

// The bytes with one number of the header changed and the checksum made to fit again.
std::vector<std::byte> forged(std::vector<std::byte> bytes, std::size_t offset, std::int64_t value,
                              std::size_t size = 8) {
  std::memcpy(bytes.data() + offset, &value, size);
  const std::span<const std::byte> all = bytes;
  const std::uint64_t sum =
      cache::xxh64(all.subspan(kHeader), cache::xxh64(all.first(kChecksum), 0));
  std::memcpy(bytes.data() + kChecksum, &sum, 8);
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
  refused("the checksum does not fit: the bytes were changed or cut", longer);
}

TEST_F(KVCacheLoad, SaysWhatIsWrong) {
  refused("a saved sequence has at least 80 bytes; got 79", {bytes_.begin(), bytes_.begin() + 79});
  refused("these bytes are not a saved sequence", forged(bytes_, 0, 0));
  refused("version must be 1; got 2", forged(bytes_, 8, 2, 4));
  refused("dtype must be the cache's, f32; got bf16", forged(bytes_, 12, 2, 4));
  refused("dtype must be the cache's, f32; got none", forged(bytes_, 12, 99, 4));
  refused("layers must be the cache's; got 3, and the cache has 2", forged(bytes_, 16, 3));
  refused("kv_heads must be the cache's; got 0, and the cache has 3", forged(bytes_, 24, 0));
  refused("head_dim must be the cache's; got -5, and the cache has 5", forged(bytes_, 32, -5));
  refused("v_head_dim must be the cache's; got 1, and the cache has 2", forged(bytes_, 40, 1));
  refused("positions do not fit; got begin -1, length 6 and 6 ids", forged(bytes_, 48, -1));
  refused("positions do not fit; got begin 7, length 6 and 6 ids", forged(bytes_, 48, 7));
  refused("positions do not fit; got begin 1, length 6 and 6 ids", forged(bytes_, 48, 1));
  refused("positions do not fit; got begin 0, length 6 and 7 ids", forged(bytes_, 64, 7));
  refused("1224 bytes must follow the header; got 1056", forged(bytes_, 56, 7));
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  refused("9223372036854775807 bytes must follow the header; got 1056", forged(bytes_, 56, most));
}

TEST_F(KVCacheLoad, RefusesAPositionWhosePageTableWouldNotFit) {
  const std::int64_t far = std::int64_t{1} << 60;
  std::vector<std::byte> bytes = bytes_;
  bytes.erase(bytes.end() - 6 * 8, bytes.end());  // as many as the ids took
  bytes = forged(forged(forged(bytes, 48, far), 56, far + 6), 64, 0);
  EXPECT_THROW(cache_.load(bytes), Error);
  EXPECT_EQ(cache_.stats().sequences, 1);
}

// A header alone, of a sequence that was released to its end: the page table would be all there is.
TEST_F(KVCacheLoad, AFewBytesDoNotAskForMuchMemory) {
  const std::vector<std::byte> header(bytes_.begin(), bytes_.begin() + 80);
  const auto at = [&](std::int64_t position) {
    return forged(forged(forged(header, 48, position), 56, position), 64, 0);
  };
  const std::int64_t far = std::int64_t{1} << 31;
  refused(
      "80 bytes cannot bring a sequence whose rows begin at 2147483648: its page table would "
      "take 2.1 GB",
      at(far));
  EXPECT_EQ(cache_.view(cache_.load(at(1000))).length, 1000);
}

TEST_F(KVCacheLoad, RefusesWhatThePoolCannotHold) {
  cache_.reserve(cache_.create(), 28);
  refused("out of pages: 2 needed, 1 free and 0 cached", bytes_, ErrorKind::runtime);
}

}  // namespace
}  // namespace quire::testing

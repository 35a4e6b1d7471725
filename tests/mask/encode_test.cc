// BlockMask::encode and decode: the blocks come back; words that were not written are refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "mask/block_mask_data.h"
#include "quire/block_mask.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using testing::expect_error;

constexpr BlockCode kCodes[] = {BlockCode::kShort, BlockCode::kDense, BlockCode::kRuns};

std::vector<BlockMask> masks() {
  const MaskMod per_head = MaskMod::parse("(q_idx + 3 * b) // 4 >= kv_idx // (2 + h)");
  const MaskMod causal = MaskMod::parse("q_idx >= kv_idx");
  std::vector<BlockMask> all;
  for (const auto& [q_len, kv_len] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {7, 9}, {1, 257}, {130, 129}, {0, 5}, {5, 0}, {0, 0}, {128, 128}}) {
    all.push_back(create_block_mask(per_head, 2, 3, q_len, kv_len, {.block_size = {4, 3}}));
    all.push_back(
        create_block_mask(causal, 2, 1, q_len, kv_len,
                          {.block_size = 2, .separate_full_blocks = false, .q_begin = 3}));
    all.push_back(create_block_mask(causal, 1, 1, q_len, kv_len, {.block_size = 128}));
  }
  all.push_back(create_block_mask(causal, 0, 2, 16, 16, {.block_size = 4}));
  all.push_back(create_block_mask(causal, 1, 1, 1 << 17, 1 << 17));  // runs by themselves
  all.push_back(all.front().index(std::int64_t{1}, std::int64_t{2}));
  all.push_back(all.front().adjust(4, 9));
  return all;
}

TEST(Encode, BlocksComeBack) {
  for (const BlockMask& mask : masks()) {
    for (const BlockCode code : kCodes) {
      const Tensor words = mask.encode(code);
      const BlockMask back = BlockMask::decode(words.view());
      EXPECT_TRUE(back.same_blocks(mask));
      EXPECT_EQ(back.shape(), mask.shape());
      EXPECT_EQ(back.block_size(), mask.block_size());
      EXPECT_EQ(back.q_begin(), mask.q_begin());
      EXPECT_EQ(back.separate_full_blocks(), mask.separate_full_blocks());
      EXPECT_EQ(back.q_num_blocks().has_value(), mask.q_num_blocks().has_value());
      if (mask.numel() == 0) continue;  // of no blocks it does not matter how often they are stored
      // Whatever the code was, the blocks are the same, so the words are.
      const Tensor again = back.encode(BlockCode::kDense), dense = mask.encode(BlockCode::kDense);
      ASSERT_EQ(again.numel(), dense.numel());
      EXPECT_TRUE(std::equal(static_cast<const std::int64_t*>(again.data()),
                             static_cast<const std::int64_t*>(again.data()) + again.numel(),
                             static_cast<const std::int64_t*>(dense.data())));
    }
  }
}

TEST(Encode, TheSizeOfADenseCodeDependsOnSizesOnly) {
  for (const char* rule : {"q_idx >= kv_idx", "b > 0", "h == kv_idx % 3", "q_idx < 0"}) {
    const BlockMask mask =
        create_block_mask(MaskMod::parse(rule), 2, 3, 200, 300, {.block_size = 4});
    EXPECT_EQ(mask.encode(BlockCode::kDense).numel(), BlockMask::dense_words(2, 3, 50, 75));
    EXPECT_EQ(mask.encode().numel(), BlockMask::dense_words(2, 3, 50, 75));
  }
}

TEST(Encode, ALargeMaskTakesWordsInProportionToItsRows) {
  const BlockMask mask =
      create_block_mask(MaskMod::parse("q_idx >= kv_idx"), 1, 1, 1 << 20, 1 << 20);
  EXPECT_LT(mask.encode().numel(), 8192 * 5);
  EXPECT_TRUE(BlockMask::decode(mask.encode().view()).same_blocks(mask));
}

const std::string kDamaged =
    "[BlockMask::decode] the words are not those of a block mask, or damaged: ";

TEST(Decode, RefusesOtherTensors) {
  expect_error(ErrorKind::type, "[BlockMask::decode] words must be i64 with one axis; got i32 [3]",
               [] { BlockMask::decode(Tensor({3}, DType::i32).view()); });
  expect_error(ErrorKind::type,
               "[BlockMask::decode] words must be i64 with one axis; got i64 [3, 1]", [] {
                 BlockMask::decode(Tensor({3, 1}, DType::i64).view());
               });
  expect_error(ErrorKind::value, kDamaged + "there are too few words",
               [] { BlockMask::decode(Tensor({3}, DType::i64).view()); });
  expect_error(ErrorKind::value,
               kDamaged + "they begin with another number, or are of another version",
               [] { BlockMask::decode(Tensor({30}, DType::i64).view()); });
}

// As encode sums: what follows is read though the checksum was made to fit.
void sum_again(std::vector<std::int64_t>& words) {
  std::uint64_t sum = words.size();
  for (std::size_t i = 2; i < words.size(); ++i) {
    sum = (sum ^ static_cast<std::uint64_t>(words[i])) * 0x9e3779b97f4a7c15u;
    sum ^= sum >> 32;
  }
  words[1] = static_cast<std::int64_t>(sum);
}

std::vector<std::int64_t> words_of(const BlockMask& mask, BlockCode code) {
  const Tensor words = mask.encode(code);
  const auto* data = static_cast<const std::int64_t*>(words.data());
  return {data, data + words.numel()};
}

BlockMask decode(const std::vector<std::int64_t>& words) {
  return BlockMask::decode(
      ConstTensorView(words.data(), DType::i64, Shape{static_cast<std::int64_t>(words.size())}));
}

TEST(Decode, EveryDamagedWordIsNoticed) {
  const BlockMask mask = create_block_mask(
      MaskMod::parse("(q_idx + 3 * b) // 4 >= kv_idx // (2 + h)"), 2, 2, 17, 19, {.block_size = 4});
  for (const BlockCode code : kCodes) {
    const std::vector<std::int64_t> good = words_of(mask, code);
    for (std::size_t i = 0; i < good.size(); ++i) {
      std::vector<std::int64_t> bad = good;
      bad[i] ^= 1;
      expect_error(ErrorKind::value,
                   kDamaged + (i == 0 ? "they begin with another number, or are of another version"
                                      : "checksum"),
                   [&] { decode(bad); });
    }
    std::vector<std::int64_t> cut = good;
    cut.pop_back();
    expect_error(ErrorKind::value, kDamaged + "checksum", [&] { decode(cut); });
  }
}

// Words with a checksum that fits, written by somebody else: an error or a mask that can be used,
// never a read outside (run under AddressSanitizer too).
TEST(Decode, NothingIsTrusted) {
  const BlockMask mask = create_block_mask(
      MaskMod::parse("(q_idx + 3 * b) // 4 >= kv_idx // (2 + h)"), 2, 2, 17, 19, {.block_size = 4});
  const std::int64_t numbers[] = {-1,
                                  0,
                                  1,
                                  2,
                                  3,
                                  5,
                                  1 << 20,
                                  1LL << 33,
                                  1LL << 40,
                                  1LL << 62,
                                  INT64_MAX,
                                  INT64_MIN,
                                  1LL << 34 | 0xfffffff};
  for (const BlockCode code : kCodes) {
    const std::vector<std::int64_t> good = words_of(mask, code);
    for (std::size_t i = 2; i < good.size(); ++i) {
      for (const std::int64_t number : numbers) {
        std::vector<std::int64_t> bad = good;
        bad[i] = number;
        sum_again(bad);
        try {
          const BlockMask read = decode(bad);
          EXPECT_GE(read.kv_blocks() * read.block_size().kv, read.seq_lengths().second);
          if (read.batch() * read.heads() * read.q_blocks() < 10000) {
            for (std::int64_t b = 0; b < read.batch(); ++b)
              for (std::int64_t h = 0; h < read.heads(); ++h)
                for (std::int64_t row = 0; row < read.q_blocks(); ++row)
                  for (const BlockRun& run : read.runs(b, h, row))
                    EXPECT_LE(run.end(), read.kv_blocks());
          }
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find("[BlockMask::decode]"), std::string::npos)
              << error.what();
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire

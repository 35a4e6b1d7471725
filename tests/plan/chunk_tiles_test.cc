// ChunkTiles: a block mask transposed, against the mask's own bits; and the chunks' sizes.
#include "plan/chunk_tiles.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/backward/backward.h"
#include "quire/mods.h"

namespace quire::plan {
namespace {

TEST(ChunkTiles, ChunkSizes) {
  struct Example {
    int dims, value_dims, keys;
  };
  for (const Example& e : {Example{64, 64, 384},
                           {128, 128, 384},
                           {192, 128, 192},
                           {256, 256, 192},
                           {1, 1, 384},
                           {1024, 1024, 64}})
    EXPECT_EQ(kernels::backward_chunk_keys(e.dims, e.value_dims), e.keys) << e.dims;
}

// Every visible pair lies in a listed tile; turns count the chunks that a tile sees, in order;
// tiles descend.
void expect_covers(const MaskMod& rule, std::int64_t q_len, std::int64_t kv_len,
                   std::int64_t chunk) {
  const BlockMask mask = create_block_mask(rule, 1, 2, q_len, kv_len);
  const BlockMasks source(mask);
  const BlockMaskKeys visible(source, q_len, kv_len);
  const ChunkTiles tiles(source, visible, kv_len, chunk);
  const Tensor bits = create_mask(rule, 1, 2, q_len, kv_len);
  const std::int64_t q_tiles = (q_len + 63) / 64;
  for (std::int64_t h = 0; h < 2; ++h) {
    std::vector<std::int32_t> turns(static_cast<std::size_t>(q_tiles), 0);
    for (std::int64_t c = 0; c * chunk < kv_len; ++c) {
      std::vector<char> listed(static_cast<std::size_t>(q_tiles), 0);
      std::int32_t before = static_cast<std::int32_t>(q_tiles);
      for (const ChunkTile& at : tiles.of(0, h, c)) {
        EXPECT_LT(at.tile, before);
        before = at.tile;
        listed[static_cast<std::size_t>(at.tile)] = 1;
        EXPECT_EQ(at.turn, turns[static_cast<std::size_t>(at.tile)]++);
      }
      for (std::int64_t q = 0; q < q_len; ++q)
        for (std::int64_t kv = c * chunk; kv < std::min((c + 1) * chunk, kv_len); ++kv)
          EXPECT_LE(bits.at<bool>({0, h, q, kv}), listed[static_cast<std::size_t>(q / 64)] != 0)
              << q << " " << kv;
    }
  }
}

TEST(ChunkTiles, CoverWhatIsVisible) {
  expect_covers(mods::causal(), 300, 900, 384);
  expect_covers(mods::sliding_window(100), 700, 700, 64);
  expect_covers(MaskMod::parse("(kv_idx // 200 % 2 == h) & (q_idx != 5)"), 130, 1000, 192);
}

TEST(ChunkTiles, WhatIsHiddenIsNotListed) {
  const BlockMask mask = create_block_mask(mods::causal(), 1, 1, 1024, 1024);
  const BlockMasks source(mask);
  const BlockMaskKeys visible(source, 1024, 1024);
  const ChunkTiles tiles(source, visible, 1024, 384);
  EXPECT_EQ(tiles.of(0, 0, 0).size(), 16u);
  EXPECT_EQ(tiles.of(0, 0, 1).size(), 10u);  // queries from 384 on
  EXPECT_EQ(tiles.of(0, 0, 2).size(), 4u);   // from 768 on
  EXPECT_EQ(tiles.of(0, 0, 2).back().turn, 2);
}

}  // namespace
}  // namespace quire::plan

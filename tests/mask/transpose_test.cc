// transpose: the same blocks seen from the other side, stored as few times, without a dense grid.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "mask/block_mask_data.h"
#include "mask/block_rows.h"
#include "tests/support/random_buffers.h"

namespace quire::mask {
namespace {

using testing::below;

BlockKind kind_at(std::span<const BlockRun> runs, std::int64_t block) {
  for (const BlockRun& run : runs)
    if (run.begin <= block && block < run.end()) return run.kind;
  return BlockKind::kEmpty;
}

void expect_transposed(const BlockRows& rows, std::int64_t columns) {
  const BlockRows result = transpose(rows, columns);
  ASSERT_EQ(result.batches(), rows.batches());
  ASSERT_EQ(result.heads(), rows.heads());
  ASSERT_EQ(result.rows_per_plane(), columns);
  for (std::int64_t b = 0; b < rows.batches(); ++b) {
    for (std::int64_t h = 0; h < rows.heads(); ++h) {
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::span<const BlockRun> column = result.row(result.plane(b, h), c);
        for (std::int64_t r = 0; r < rows.rows_per_plane(); ++r)
          ASSERT_EQ(kind_at(column, r), kind_at(rows.row(rows.plane(b, h), r), c))
              << b << " " << h << " " << r << " " << c;
        // Canonical: ascending, joined, nothing empty, nothing outside.
        RunList joined;
        for (const BlockRun& run : column) append_run(joined, run.begin, run.end(), run.kind);
        EXPECT_TRUE(std::ranges::equal(joined, column));
        if (!column.empty()) {
          EXPECT_LE(column.back().end(), rows.rows_per_plane());
        }
      }
    }
  }
  EXPECT_TRUE(
      transpose(result, rows.rows_per_plane()).same_picture(rows, rows.batches(), rows.heads()));
}

// Rows that change little from one to the next, as those of masks do, or much.
BlockRows random_rows(std::mt19937_64& random, std::int64_t columns) {
  const std::int64_t batches = below(random, 3) + 1, heads = below(random, 3) + 1;
  const std::int64_t count = below(random, 20);
  BlockRowsBuilder builder(batches, heads, count);
  std::vector<BlockKind> kinds(static_cast<std::size_t>(columns));
  const bool same_planes = below(random, 2) == 0;
  std::vector<RunList> plane;
  for (std::int64_t p = 0; p < batches * heads; ++p) {
    if (p == 0 || !same_planes) plane.clear();
    for (std::int64_t r = 0; r < count; ++r) {
      if (static_cast<std::int64_t>(plane.size()) <= r) {
        for (std::int64_t n = below(random, columns + 1); n > 0 && below(random, 3) > 0; --n)
          kinds[static_cast<std::size_t>(below(random, columns))] =
              static_cast<BlockKind>(below(random, 4));
        RunList runs;
        for (std::int64_t c = 0; c < columns; ++c)
          append_run(runs, c, c + 1, kinds[static_cast<std::size_t>(c)]);
        plane.push_back(runs);
      }
      builder.add_row(plane[static_cast<std::size_t>(r)]);
    }
  }
  return builder.finish();
}

TEST(Transpose, RandomRows) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    const std::int64_t columns = below(random, 40) + 1;
    expect_transposed(random_rows(random, columns), columns);
  }
}

TEST(Transpose, NoColumnsNoRowsNoPlanes) {
  BlockRowsBuilder no_columns(2, 3, 4);
  for (int i = 0; i < 24; ++i) no_columns.add_row({});
  const BlockRows rows = no_columns.finish();
  EXPECT_EQ(transpose(rows, 0).rows_per_plane(), 0);
  EXPECT_EQ(transpose(transpose(rows, 0), 4).plane(1, 2), 0);
  EXPECT_TRUE(transpose(transpose(rows, 0), 4).row(0, 3).empty());
  expect_transposed(BlockRowsBuilder(2, 3, 0).finish(), 5);
  expect_transposed(BlockRowsBuilder(0, 3, 4).finish(), 5);
}

TEST(Transpose, EqualPlanesStayStoredOnce) {
  const BlockMask mask =
      create_block_mask(MaskMod::parse("q_idx >= kv_idx + 16 * (b // 2)"), 4, 8, 64, 64, {16});
  ASSERT_EQ(mask.block_rows().heads(), 1);
  const std::shared_ptr<const BlockRows> columns = mask.transposed();
  EXPECT_EQ(columns->heads(), 1);
  EXPECT_EQ(columns->batches(), 4);
  EXPECT_EQ(columns->planes(), 2);
  EXPECT_EQ(columns->plane(0, 7), columns->plane(1, 0));
  EXPECT_NE(columns->plane(1, 0), columns->plane(2, 0));
}

// A causal mask: column c is partial in row c and full below it. 2**16 x 2**16 blocks would be
// 4 GB dense; here there are two runs per column.
TEST(Transpose, FollowsRunsNotArea) {
  constexpr std::int64_t kBlocks = 1 << 16;
  const BlockMask mask =
      create_block_mask(MaskMod::parse("q_idx >= kv_idx"), 1, 1, kBlocks * 128, kBlocks * 128);
  const std::shared_ptr<const BlockRows> columns = mask.transposed();
  EXPECT_EQ(columns->stored_runs(), 2 * kBlocks - 1);
  for (const std::int64_t c : {std::int64_t{0}, std::int64_t{12345}, kBlocks - 1}) {
    RunList expected;
    append_run(expected, c, c + 1, BlockKind::kPartial);
    append_run(expected, c + 1, kBlocks, BlockKind::kFull);
    EXPECT_TRUE(std::ranges::equal(columns->row(0, c), expected)) << c;
  }
}

}  // namespace
}  // namespace quire::mask

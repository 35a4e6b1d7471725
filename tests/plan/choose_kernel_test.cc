// The table of kernels and cuts.
#include "plan/choose_kernel.h"

#include <gtest/gtest.h>

#include "kernels/prefill/prefill.h"

namespace quire::plan {
namespace {

TEST(ChooseKernel, FewRowsDecodeManyPrefill) {
  struct Case {
    std::int64_t group, q_len, kv_len;
    Kernel kernel;
  };
  for (const Case& c :
       {Case{1, 1, 8192, Kernel::kDecode}, Case{4, 1, 10, Kernel::kDecode},
        Case{4, 3, 100, Kernel::kDecode}, Case{1, 12, 1, Kernel::kDecode},
        Case{1, 13, 1023, Kernel::kPrefill}, Case{1, 16, 8192, Kernel::kDecode},
        Case{1, 24, 1024, Kernel::kDecode}, Case{1, 25, 1024, Kernel::kPrefill},
        Case{4, 8, 8192, Kernel::kPrefill}, Case{64, 1, 100, Kernel::kDecode},
        Case{2, 100, 100, Kernel::kPrefill}, Case{1, 4096, 4096, Kernel::kPrefill}}) {
    EXPECT_EQ(choose_kernel(c.group, c.q_len, c.kv_len), c.kernel) << c.group << " x " << c.q_len;
  }
}

TEST(ChooseKernelOfLists, ShortListsGoQueryByQuery) {
  const auto choose = [](std::int64_t q_len, std::int64_t keys, std::int64_t heads, bool pairs) {
    return choose_kernel_of_lists(heads, {q_len, 4096, keys, heads, pairs});
  };
  EXPECT_EQ(choose(1, 512, 8, false), Kernel::kDecode);
  EXPECT_EQ(choose(4096, 512, 8, false), Kernel::kChosen);
  EXPECT_EQ(choose(4096, 1820, 8, false), Kernel::kChosen);
  EXPECT_EQ(choose(4096, 1821, 8, false), Kernel::kPrefill);
  EXPECT_EQ(choose(4096, 1821, 16, false), Kernel::kPrefill);
  EXPECT_EQ(choose(4096, 1638, 4, false), Kernel::kChosen);
  EXPECT_EQ(choose(4096, 1639, 7, false), Kernel::kPrefill);
  EXPECT_EQ(choose(4096, 1170, 2, false), Kernel::kChosen);
  EXPECT_EQ(choose(4096, 1171, 3, false), Kernel::kPrefill);
  EXPECT_EQ(choose(4096, 630, 1, false), Kernel::kChosen);
  EXPECT_EQ(choose(4096, 631, 1, false), Kernel::kPrefill);
  EXPECT_EQ(choose(4096, 91, 8, true), Kernel::kChosen);
  EXPECT_EQ(choose(4096, 92, 8, true), Kernel::kPrefill);
  EXPECT_EQ(choose(4096, 12, 1, true), Kernel::kPrefill);
  EXPECT_EQ(choose(4096, 11, 1, true), Kernel::kChosen);
  // Lists by head: one query that decodes is still walked head by head.
  EXPECT_EQ(choose_kernel_of_lists(8, {1, 4096, 512, 1, false}), Kernel::kChosen);
}

TEST(ChosenQueriesAtOnce, FillTheRowsOfAnItem) {
  const auto lists = [](std::int64_t heads) {
    layout::ChosenKeys made({0, 1}, heads, 0);
    for (std::int64_t i = 0; i < heads; ++i) made.end_list();
    made.finish();
    return made;
  };
  EXPECT_EQ(chosen_queries_at_once(lists(1), 1, 12), 128);
  EXPECT_EQ(chosen_queries_at_once(lists(1), 3, 12), 32);  // a row of padding each
  EXPECT_EQ(chosen_queries_at_once(lists(1), 8, 12), 16);
  EXPECT_EQ(chosen_queries_at_once(lists(1), 20, 12), 10);  // 8 heads, then 12
  EXPECT_EQ(chosen_queries_at_once(lists(1), 20, 32), 6);
  EXPECT_EQ(chosen_queries_at_once(lists(8), 8, 12), 128);
}

TEST(TilesPerItem, KeepsThreadsBusy) {
  EXPECT_EQ(tiles_per_item(512, 16, 2), 16);
  EXPECT_EQ(tiles_per_item(16, 16, 2), 2);
  EXPECT_EQ(tiles_per_item(1, 16, 2), 1);
  EXPECT_EQ(tiles_per_item(16, 16, 1), 16);
}

TEST(ComeFromMemory, DependsOnTheSharedCache) {
  constexpr std::int64_t kMega = 1 << 20;
  EXPECT_FALSE(come_from_memory(24 * kMega, 32 * kMega));
  EXPECT_TRUE(come_from_memory(24 * kMega + 1, 32 * kMega));
  EXPECT_FALSE(come_from_memory(4 * kMega, 0));
  EXPECT_TRUE(come_from_memory(5 * kMega, 0));
  EXPECT_TRUE(come_from_memory(25 * kMega, 260 * kMega));
}

TEST(SplitItems, CutsLongSequencesWhenThereAreFew) {
  EXPECT_EQ(decode_rows_at_once(1, 12), 1);
  EXPECT_EQ(decode_rows_at_once(12, 12), 12);
  EXPECT_EQ(decode_rows_at_once(13, 12), 8);
  EXPECT_EQ(decode_rows_at_once(20, 12), 8);
  EXPECT_EQ(decode_rows_at_once(13, 32), 13);
  EXPECT_EQ(decode_rows_at_once(128, 32), 32);
  EXPECT_EQ(decode_rows_at_once(40, 32), 32);
  EXPECT_EQ(decode_rows_at_once(8, 32), 8);
  EXPECT_EQ(split_items(8, 64, 2), 1);
  EXPECT_EQ(split_items(1, 64, 2), 8);
  EXPECT_EQ(split_items(1, 3, 2), 3);
  EXPECT_EQ(split_items(3, 64, 2), 3);
  EXPECT_EQ(split_items(1, 0, 2), 1);
  EXPECT_EQ(split_items(1, 64, 1), 1);
  EXPECT_TRUE(is_for_one_thread(4 * 16 * 128));
  EXPECT_FALSE(is_for_one_thread(1e9));
}

TEST(QueryTilesPerItem, FollowsTheCaches) {
  constexpr std::int64_t kKiB = 1024;
  EXPECT_EQ(kernels::query_tiles_per_item(64, 64, 1024 * kKiB), 16);
  EXPECT_EQ(kernels::query_tiles_per_item(128, 128, 1024 * kKiB), 8);
  EXPECT_EQ(kernels::query_tiles_per_item(1024, 1024, 1024 * kKiB), 1);
  EXPECT_EQ(kernels::query_tiles_per_item(1, 1, 1024 * kKiB), 16);
  EXPECT_EQ(kernels::query_tiles_per_item(128, 128, 512 * kKiB), 4);
  EXPECT_EQ(kernels::query_tiles_per_item(64, 64, 256 * kKiB), 4);
  EXPECT_EQ(kernels::query_tiles_per_item(128, 128, 2048 * kKiB), 8);
  EXPECT_EQ(kernels::query_tiles_per_item(128, 128, 0), 8);  // not known
}

}  // namespace
}  // namespace quire::plan

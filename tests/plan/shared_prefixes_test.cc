// Who walks shared keys together, and how the tasks are cut then.
#include "plan/shared_prefixes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "layout/paged_layout.h"
#include "plan/forward_tasks.h"

namespace quire::plan {
namespace {

// Pages of 64 keys; sequence i has `shared[i]` pages of a common beginning, then its own.
ForwardRequest request(const std::vector<std::int64_t>& shared,
                       const std::vector<std::int64_t>& lengths, std::int64_t q_heads) {
  std::vector<std::int64_t> pages;
  std::int64_t own = 1000;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    for (std::int64_t page = 0; page * 64 < lengths[i]; ++page)
      pages.push_back(page < shared[i] ? page : own++);
  AttentionProblem made{{.batch = static_cast<std::int64_t>(lengths.size()),
                         .q_heads = q_heads,
                         .q_len = 1,
                         .head_dim = 64,
                         .kv_heads = 2,
                         .v_head_dim = 64},
                        {}};
  made.queries = std::make_shared<layout::DenseQueries>(1);
  made.layout = std::make_shared<layout::PagedLayout>(64, pages, lengths);
  made.kv_len = *std::max_element(lengths.begin(), lengths.end());
  return ForwardRequest(std::move(made));
}

TEST(SharedPrefixes, NeighboursThatShareWholeTiles) {
  // 1 and 3 share 2,000 keys, 0 and 4 less with them, 2 nothing.
  const SharedPrefixes found =
      find_shared_prefixes(request({10, 32, 0, 32, 5, 3}, {900, 2100, 2100, 2050, 700, 640}, 8));
  ASSERT_EQ(found.prefixes.size(), 2U);
  EXPECT_EQ(found.members, (std::vector<std::int32_t>{0, 4, 1, 3}));
  EXPECT_EQ(found.prefixes[0].count, 2);
  EXPECT_EQ(found.prefixes[0].tiles, 1);
  EXPECT_EQ(found.prefixes[1].first, 2);
  EXPECT_EQ(found.prefixes[1].count, 2);
  EXPECT_EQ(found.prefixes[1].rows, 8);
  EXPECT_EQ(found.prefixes[1].tiles, 8);
}

TEST(SharedPrefixes, SoManyRowsAtATime) {
  const auto members = [](std::int64_t sequences, std::int64_t group) {
    const auto n = static_cast<std::size_t>(sequences);
    const std::vector<std::int64_t> pages(n, 20), lengths(n, 1300);
    std::vector<std::int64_t> counts;
    for (const SharedPrefix& one :
         find_shared_prefixes(request(pages, lengths, 2 * group)).prefixes)
      counts.push_back(one.count);
    return counts;
  };
  using Counts = std::vector<std::int64_t>;
  EXPECT_EQ(members(7, 1), Counts{7});
  EXPECT_EQ(members(8, 4), Counts{8});
  EXPECT_EQ(members(8, 8), Counts{8});
  EXPECT_EQ(members(24, 4), Counts{24});
  EXPECT_EQ(members(25, 4), Counts{24});  // the last one walks alone
  EXPECT_EQ(members(26, 4), (Counts{24, 2}));
  EXPECT_EQ(members(2, 49), Counts{});
}

TEST(SharedPrefixes, TasksGoOnBehindThem) {
  // 5 shared tiles: one whole split, and one that goes on.
  const ForwardRequest two = request({20, 20}, {4000, 1300}, 8);
  const ForwardTasks tasks = make_tasks(two, nullptr, 2);
  ASSERT_EQ(tasks.shared.prefixes.size(), 1U);
  EXPECT_EQ(tasks.shared.prefixes[0].tiles, 5);
  std::int64_t splits = 0;
  for (const PrefixTask& task : tasks.prefixes) splits += task.split_end - task.split_begin;
  EXPECT_EQ(splits, 2 * 2);  // of two key heads
  for (const ForwardTask& task : tasks.tasks) {
    EXPECT_EQ(task.prefix_tiles, 5);
    EXPECT_GE(task.split_begin, 1);
    EXPECT_GE(task.prefix_states, 0);
    EXPECT_LE(task.split_end, task.b == 0 ? 4 : 2);
  }
}

}  // namespace
}  // namespace quire::plan

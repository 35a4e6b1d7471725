// How a batch is cut: kernels per sequence, long sequences in pieces, short ones together, the same
// every time.
#include "plan/forward_tasks.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <utility>

#include "kernels/decode/decode.h"
#include "layout/jagged_layout.h"
#include "layout/paged_layout.h"

namespace quire::plan {
namespace {

layout::JaggedRows rows_of(const std::vector<std::int64_t>& lengths) {
  layout::JaggedRows rows{.begin = {}, .length = lengths};
  std::int64_t at = 0;
  for (const std::int64_t length : lengths) {
    rows.begin.push_back(at);
    at += length;
  }
  return rows;
}

ForwardTasks cut(const std::vector<std::int64_t>& q_lengths,
                 const std::vector<std::int64_t>& kv_lengths, std::int64_t threads) {
  AttentionProblem request{{.batch = static_cast<std::int64_t>(q_lengths.size()),
                            .q_heads = 4,
                            .head_dim = 64,
                            .kv_heads = 2,
                            .v_head_dim = 64},
                           {}};
  const layout::JaggedRows keys = rows_of(kv_lengths);
  request.queries = std::make_shared<layout::JaggedQueries>(rows_of(q_lengths));
  request.layout = std::make_shared<layout::JaggedLayout>(keys, keys.begin);
  request.q_len = request.queries->longest();
  return make_tasks(ForwardRequest(std::move(request)), nullptr, threads);
}

ForwardTasks cut(const std::vector<std::int64_t>& lengths, std::int64_t threads) {
  return cut(lengths, lengths, threads);
}

// Two sequences of 3,000 keys and one of none, 4 key heads of 64 f32 numbers.
ForwardTasks cut_pages(std::int64_t page_size, bool heads_are_apart = false) {
  AttentionProblem request{
      {.batch = 3, .q_heads = 8, .q_len = 1, .head_dim = 64, .kv_heads = 4, .v_head_dim = 64}, {}};
  request.queries = std::make_shared<layout::DenseQueries>(1);
  std::vector<std::int64_t> pages(static_cast<std::size_t>(2 * (3000 / page_size + 1)));
  std::iota(pages.rbegin(), pages.rend(), 0);
  request.layout = std::make_shared<layout::PagedLayout>(
      page_size, pages, std::vector<std::int64_t>{3000, 3000, 0}, heads_are_apart);
  return make_tasks(ForwardRequest(std::move(request)), nullptr, 2);
}

TEST(ForwardTasks, HeadsOfSmallPagesTakeTurns) {
  const ForwardTasks small = cut_pages(15), large = cut_pages(16);
  ASSERT_EQ(small.tasks.size(), 2 * 3 * 4 + 4);
  EXPECT_EQ(small.merges.size(), 8);
  for (std::size_t i = 0; i < 16; ++i) {  // whole splits; the rest is shorter and comes later
    EXPECT_EQ(small.tasks[i].b, i / 8);
    EXPECT_EQ(small.tasks[i].split_begin, i / 4 % 2);
    EXPECT_EQ(small.tasks[i].split_end, small.tasks[i].split_begin + 1);
    EXPECT_EQ(small.tasks[i].kv_head, i % 4);
  }
  ASSERT_EQ(large.tasks.size(), 3 * 4);
  EXPECT_TRUE(large.merges.empty());
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(large.tasks[i].kv_head, i % 4);
}

TEST(ForwardTasks, HeadsWithMemoryOfTheirOwnFollowEachOther) {
  for (const std::int64_t page_size : {15, 16}) {
    const ForwardTasks made = cut_pages(page_size, true);
    ASSERT_EQ(made.tasks.size(), 3 * 4);
    EXPECT_TRUE(made.merges.empty());
    for (std::size_t i = 0; i < 12; ++i) {
      EXPECT_EQ(made.tasks[i].kv_head, i / 3);
      EXPECT_EQ(made.tasks[i].b, i % 3);
    }
  }
}

TEST(ForwardTasks, EverySequenceHasTheKernelOfItsLengths) {
  const ForwardTasks made = cut({1, 100, 0, 2, 300}, {500, 100, 10, 0, 300}, 2);
  std::map<std::int64_t, Kernel> kernels;
  for (const ForwardTask& task : made.tasks) kernels[task.b] = task.kernel;
  const std::map<std::int64_t, Kernel> want{
      {0, Kernel::kDecode}, {1, Kernel::kPrefill}, {3, Kernel::kDecode}, {4, Kernel::kPrefill}};
  EXPECT_EQ(kernels, want);
  EXPECT_TRUE(made.has_prefill);
  EXPECT_TRUE(made.has_decode);
}

TEST(ForwardTasks, CoverEveryTileAndRowOnce) {
  for (const std::int64_t threads : {1, 2, 32}) {
    const ForwardTasks made = cut({3, 4096, 64, 65, 0, 20}, {9000, 4096, 64, 65, 7, 20}, threads);
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> units;  // of (sequence, key head)
    for (const ForwardTask& task : made.tasks)
      if (task.split_begin == 0) units[{task.b, task.kv_head}] += task.count;
    for (std::int64_t kv_head = 0; kv_head < 2; ++kv_head) {
      EXPECT_EQ((units[{0, kv_head}]), 6);    // rows
      EXPECT_EQ((units[{1, kv_head}]), 128);  // tiles
      EXPECT_EQ((units[{2, kv_head}]), 2);
      EXPECT_EQ((units[{3, kv_head}]), 4);
      EXPECT_EQ((units[{4, kv_head}]), 0);
      EXPECT_EQ((units[{5, kv_head}]), 2);
    }
    EXPECT_EQ(made.claims.front(), 0);
    EXPECT_EQ(made.claims.back(), static_cast<std::int64_t>(made.tasks.size()));
    EXPECT_TRUE(std::is_sorted(made.claims.begin(), made.claims.end()));
  }
}

// No claim is more than a share of the whole that leaves threads with nothing to do at the end.
TEST(ForwardTasks, BalanceWork) {
  std::vector<std::int64_t> lengths(200, 30);
  lengths[77] = 4096;
  for (const std::int64_t threads : {2, 8}) {
    const ForwardTasks made = cut(lengths, threads);
    std::int64_t all = 0, largest = 0;
    for (std::size_t i = 0; i + 1 < made.claims.size(); ++i) {
      std::int64_t work = 0;
      for (std::int64_t j = made.claims[i]; j < made.claims[i + 1]; ++j)
        work += made.tasks[static_cast<std::size_t>(j)].work;
      all += work;
      largest = std::max(largest, work);
    }
    EXPECT_LE(largest * 4 * threads, all + 4 * threads * 4096) << threads;
    EXPECT_EQ(made.tasks[0].b, 77);  // long ones first
    // Short ones in the order of memory.
    std::int64_t before = -1;
    for (const ForwardTask& task : made.tasks) {
      if (task.b == 77) continue;
      EXPECT_LE(before, task.b);
      before = task.b;
    }
  }
}

TEST(ForwardTasks, ALongDecodeAmongShortOnesIsCut) {
  std::vector<std::int64_t> kv_lengths(20, 10);
  kv_lengths[3] = 100000;
  const ForwardTasks made = cut(std::vector<std::int64_t>(20, 1), kv_lengths, 2);
  EXPECT_EQ(made.merges.size(), 2u);  // key heads
  EXPECT_EQ(made.merges[0].b, 3);
  EXPECT_GE(made.tasks.size(), 38u + 8u);
  EXPECT_GT(made.state_elements, 0);
}

// 128 heads of one token share 32,768 keys.
ForwardTasks cut_many_heads(std::int64_t decode_rows) {
  AttentionProblem problem{
      {.batch = 1, .q_heads = 128, .q_len = 1, .head_dim = 64, .kv_heads = 1, .v_head_dim = 48},
      {}};
  const layout::JaggedRows keys = rows_of({32768});
  problem.queries = std::make_shared<layout::DenseQueries>(1);
  problem.layout = std::make_shared<layout::JaggedLayout>(keys, keys.begin);
  ForwardRequest request(std::move(problem));
  request.decode_rows = decode_rows;
  return make_tasks(request, nullptr, 2);
}

TEST(ForwardTasks, ManyHeadsOfOneTokenAreCutAndMergedAFewRowsAtATime) {
  const ForwardTasks made = cut_many_heads(32);
  ASSERT_EQ(made.tasks.size(), 4 * 2);  // rows, halves of the splits
  EXPECT_EQ(made.most_rows, 32);
  const std::int64_t state = kernels::decode_state_size(48);
  EXPECT_EQ(made.state_elements, 32 * 128 * state);
  ASSERT_EQ(made.merges.size(), 128 / 4);
  for (std::int64_t i = 0; i < 32; ++i) {
    const ForwardTask& merge = made.merges[static_cast<std::size_t>(i)];
    EXPECT_EQ(merge.first, 4 * i);
    EXPECT_EQ(merge.count, 4);
    EXPECT_EQ(merge.state_step, 32 * state);
    EXPECT_EQ(merge.states, (i / 8 * 32 * 32 + i % 8 * 4) * state);
    EXPECT_EQ(merge.split_end - merge.split_begin, 32);
  }
  const ForwardTasks narrow = cut_many_heads(12);
  EXPECT_EQ(narrow.tasks.size(), 128 / 8);
  EXPECT_EQ(narrow.most_rows, 12);
  EXPECT_TRUE(narrow.merges.empty());
}

TEST(ForwardTasks, ShortTasksAreClaimedTogether) {
  const auto claims = [](std::size_t count, std::int64_t work, std::int64_t threads) {
    return claim_tasks(std::vector<ForwardTask>(count, ForwardTask{.work = work}), threads);
  };
  EXPECT_EQ(claims(4096, 16, 2)[1], 128);
  EXPECT_EQ(claims(4096, 8192, 2)[1], 1);
  EXPECT_EQ(claims(100, 16, 2)[1], 3);
  EXPECT_EQ(claims(7, 0, 2)[1], 1);
  EXPECT_EQ(claims(0, 0, 2), std::vector<std::int64_t>{0});
}

}  // namespace
}  // namespace quire::plan

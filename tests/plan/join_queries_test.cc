// Which neighbouring queries walk together over the keys they chose.
#include "plan/join_queries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace quire::plan {
namespace {

// Eight lists of 400 keys, `step` apart: neighbours share 400 - step keys.
class JoinQueries : public testing::Test {
 protected:
  std::vector<kernels::KeyList> shifted(int step) {
    for (int i = 0; i < 8; ++i) {
      std::vector<std::int32_t>& list = keys_[i];
      list.resize(400);
      for (int k = 0; k < 400; ++k) list[k] = 3 * (step * i + k);
    }
    return lists();
  }
  std::vector<kernels::KeyList> lists() const {
    std::vector<kernels::KeyList> made;
    for (const auto& list : keys_)
      made.push_back({list.data(), static_cast<std::int64_t>(list.size())});
    return made;
  }
  std::vector<std::int32_t> keys_[8];
};

TEST_F(JoinQueries, UnionCountsEveryKeyOnce) {
  EXPECT_EQ(count_union({}), 0);
  EXPECT_EQ(count_union(lists()), 0);
  const auto made = shifted(100);
  EXPECT_EQ(count_union(made), 1100);
  EXPECT_EQ(count_union(std::span(made).first(2)), 500);
  EXPECT_EQ(count_union(std::span(made).first(1)), 400);
}

TEST_F(JoinQueries, ThoseThatShareKeysGoTogether) {
  EXPECT_EQ(queries_to_join(shifted(0), 1), 8);
  EXPECT_EQ(queries_to_join(shifted(20), 1), 8);
  EXPECT_EQ(queries_to_join(shifted(100), 1), 4);
  EXPECT_EQ(queries_to_join(shifted(350), 1), 1);
  EXPECT_EQ(queries_to_join(shifted(400), 1), 1);
}

TEST_F(JoinQueries, RowsAndListsAreLimited) {
  const auto same = shifted(0);
  EXPECT_EQ(queries_to_join(same, 2), 4);
  EXPECT_EQ(queries_to_join(same, 3), 2);
  EXPECT_EQ(queries_to_join(same, 4), 2);
  EXPECT_EQ(queries_to_join(same, 8), 1);
  EXPECT_EQ(queries_to_join(std::span(same).first(3), 1), 2);
  EXPECT_EQ(queries_to_join(std::span(same).first(1), 1), 1);
}

TEST_F(JoinQueries, EmptyListsStayApart) { EXPECT_EQ(queries_to_join(lists(), 1), 1); }

}  // namespace
}  // namespace quire::plan

// Queries that chose their keys and take turns at them have the bits of the rules
// (tests/support/row_rules.h), whatever their lists, types and turns. ctest runs this once per ISA.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/decode/decode.h"
#include "kernels/dispatch.h"
#include "quire/isa.h"
#include "tests/support/forward_case.h"
#include "tests/support/slow_cpu.h"

namespace quire {
namespace {

using testing::ForwardCase;
using testing::ForwardOptions;

using List = std::vector<std::int32_t>;

// Keys of each row, query by query: few or many of them, the same for all heads or not, much like
// those of the query before or not; some rows chose none.
std::vector<List> random_lists(std::mt19937& random, int queries, int heads, std::int64_t keys) {
  const unsigned one_in = 1u << random() % 7;
  const bool by_head = random() % 2 == 0, alike = random() % 2 == 0;
  std::vector<List> lists;
  for (int row = 0; row < queries * heads; ++row) {
    if (!by_head && row % heads != 0) {
      lists.push_back(lists.back());
      continue;
    }
    List list;
    const bool follows = alike && row >= heads && random() % 8 != 0;
    for (std::int64_t key = 0; key < keys; ++key) {
      const bool anew = !follows || random() % 16 == 0;
      const auto at = static_cast<std::int32_t>(key);
      const bool is_chosen = anew ? random() % one_in == 0
                                  : std::ranges::binary_search(lists[lists.size() - heads], at);
      if (is_chosen) list.push_back(at);
    }
    if (random() % 10 == 0) list.clear();
    lists.push_back(std::move(list));
  }
  return lists;
}

// The rows of the case with their lists in place of its runs. Heads with equal lists share one.
std::vector<kernels::QueryRow> choosing_rows(const ForwardCase& problem,
                                             const std::vector<List>& lists, int heads) {
  std::vector<kernels::QueryRow> rows = problem.rows();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].visible = {nullptr, -1};
    rows[i].chosen = {lists[i].data(), static_cast<std::int64_t>(lists[i].size())};
    if (i % static_cast<std::size_t>(heads) != 0 && lists[i] == lists[i - 1])
      rows[i].chosen = rows[i - 1].chosen;
  }
  return rows;
}

std::string difference(const ForwardOptions& given, const std::vector<List>& lists,
                       std::int64_t l2_bytes) {
  ForwardOptions options = given;
  for (const List& list : lists) {
    options.runs.emplace_back();
    for (const std::int32_t key : list) options.runs.back().push_back({key, key + 1, true});
  }
  ForwardCase problem(options, current_isa());
  problem.clear_outputs();
  kernels::ForwardCall call = problem.call();
  call.chooses = true;
  const std::vector<kernels::QueryRow> rows = choosing_rows(problem, lists, options.heads);
  const std::size_t bytes = (kernels::chosen_scratch_bytes(call) + 63) / 64 * 64;
  const std::unique_ptr<void, decltype(&std::free)> scratch(std::aligned_alloc(64, bytes),
                                                            &std::free);
  std::memset(scratch.get(), 0xff, bytes);
  kernels::TileFault fault;
  kernels::decode_chosen(call,
                         {.keys = problem.sequence(),
                          .rows = rows.data(),
                          .queries = options.queries,
                          .row_count = options.heads,
                          .l2_bytes = l2_bytes},
                         scratch.get(), fault);
  return problem.first_difference();
}

int most_rows(const ForwardOptions& options) {
  return kernels::most_decode_rows(ForwardCase(options, current_isa()).call());
}

TEST(Chosen, TurnsHaveTheBitsOfTheRules) {
  const bool has_pairs = kernels::current_table().pairs != nullptr;
  const DType types[] = {DType::f32, DType::f32, DType::bf16, DType::f16, DType::f64};
  const int cases = testing::kernels_are_slow() ? 10 : 50;
  for (unsigned seed = 1; seed <= static_cast<unsigned>(cases); ++seed) {
    std::mt19937 random(seed);
    ForwardOptions options;
    options.q = options.k = options.v = options.out = types[random() % 5];
    options.pairs = options.q == DType::bf16 && has_pairs;
    options.heads = 1 + static_cast<int>(random() % static_cast<unsigned>(most_rows(options)));
    options.queries =
        1 + static_cast<int>(random() % std::min(kernels::most_chosen_queries(options.heads), 20));
    options.keys = 1 + static_cast<std::int64_t>(random() % (seed % 3 == 0 ? 3000 : 700));
    options.dims = 1 + static_cast<int>(random() % 140);
    options.value_dims = 1 + static_cast<int>(random() % 140);
    options.span = random() % 2 == 0 ? 0 : 1 + static_cast<std::int64_t>(random() % 300);
    if (random() % 4 == 0) options.k_column = 2;
    if (random() % 4 == 0) options.score = ScoreMod::parse("score * 0.5 - 0.01 * (q_idx - kv_idx)");
    if (random() % 4 == 0) options.dropout = {.p = 0.3, .seed = seed};
    options.seed = seed;
    const std::vector<List> lists =
        random_lists(random, options.queries, options.heads, options.keys);
    // Turns of a tile, of some and of a split.
    for (const std::int64_t l2_bytes :
         {std::int64_t{0}, std::int64_t{1} << 19, std::int64_t{1} << 40})
      ASSERT_EQ(difference(options, lists, l2_bytes), "")
          << "seed " << seed << ", L2 of " << l2_bytes << " bytes";
  }
}

TEST(Chosen, FullItems) {
  for (int heads = 1; heads <= most_rows({}); ++heads) {
    std::mt19937 random(static_cast<unsigned>(heads));
    ForwardOptions options;
    options.heads = heads;
    options.queries = kernels::most_chosen_queries(heads);
    options.keys = 600;
    const std::vector<List> lists =
        random_lists(random, options.queries, options.heads, options.keys);
    EXPECT_EQ(difference(options, lists, 0), "") << heads;
  }
}

}  // namespace
}  // namespace quire

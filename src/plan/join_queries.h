// How many neighbouring queries walk over the keys they chose together, as rows of one query. Bits
// never depend on it. Plan layer.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/forward_problem.h"

namespace quire::plan {

/// The most rows that a walk takes at once without a second pass.
inline constexpr int kMostJoinedRows = 8;

/// How many keys are in any of the lists.
std::int64_t count_union(std::span<const kernels::KeyList> lists);

/// 1, 2, 4 or 8: how many of the queries that these lists are a sample of, each with `rows` rows
/// (heads that share its list), should be joined. Then every key in one of their lists is computed
/// for all of them: with eight rows that costs nearly three times as much as with one. Equal lists,
/// one row: 8. Lists without a common key: 1. Lists that share three keys of four with the next: 4.
int queries_to_join(std::span<const kernels::KeyList> lists, int rows);

}  // namespace quire::plan

// A step over a KVCache as the request a plan is made of. Attention layer.
#pragma once
#include <cstdint>
#include <span>

#include "plan/forward_plan.h"
#include "quire/attend.h"

namespace quire::attention {

/// Reads page tables where they lie. Throws Error for everything that does not fit (attend.h).
plan::ForwardRequest attend_request(const KVCache& cache, std::span<const NewTokens> step,
                                    const AttendQueries& queries, const AttendOptions& options);

}  // namespace quire::attention

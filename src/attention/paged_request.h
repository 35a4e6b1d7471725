// A call over paged keys as the request a plan is made of. Attention layer.
#pragma once
#include "plan/forward_plan.h"
#include "quire/paged.h"

namespace quire::attention {

/// Reads page table and lengths and proves the masks of a mask_mod. Throws Error for everything
/// that does not fit (paged.h).
plan::ForwardRequest paged_request(const ConstTensorView& q, const PagedKeys& keys,
                                   const PagedKeysOptions& options);

}  // namespace quire::attention

// The operations that benchmarks count are those of the elements a mask shows.
#include "bench/problem.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "quire/block_mask.h"

namespace quire::bench {
namespace {

TEST(Problem, PairsAreTheElementsThatAreVisible) {
  for (const char* mask : {"", "causal", "window 256", "document", "causal everywhere"}) {
    for (const std::int64_t length : {1, 299, 300, 301, 700}) {
      const Problem problem{.q_len = length, .kv_len = length, .mask = mask};
      std::int64_t visible = length * length;
      if (!problem.mask.empty()) {
        const Tensor all = create_mask(problem.mask_mod(), 1, 1, length, length);
        const bool* const elements = all.data_as<bool>();
        visible = std::count(elements, elements + all.numel(), true);
      }
      EXPECT_EQ(problem.pairs(), static_cast<double>(visible)) << mask << ", " << length;
    }
  }
}

}  // namespace
}  // namespace quire::bench

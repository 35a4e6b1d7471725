// Random operations on a KVCache and on a model that keeps plain vectors: the same tokens and rows
// after each, no page lost or held twice, none reachable from two tenants, failures without a
// trace. Also with hashes so poor that prefixes collide all the time.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <span>

#include "tests/cache/kv_cache_model.h"
#include "tests/support/property.h"

namespace quire::testing {
namespace {

std::uint64_t two_bits(std::uint64_t before, std::span<const std::int64_t> ids) noexcept {
  return (before + static_cast<std::uint64_t>(ids.front())) & 3;
}

std::uint64_t no_bits(std::uint64_t, std::span<const std::int64_t>) noexcept { return 0; }

void run_random(const KVCacheOptions& options, std::uint64_t seed, int operations) {
  ModelledCache model(options, seed);
  for (int i = 0; i < operations && !::testing::Test::HasFailure(); ++i) model.step();
  RC_TAG(model.failures > 0 ? "out of pages" : "always enough pages",
         model.prefix_hits > 0 ? "prefixes found" : "no prefix found");
  model.release_all();
  RC_ASSERT(!::testing::Test::HasFailure());
}

// 100 operations each: 200,000 with the usual number of cases.
RC_GTEST_PROP(KVCache, AgreesWithPlainVectors, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  KVCacheOptions options{.layers = *rc::gen::inRange(1, 3),
                         .kv_heads = *rc::gen::inRange(1, 3),
                         .head_dim = *rc::gen::inRange(1, 4),
                         .v_head_dim = *rc::gen::inRange(1, 4),
                         .page_size = *rc::gen::inRange(1, 6),
                         .n_pages = *rc::gen::element(0, 1, 5, 17, 40, 150)};
  options.page_hash = *rc::gen::element<PageHash>(nullptr, two_bits, no_bits);
  run_random(options, seed, 100);
}

}  // namespace
}  // namespace quire::testing

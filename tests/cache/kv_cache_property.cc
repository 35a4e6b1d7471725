// Random operations on a KVCache and on a model that keeps plain vectors: the same tokens and rows
// after each, no page lost or held twice, none reachable from two tenants, failures without a
// trace. Also with hashes so poor that prefixes collide all the time.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

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

// Any formats that fit, for half of the groups; dims that groups of 32 fit for some of them.
void choose_formats(KVLayerGroup& group) {
  if (*rc::gen::arbitrary<bool>()) return;
  const auto any = [](std::int64_t& dim) {
    const std::string name = *rc::gen::elementOf(KVFormat::names());
    KVFormat format = KVFormat::of(name);
    if (format.scale == ScaleAxis::kGroup) dim = 32;
    format.hadamard = dim % 2 == 0 && *rc::gen::arbitrary<bool>();
    return format;
  };
  group.k_format = any(group.head_dim);
  group.v_in_k = *rc::gen::element(false, false, true);
  if (!group.v_in_k) {
    if (*rc::gen::arbitrary<bool>()) group.v_format = any(group.v_head_dim);
  } else {
    group.v_head_dim = group.k_format.scale == ScaleAxis::kGroup || group.k_format.hadamard
                           ? group.head_dim
                           : std::min(group.v_head_dim, group.head_dim);
  }
}

std::vector<KVLayerGroup> any_groups(std::int64_t layers) {
  std::vector<KVLayerGroup> groups(static_cast<std::size_t>(*rc::gen::inRange(1, 4)));
  for (KVLayerGroup& group : groups) {
    group.kv_heads = *rc::gen::inRange(1, 3);
    group.head_dim = *rc::gen::inRange(1, 4);
    group.v_head_dim = *rc::gen::inRange(1, 4);
    group.window = *rc::gen::element(0, 0, 1, 3, 8, 20);
    if (group.window > 0) group.sink_tokens = *rc::gen::element(0, 0, 1, 4);
    group.n_pages = *rc::gen::element(1, 5, 17, 40, 150);
    choose_formats(group);
  }
  for (std::int64_t layer = 0; layer < layers; ++layer)
    groups[static_cast<std::size_t>(layer) % groups.size()].layers.push_back(layer);
  std::erase_if(groups, [](const KVLayerGroup& group) { return group.layers.empty(); });
  return groups;
}

// 100 operations each: 200,000 with the usual number of cases, half of them with groups.
RC_GTEST_PROP(KVCache, AgreesWithPlainVectors, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  KVCacheOptions options{.layers = *rc::gen::inRange(1, 3),
                         .kv_heads = *rc::gen::inRange(1, 3),
                         .head_dim = *rc::gen::inRange(1, 4),
                         .v_head_dim = *rc::gen::inRange(1, 4),
                         .page_size = *rc::gen::inRange(1, 6),
                         .n_pages = *rc::gen::element(0, 1, 5, 17, 40, 150)};
  if (*rc::gen::arbitrary<bool>()) {
    const std::int64_t page_size = options.page_size;
    options = {.page_size = page_size, .groups = any_groups(*rc::gen::inRange(1, 5))};
  }
  options.page_hash = *rc::gen::element<PageHash>(nullptr, two_bits, no_bits);
  run_random(options, seed, 100);
}

}  // namespace
}  // namespace quire::testing

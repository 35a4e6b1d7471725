// Numbers that make no sense, in every call of the C interface of the cache: each is the caller's
// mistake and said to be, none an error inside the library, and memory that is not there is not
// read.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/c_api/c_structs.h"

namespace quire {
namespace {

using namespace c_api_testing;  // NOLINT

// Whatever numbers a caller gives: an error that says what is wrong, and never INTERNAL.
TEST(CApiHostile, NumbersAreTheCallersMistake) {
  const std::int64_t full_layers[1] = {1}, window_layers[1] = {0};
  quire_kv_layer_group full = sized<quire_kv_layer_group>();
  full.layers = full_layers;
  full.layer_count = 1;
  full.kv_heads = 2;
  full.head_dim = 8;
  full.n_pages = 50;
  quire_kv_layer_group window = full;
  window.layers = window_layers;
  window.window = 10;
  const quire_kv_layer_group* groups[2] = {&full, &window};
  quire_kv_cache_options options = sized<quire_kv_cache_options>();
  options.page_size = 4;
  options.groups = groups;
  options.group_count = 2;
  quire_kv_cache* cache = nullptr;
  ASSERT_EQ(quire_kv_cache_create(&options, &cache), QUIRE_OK) << quire_last_error();
  quire_sequence a{};
  ASSERT_EQ(quire_kv_cache_create_sequence(cache, 0, &a), QUIRE_OK);
  const std::int64_t twelve = 12;
  quire_step first = sized<quire_step>();
  first.sequence_count = 1;
  first.sequences = &a;
  first.counts = &twelve;
  ASSERT_EQ(quire_kv_cache_append(cache, &first), QUIRE_OK);
  ASSERT_EQ(quire_kv_cache_mark_written(cache, -1, &first), QUIRE_OK);
  const auto is_named = [&](quire_status status) {
    EXPECT_NE(status, QUIRE_ERROR_INTERNAL) << quire_last_error();
    EXPECT_NE(status, QUIRE_OK);
  };
  const Tensor rows = numbers({1, 2, 8}, 1);
  const quire_tensor k = c_tensor(rows);
  for (const std::int64_t bad :
       {INT64_MIN, std::int64_t{-2}, std::int64_t{1} << 33, std::int64_t{1} << 62, INT64_MAX}) {
    SCOPED_TRACE(bad);
    quire_sequence to{};
    quire_sequence_view view = sized<quire_sequence_view>();
    quire_kv_cache_stats stats = sized<quire_kv_cache_stats>();
    quire_tensor pages{};
    std::int64_t group = 0;
    std::int32_t can = 0;
    is_named(quire_kv_cache_fork(cache, a, bad, &to));
    is_named(quire_kv_cache_truncate(cache, a, bad));
    is_named(quire_kv_cache_release_before(cache, a, bad));
    is_named(quire_kv_cache_release_between(cache, a, 0, bad));
    is_named(quire_kv_cache_release_between(cache, a, bad, 3));
    if (bad > 0) is_named(quire_kv_cache_commit(cache, a, bad));
    is_named(quire_kv_cache_view(cache, a, bad, &view));
    is_named(quire_kv_cache_get_stats(cache, bad, &stats));
    is_named(quire_kv_cache_group_of(cache, bad, &group));
    is_named(quire_kv_cache_k_pages(cache, bad, &pages));
    quire_step step = sized<quire_step>();
    step.sequence_count = 1;
    step.sequences = &a;
    step.counts = &bad;
    is_named(quire_kv_cache_append(cache, &step));
    is_named(quire_kv_cache_reserve(cache, &step));
    if (bad < 0) is_named(quire_kv_cache_can_reserve(cache, &step, &can));
    is_named(quire_kv_cache_write(cache, 0, &step, &k, &k));
    is_named(quire_kv_cache_mark_written(cache, 0, &step));
    quire_attend_options of = sized<quire_attend_options>();
    of.q_heads = 2;
    quire_attention_plan* plan = nullptr;
    is_named(quire_attend_plan_create(cache, &step, &of, &plan));
    const std::int64_t one = 1;
    step.counts = &one;
    is_named(quire_kv_cache_write(cache, bad, &step, &k, &k));
    of.q_heads = bad;
    if (bad != std::int64_t{1} << 33 && bad != std::int64_t{1} << 62)
      is_named(quire_attend_plan_create(cache, &step, &of, &plan));
    of.q_heads = 2;
    of.group = bad;
    is_named(quire_attend_plan_create(cache, &step, &of, &plan));
    of.group = 0;
    if (bad < 0) {
      of.window = bad;
      is_named(quire_attend_plan_create(cache, &step, &of, &plan));
      of.window = 0;
    }
    quire_sequence_options own = sized<quire_sequence_options>();
    const quire_sequence_options* owns[1] = {&own};
    own.sequence = a;
    own.parents = &bad;
    own.parent_count = 1;
    of.sequence_options = owns;
    of.sequence_option_count = 1;
    is_named(quire_attend_plan_create(cache, &step, &of, &plan));
    own.parent_count = std::size_t{1} << 61;
    is_named(quire_attend_plan_create(cache, &step, &of, &plan));
    of.sequence_option_count = std::size_t{1} << 61;
    is_named(quire_attend_plan_create(cache, &step, &of, &plan));
    step.sequence_count = std::size_t{1} << 61;
    is_named(quire_kv_cache_append(cache, &step));
    EXPECT_EQ(plan, nullptr);
    quire_kv_layer_group wrong = full;
    const quire_kv_layer_group* both[2] = {&wrong, &window};
    quire_kv_cache_options others = options;
    others.groups = both;
    quire_kv_cache* none = nullptr;
    for (std::int64_t quire_kv_layer_group::*field :
         {&quire_kv_layer_group::kv_heads, &quire_kv_layer_group::head_dim,
          &quire_kv_layer_group::v_head_dim, &quire_kv_layer_group::n_pages}) {
      wrong = full;
      wrong.*field = bad;
      is_named(quire_kv_cache_create(&others, &none));
    }
    others = options;
    others.page_size = bad;
    is_named(quire_kv_cache_create(&others, &none));
    others = options;
    others.group_count = std::size_t{1} << 61;
    is_named(quire_kv_cache_create(&others, &none));
  }
  is_named(quire_kv_cache_save_to_file(cache, a, "/no/such/folder/file.kv"));
  is_named(quire_kv_cache_save_to_file(cache, a, ""));
  quire_sequence to{};
  is_named(quire_kv_cache_load_from_file(cache, "/", 0, &to));
  const auto nothing = [](void*, void*, std::size_t) { return std::size_t{0}; };
  is_named(quire_kv_cache_load_from(cache, nothing, nullptr, 0, &to));
  const auto more = [](void*, void*, std::size_t size) { return size + 1; };
  is_named(quire_kv_cache_load_from(cache, more, nullptr, 0, &to));
  quire_kv_cache_free(cache);
}

}  // namespace
}  // namespace quire

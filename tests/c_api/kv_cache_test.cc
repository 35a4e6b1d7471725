// The C interface of the cache, of attention over it and of plans: bits of the C++ functions, files
// and callbacks, and what is refused.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "quire/attend.h"
#include "quire/mods.h"
#include "quire/quantize.h"
#include "tests/c_api/c_structs.h"

namespace quire {
namespace {

using namespace c_api_testing;  // NOLINT

// Two groups of layers, in C and in C++.
struct CApiCache : ::testing::Test {
  const std::int64_t full_layers[1] = {1}, window_layers[1] = {0};
  quire_kv_layer_group full = sized<quire_kv_layer_group>();
  quire_kv_layer_group window = sized<quire_kv_layer_group>();
  const quire_kv_layer_group* groups[2] = {&full, &window};
  quire_kv_cache_options options = sized<quire_kv_cache_options>();
  quire_kv_cache* cache = nullptr;

  void SetUp() override {
    full.layers = full_layers;
    full.layer_count = 1;
    full.kv_heads = 2;
    full.head_dim = 8;
    full.n_pages = 50;
    window = full;
    window.layers = window_layers;
    window.window = 10;
    window.sink_tokens = 2;
    options.page_size = 4;
    options.groups = groups;
    options.group_count = 2;
    ASSERT_EQ(quire_kv_cache_create(&options, &cache), QUIRE_OK) << quire_last_error();
  }
  void TearDown() override { quire_kv_cache_free(cache); }

  static KVCacheOptions in_cpp() {
    KVLayerGroup all{.layers = {1}, .kv_heads = 2, .head_dim = 8, .n_pages = 50}, some = all;
    some.layers = {0};
    some.window = 10;
    some.sink_tokens = 2;
    return {.page_size = 4, .groups = {all, some}};
  }

  quire_sequence create() {
    quire_sequence made{};
    EXPECT_EQ(quire_kv_cache_create_sequence(cache, 0, &made), QUIRE_OK) << quire_last_error();
    return made;
  }
  // Tokens with ids and rows that follow from a seed, in both layers.
  void append(quire_sequence sequence, std::int64_t count, const std::int64_t* ids, int draft) {
    quire_step step = sized<quire_step>();
    step.sequence_count = 1;
    step.sequences = &sequence;
    step.counts = &count;
    step.ids = &ids;
    step.drafts = &draft;
    ASSERT_EQ(quire_kv_cache_append(cache, &step), QUIRE_OK) << quire_last_error();
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      const Tensor rows = numbers({count, 2, 8}, static_cast<std::uint32_t>(count + layer));
      const quire_tensor k = c_tensor(rows);
      ASSERT_EQ(quire_kv_cache_write(cache, layer, &step, &k, &k), QUIRE_OK) << quire_last_error();
    }
  }
};

TEST_F(CApiCache, AttendsAsCpp) {
  KVCache same(in_cpp());
  const SequenceId id = same.create();
  const quire_sequence sequence = create();
  std::vector<std::int64_t> ids(40, 3);
  append(sequence, 40, ids.data(), 0);
  const NewTokens tokens[] = {{id, 40, ids}};
  same.append(tokens);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    const Tensor rows = numbers({40, 2, 8}, static_cast<std::uint32_t>(40 + layer));
    same.write(layer, tokens, rows, rows);
  }
  const std::int64_t count = 3, parents[3] = {-1, 0, 0};
  quire_step step = sized<quire_step>();
  step.sequence_count = 1;
  step.sequences = &sequence;
  step.counts = &count;
  quire_sequence_options tree = sized<quire_sequence_options>();
  tree.sequence = sequence;
  tree.parents = parents;
  tree.parent_count = 3;
  const quire_sequence_options* trees[1] = {&tree};
  quire_attend_options attend_options = sized<quire_attend_options>();
  attend_options.sequence_options = trees;
  attend_options.sequence_option_count = 1;
  const Tensor q = numbers({3, 4, 8}, 9);
  const quire_tensor c_q = c_tensor(q);
  AttendOptions in_cpp_options;
  in_cpp_options.sequence_options = {{.sequence = id, .parents = {-1, 0, 0}}};
  const NewTokens last[] = {{id, 3}};
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    Tensor out({3, 4, 8}, DType::f32), planned({3, 4, 8}, DType::f32);
    const quire_tensor c_out = c_tensor(out), c_planned = c_tensor(planned);
    quire_attention_outputs outputs = sized<quire_attention_outputs>();
    outputs.out = &c_out;
    attend_options.q_heads = attend_options.group = 0;
    ASSERT_EQ(quire_attend(cache, layer, &step, &attend_options, &c_q, &outputs), QUIRE_OK)
        << quire_last_error();
    expect_same_bits(out, attend(same, layer, last, q, in_cpp_options));
    attend_options.q_heads = 4;
    attend_options.group = 1 - layer;
    quire_attention_plan* plan = nullptr;
    ASSERT_EQ(quire_attend_plan_create(cache, &step, &attend_options, &plan), QUIRE_OK)
        << quire_last_error();
    outputs.out = &c_planned;
    ASSERT_EQ(quire_attend_plan_run(plan, cache, layer, &c_q, &outputs), QUIRE_OK)
        << quire_last_error();
    expect_same_bits(out, planned);
    expect_failed(QUIRE_ERROR_VALUE,
                  "[quire_attend_plan_create] layer " + std::to_string(1 - layer) +
                      " is in group " + std::to_string(layer) + ", and the plan is for group " +
                      std::to_string(1 - layer),
                  quire_attend_plan_run(plan, cache, 1 - layer, &c_q, &outputs));
    quire_attention_plan_free(plan);
  }
}

TEST_F(CApiCache, KeepsCommitsForksAndFinds) {
  const quire_sequence a = create();
  std::vector<std::int64_t> ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  append(a, 6, ids.data(), 0);
  append(a, 6, ids.data() + 6, 1);
  std::int64_t found = 0;
  ASSERT_EQ(quire_kv_cache_cached_prefix(cache, ids.data(), 12, 0, &found), QUIRE_OK);
  EXPECT_EQ(found, 4);
  const std::int64_t begin = 6, positions[3] = {6, 8, 11};
  const std::int64_t* const lists[1] = {positions};
  const std::size_t counts[1] = {3};
  quire_kept_tokens kept = sized<quire_kept_tokens>();
  kept.sequence_count = 1;
  kept.sequences = &a;
  kept.begins = &begin;
  kept.positions = lists;
  kept.position_counts = counts;
  ASSERT_EQ(quire_kv_cache_keep(cache, &kept), QUIRE_OK) << quire_last_error();
  quire_sequence_view view = sized<quire_sequence_view>();
  ASSERT_EQ(quire_kv_cache_view(cache, a, 0, &view), QUIRE_OK) << quire_last_error();
  EXPECT_EQ(view.length, 9);
  EXPECT_EQ(view.committed, 6);
  EXPECT_EQ(std::vector<std::int64_t>(view.ids, view.ids + view.id_count),
            (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 9, 12}));
  ASSERT_EQ(quire_kv_cache_commit(cache, a, 9), QUIRE_OK);
  const std::int64_t kept_ids[8] = {1, 2, 3, 4, 5, 6, 7, 9};
  quire_sequence b{}, c{};
  ASSERT_EQ(quire_kv_cache_create_with_prefix(cache, kept_ids, 8, 0, &b, &found), QUIRE_OK);
  EXPECT_EQ(found, 8);
  ASSERT_EQ(quire_kv_cache_fork(cache, a, -1, &c), QUIRE_OK);
  ASSERT_EQ(quire_kv_cache_truncate(cache, c, 5), QUIRE_OK);
  ASSERT_EQ(quire_kv_cache_release_before(cache, c, 4), QUIRE_OK);
  std::int32_t there = 0;
  ASSERT_EQ(quire_kv_cache_contains(cache, c, &there), QUIRE_OK);
  EXPECT_EQ(there, 1);
  ASSERT_EQ(quire_kv_cache_release(cache, c), QUIRE_OK);
  expect_failed(QUIRE_ERROR_VALUE,
                "[KVCache::truncate] the handle is stale: its sequence was released",
                quire_kv_cache_truncate(cache, c, 1));
  quire_kv_cache_stats stats = sized<quire_kv_cache_stats>();
  ASSERT_EQ(quire_kv_cache_get_stats(cache, -1, &stats), QUIRE_OK);
  EXPECT_EQ(stats.sequences, 2);
  EXPECT_EQ(stats.pages, 100);
  expect_failed(QUIRE_ERROR_INDEX, "[KVCache::stats] group must be in 0..1; got 2",
                quire_kv_cache_get_stats(cache, 2, &stats));
}

struct Memory {
  std::vector<std::byte> bytes;
  std::size_t at = 0;

  static std::int32_t put(void* user, const void* bytes, std::size_t size) {
    auto& to = static_cast<Memory*>(user)->bytes;
    const auto* from = static_cast<const std::byte*>(bytes);
    to.insert(to.end(), from, from + size);
    return 0;
  }
  static std::size_t get(void* user, void* bytes, std::size_t size) {
    auto& from = *static_cast<Memory*>(user);
    const std::size_t n = std::min({size, from.bytes.size() - from.at, std::size_t{100}});
    std::memcpy(bytes, from.bytes.data() + from.at, n);
    from.at += n;
    return n;
  }
};

TEST_F(CApiCache, SavesAndLoads) {
  const quire_sequence a = create();
  std::vector<std::int64_t> ids(30, 5);
  append(a, 30, ids.data(), 0);
  Memory memory;
  ASSERT_EQ(quire_kv_cache_save_to(cache, a, Memory::put, &memory), QUIRE_OK) << quire_last_error();
  quire_sequence b{};
  ASSERT_EQ(quire_kv_cache_load_from(cache, Memory::get, &memory, 0, &b), QUIRE_OK)
      << quire_last_error();
  const std::string file =
      (std::filesystem::temp_directory_path() / "quire_c_api_cache.kv").string();
  ASSERT_EQ(quire_kv_cache_save_to_file(cache, b, file.c_str()), QUIRE_OK) << quire_last_error();
  ASSERT_EQ(quire_kv_cache_load_from_file(cache, file.c_str(), 0, &b), QUIRE_OK);
  ASSERT_EQ(quire_kv_cache_save_all_to_file(cache, file.c_str()), QUIRE_OK) << quire_last_error();
  quire_kv_cache* other = nullptr;
  ASSERT_EQ(quire_kv_cache_create(&options, &other), QUIRE_OK);
  int loaded = 0;
  const auto count = [](void* user, quire_sequence, quire_sequence) { ++*static_cast<int*>(user); };
  ASSERT_EQ(quire_kv_cache_load_all_from_file(other, file.c_str(), count, &loaded), QUIRE_OK)
      << quire_last_error();
  EXPECT_EQ(loaded, 3);
  Memory all;
  ASSERT_EQ(quire_kv_cache_save_all(other, Memory::put, &all), QUIRE_OK);
  ASSERT_EQ(quire_kv_cache_load_all(other, Memory::get, &all, count, &loaded), QUIRE_OK);
  EXPECT_EQ(loaded, 6);
  quire_kv_cache_free(other);
  std::filesystem::remove(file);
  const auto stop = [](void*, const void*, std::size_t) { return std::int32_t{7}; };
  expect_failed(QUIRE_ERROR_RUNTIME, "[quire_kv_cache_save_to] sink returned 7",
                quire_kv_cache_save_to(cache, a, stop, nullptr));
}

TEST_F(CApiCache, WhatDoesNotFitIsRefused) {
  quire_kv_cache* none = nullptr;
  options.layers = 2;
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_kv_cache_create] layers, kv_heads, head_dim, v_head_dim, dtype, formats "
                "and v_in_k are those of the groups, and 0 in options",
                quire_kv_cache_create(&options, &none));
  EXPECT_EQ(none, nullptr);
  options.layers = 0;
  options.group_count = 0;
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_kv_cache_create] options.groups is given, and options.group_count is 0",
                quire_kv_cache_create(&options, &none));
  expect_failed(QUIRE_ERROR_VALUE, "[quire_kv_cache_append] cache is null",
                quire_kv_cache_append(nullptr, nullptr));
  expect_failed(QUIRE_ERROR_VALUE, "[quire_kv_cache_append] step is null",
                quire_kv_cache_append(cache, nullptr));
  quire_sequence foreign{};
  std::int64_t found = 0;
  expect_failed(QUIRE_ERROR_VALUE,
                "[KVCache::release] the handle belongs to no sequence of this cache",
                quire_kv_cache_release(cache, foreign));
  const std::int64_t one = 1;
  EXPECT_EQ(quire_kv_cache_cached_prefix(cache, &one, std::size_t{1} << 61, 0, &found),
            QUIRE_ERROR_VALUE);
}

TEST(CApiCodedCache, WritesCodesAndSharesScales) {
  quire_kv_cache_options options = sized<quire_kv_cache_options>();
  options.layers = 1;
  options.kv_heads = 2;
  options.head_dim = 32;
  options.page_size = 4;
  options.n_pages = 8;
  options.k_format = "int8";
  options.v_format = "fp8_e4m3";
  quire_kv_cache* cache = nullptr;
  ASSERT_EQ(quire_kv_cache_create(&options, &cache), QUIRE_OK) << quire_last_error();
  const Tensor scales = Tensor::from<float>({0.5f, 2});
  const quire_tensor given = c_tensor(scales);
  EXPECT_EQ(quire_kv_cache_set_scales(cache, 0, &given, nullptr), QUIRE_ERROR_VALUE);
  EXPECT_STREQ(
      quire_last_error(),
      "[KVCache::set_scales] int8 has no scales that tokens share; give none for k_scales");
  ASSERT_EQ(quire_kv_cache_set_scales(cache, 0, nullptr, &given), QUIRE_OK) << quire_last_error();
  quire_sequence sequence{};
  ASSERT_EQ(quire_kv_cache_create_sequence(cache, 0, &sequence), QUIRE_OK);
  const std::int64_t count = 5;
  quire_step step = sized<quire_step>();
  step.sequence_count = 1;
  step.sequences = &sequence;
  step.counts = &count;
  ASSERT_EQ(quire_kv_cache_append(cache, &step), QUIRE_OK) << quire_last_error();
  const Tensor rows = numbers({5, 2, 32}, 3);
  const quire_tensor k = c_tensor(rows);
  EXPECT_EQ(quire_kv_cache_write(cache, 0, &step, &k, nullptr), QUIRE_ERROR_VALUE);
  ASSERT_EQ(quire_kv_cache_write(cache, 0, &step, &k, &k), QUIRE_OK) << quire_last_error();
  quire_tensor pages{}, k_scales{}, v_scales{};
  ASSERT_EQ(quire_kv_cache_k_pages(cache, 0, &pages), QUIRE_OK);
  ASSERT_EQ(quire_kv_cache_k_scales(cache, 0, &k_scales), QUIRE_OK);
  ASSERT_EQ(quire_kv_cache_v_scales(cache, 0, &v_scales), QUIRE_OK);
  EXPECT_EQ(pages.dtype, QUIRE_I8);
  const QuantizedTensor coded = quantize(rows, KVFormat::of("int8"));
  // Token 4 is the first of the second page; head 1.
  const auto* const codes = static_cast<const std::int8_t*>(pages.data) + (1 * 2 + 1) * 4 * 32;
  EXPECT_EQ(std::memcmp(codes, coded.codes.data_as<std::int8_t>() + (4 * 2 + 1) * 32, 32), 0);
  EXPECT_EQ(static_cast<const float*>(k_scales.data)[(1 * 2 + 1) * 4],
            coded.scales.data_as<float>()[4 * 2 + 1]);
  EXPECT_EQ(static_cast<const float*>(v_scales.data)[1], 2);
  quire_kv_cache_stats stats = sized<quire_kv_cache_stats>();
  ASSERT_EQ(quire_kv_cache_get_stats(cache, -1, &stats), QUIRE_OK);
  EXPECT_EQ(stats.token_bytes, 2 * (32 + 4 + 32));
  EXPECT_EQ(stats.used_bytes, 2 * 4 * stats.token_bytes);
  quire_kv_cache_free(cache);
  // Of an older program, which does not know formats.
  options = sized<quire_kv_cache_options>();
  options.size = offsetof(quire_kv_cache_options, k_format);
  options.layers = options.kv_heads = options.head_dim = 1;
  options.v_in_k = 7;
  ASSERT_EQ(quire_kv_cache_create(&options, &cache), QUIRE_OK) << quire_last_error();
  quire_kv_cache_free(cache);
  options.size = sizeof(options);
  EXPECT_EQ(quire_kv_cache_create(&options, &cache), QUIRE_ERROR_VALUE);
}

TEST(CApiPlan, RunsAsTheCall) {
  const Tensor q = numbers({1, 2, 9, 8}, 1), k = numbers({1, 2, 9, 8}, 2);
  Tensor out({1, 2, 9, 8}, DType::f32), planned({1, 2, 9, 8}, DType::f32);
  const quire_tensor c_q = c_tensor(q), c_k = c_tensor(k), c_out = c_tensor(out),
                     c_planned = c_tensor(planned);
  quire_attention_problem problem = sized<quire_attention_problem>();
  problem.q = &c_q;
  problem.k = problem.v = &c_k;
  quire_attention_outputs outputs = sized<quire_attention_outputs>();
  outputs.out = &c_out;
  ASSERT_EQ(quire_attention(&problem, &outputs), QUIRE_OK);
  quire_attention_plan* plan = nullptr;
  ASSERT_EQ(quire_attention_plan_create(&problem, &plan), QUIRE_OK);
  outputs.out = &c_planned;
  ASSERT_EQ(quire_attention_plan_run(plan, &c_q, &c_k, &c_k, &outputs), QUIRE_OK)
      << quire_last_error();
  expect_same_bits(out, planned);
  quire_kv_cache_options options = sized<quire_kv_cache_options>();
  options.layers = options.kv_heads = options.n_pages = 1;
  options.head_dim = 8;
  quire_kv_cache* cache = nullptr;
  ASSERT_EQ(quire_kv_cache_create(&options, &cache), QUIRE_OK) << quire_last_error();
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_attention_plan] the plan was not made for a step over a cache",
                quire_attend_plan_run(plan, cache, 0, &c_q, &outputs));
  quire_kv_cache_free(cache);
  quire_attention_plan_free(plan);
}

}  // namespace
}  // namespace quire

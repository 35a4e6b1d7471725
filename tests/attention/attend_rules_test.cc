// What the queries of a step see: rules, windows, trees and tables of single sequences, groups of
// layers, released middles. Every token has the bits of flex_attention over its sequence alone
// under a table of what it should see.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "quire/attend.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "tests/support/attend_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/jagged_case.h"

namespace quire {
namespace {

using testing::expect_error;
using testing::random_normal;
using testing::same_bits;

using Harness = testing::AttendHarness;

// Whether query `row` of a sequence sees a key.
using Sees = std::function<bool(std::int64_t row, std::int64_t key)>;

// A step of one layer against tables.
void expect_seen(Harness& harness, const std::vector<NewTokens>& step, const AttendOptions& options,
                 const std::vector<Sees>& sees, const std::string& what, std::int64_t layer = 0) {
  const KVCache& cache = harness.cache;
  const std::int64_t number = cache.group_of(layer);
  const KVLayerGroup& group = cache.groups()[static_cast<std::size_t>(number)];
  std::int64_t tokens = 0, first = 0;
  for (const NewTokens& one : step) tokens += one.count;
  const Tensor q = random_normal({tokens, 4, group.head_dim}, group.dtype, harness.random);
  const Tensor out = attend(cache, layer, step, q, options);
  for (std::size_t i = 0; i < step.size(); ++i) {
    const std::int64_t count = step[i].count, length = cache.length(step[i].sequence);
    Tensor table({count, length}, DType::boolean);
    for (std::int64_t row = 0; row < count; ++row)
      for (std::int64_t key = 0; key < length; ++key)
        table.at<bool>({row, key}) = sees[i](row, key);
    const MaskMod mask = MaskMod::parse("seen[q_idx, kv_idx]", {{"seen", Buffer(table)}});
    const auto rows = [&](const ConstTensorView& view) {
      return view.slice(0, first, first + count).transpose(0, 1).unsqueeze(0);
    };
    const Tensor expected =
        flex_attention(rows(q), harness.dense(cache.k_pages(layer), step[i].sequence, number),
                       harness.dense(cache.v_pages(layer), step[i].sequence, number),
                       {.mask_mod = mask, .enable_gqa = true});
    EXPECT_TRUE(same_bits(rows(out), expected)) << what << ", sequence " << i;
    first += count;
  }
}

KVCacheOptions sizes(std::int64_t page_size = 16) {
  return {.kv_heads = 2, .head_dim = 24, .v_head_dim = 32, .page_size = page_size, .n_pages = 600};
}

Sees causal(std::int64_t q_begin, std::int64_t window = 0) {
  return [=](std::int64_t row, std::int64_t key) {
    const std::int64_t q = q_begin + row;
    return key <= q && (window == 0 || q - key < window);
  };
}

TEST(AttendRules, WindowAndMaskCombine) {
  Harness harness(sizes());
  const SequenceId a = harness.create(900), b = harness.create(333);
  const MaskMod odd = MaskMod::parse("(kv_idx % 3 != 1) | (kv_idx > q_idx)");
  const auto sees = [&](SequenceId of, std::int64_t count) {
    const Sees window = causal(harness.cache.length(of) - count, 100);
    return [=](std::int64_t row, std::int64_t key) { return window(row, key) && key % 3 != 1; };
  };
  for (const std::int64_t count : {1, 7, 9, 90}) {
    expect_seen(harness, {{a, count}, {b, 2}}, {.mask_mod = odd, .window = 100},
                {sees(a, count), sees(b, 2)}, std::to_string(count));
  }
}

// The number of queries changes what a rule costs, not what it shows.
TEST(AttendRules, ARuleShowsTheSameToAnyNumberOfQueries) {
  Harness harness(sizes());
  const SequenceId a = harness.create(1500), b = harness.create(700);
  for (const std::int64_t count : {1, 2, 7, 8, 9, 12, 13, 60, 130}) {
    const auto streaming = [&](SequenceId of) {
      const std::int64_t begin = harness.cache.length(of) - count;
      return [=](std::int64_t row, std::int64_t key) {
        return key <= begin + row && (key < 4 || begin + row - key < 200);
      };
    };
    expect_seen(harness, {{a, count}, {b, count}}, {.mask_mod = mods::streaming(4, 200)},
                {streaming(a), streaming(b)}, std::to_string(count));
  }
}

// What is known from earlier steps: sequences grow by a few tokens a step, past several bands of
// positions that are proved together, and take turns in the step.
TEST(AttendRules, ProofsAreCarriedFromStepToStep) {
  Harness harness(sizes());
  const SequenceId a = harness.create(5), b = harness.create(190);
  using Shows = std::function<bool(std::int64_t b, std::int64_t q, std::int64_t key)>;
  const std::pair<const char*, Shows> rules[] = {
      {"(kv_idx <= q_idx) & ((kv_idx < 4) | (q_idx - kv_idx < 70))",
       [](std::int64_t, std::int64_t q, std::int64_t key) {
         return key <= q && (key < 4 || q - key < 70);
       }},
      {"(kv_idx % 5 != b) | (kv_idx == q_idx)",
       [](std::int64_t i, std::int64_t q, std::int64_t key) { return key % 5 != i || key == q; }},
      {"kv_idx // 32 == q_idx // 32",
       [](std::int64_t, std::int64_t q, std::int64_t key) { return key / 32 == q / 32; }},
      {"(kv_idx * 3) // (q_idx - 100) != 1",  // divides by zero at 100 alone, where nobody asks
       [](std::int64_t, std::int64_t q, std::int64_t key) {
         const std::int64_t by = q - 100, x = key * 3;
         return (x / by - (x % by != 0 && (x < 0) != (by < 0))) != 1;
       }}};
  for (int i = 0; i < 40; ++i) {
    harness.append(a, 1 + i % 4);
    harness.append(b, 1 + i % 7);
    for (const auto& [text, shows] : rules) {
      const std::int64_t count = 1 + i % 3, first = harness.cache.length(a) - count;
      if (std::string(text).find("//") != std::string::npos && first <= 100 &&
          harness.cache.length(a) > 100)
        continue;
      const auto sees = [&, by = shows](SequenceId of, std::int64_t number, std::int64_t queries) {
        const std::int64_t begin = harness.cache.length(of) - queries;
        return [=](std::int64_t row, std::int64_t key) { return by(number, begin + row, key); };
      };
      const AttendOptions options{.mask_mod = MaskMod::parse(text)};
      expect_seen(harness, {{a, count}, {b, 1}}, options, {sees(a, 0, count), sees(b, 1, 1)}, text);
      expect_seen(harness, {{b, 2}, {a, 1}}, options, {sees(b, 0, 2), sees(a, 1, 1)}, text);
    }
  }
}

TEST(AttendRules, SequencesHaveRulesOfTheirOwn) {
  Harness harness(sizes());
  const SequenceId a = harness.create(500), b = harness.create(400), c = harness.create(300),
                   d = harness.create(200);
  Tensor rows({9, 600}, DType::i64);  // by b: 7 is the row of d, wherever it is in the step
  for (std::int64_t key = 0; key < 600; ++key) rows.at<std::int64_t>({7, key}) = key % 4;
  const MaskMod table =
      MaskMod::parse("(kv_idx <= q_idx) & (rows[b, kv_idx] < 2)", {{"rows", Buffer(rows)}});
  for (const std::int64_t count : {1, 3, 40, 100}) {
    AttendOptions options;
    options.sequence_options = {{.sequence = d, .mask_mod = table, .b = 7},
                                {.sequence = a, .window = 50},
                                {.sequence = b, .mask_mod = MaskMod::parse("kv_idx % 7 < 3")}};
    const Sees all = causal(300 - count);
    const Sees below = causal(200 - count);
    const std::vector<Sees> sees = {
        causal(500 - count, 50), [](std::int64_t, std::int64_t key) { return key % 7 < 3; }, all,
        [=](std::int64_t row, std::int64_t key) { return below(row, key) && key % 4 < 2; }};
    expect_seen(harness, {{a, count}, {b, count}, {c, count}, {d, count}}, options, sees,
                std::to_string(count));
    expect_seen(harness, {{d, count}, {c, count}}, options, {sees[3], sees[2]}, "other order");
  }
  // A table of the step by numbers that the caller gives.
  const MaskMod doc =
      MaskMod::parse("(kv_idx <= q_idx) & (rows[b, kv_idx] < 2)", {{"rows", Buffer(rows)}});
  AttendOptions options{.mask_mod = doc};
  options.sequence_options = {{.sequence = d, .b = 7}, {.sequence = c, .b = 8}};
  const Sees below = causal(199), all = causal(299);
  expect_seen(
      harness, {{c, 1}, {d, 1}}, options,
      {all, [=](std::int64_t row, std::int64_t key) { return below(row, key) && key % 4 < 2; }},
      "b of the step");
}

// A tree of drafts with and without a window, beside sequences that have none.
TEST(AttendRules, TreesCountTheirWindowAlongThePath) {
  Harness harness(sizes(7));
  const SequenceId a = harness.create(207), b = harness.create(400);
  //            0
  //      1     2     3
  //    4  5    6
  const std::vector<std::int64_t> parents = {-1, 0, 0, 0, 1, 1, 2};
  const auto tree = [&](std::int64_t queries, std::int64_t window) {
    return [=](std::int64_t row, std::int64_t key) {
      const auto depth = [&](std::int64_t token) {
        std::int64_t n = 0;
        for (std::int64_t at = token; parents[static_cast<std::size_t>(at)] >= 0; ++n)
          at = parents[static_cast<std::size_t>(at)];
        return 200 + n;
      };
      const std::int64_t token = 7 - queries + row, of = depth(token);
      if (key < 200) return window == 0 || of - key < window;
      for (std::int64_t at = token; at >= 0; at = parents[static_cast<std::size_t>(at)])
        if (at == key - 200) return window == 0 || of - depth(at) < window;
      return false;
    };
  };
  for (const std::int64_t window : {0, 1, 2, 3, 40}) {
    for (const std::int64_t queries : {7, 3, 1}) {
      AttendOptions options{.window = window};
      options.sequence_options = {{.sequence = a, .parents = parents}};
      expect_seen(harness, {{b, 1}, {a, queries}, {b, 0}}, options,
                  {causal(399, window), tree(queries, window), causal(400)},
                  std::to_string(window) + " " + std::to_string(queries));
    }
  }
  // A large tree, in the kernel for many queries; a rule hides from it.
  const SequenceId c = harness.create(300);
  std::vector<std::int64_t> many;
  for (std::int64_t i = 0; i < 100; ++i) many.push_back(i < 3 ? -1 : i - 3);
  AttendOptions options{.mask_mod = MaskMod::parse("kv_idx != 216")};  // 48, 49 and 50 by depth
  options.sequence_options = {{.sequence = c, .parents = many}};
  const Sees sees = [](std::int64_t row, std::int64_t key) {
    if (key >= 248 && key <= 250) return false;
    return key < 200 || (key - 200 <= row && (row - key + 200) % 3 == 0);
  };
  expect_seen(harness, {{c, 100}}, options, {sees}, "large");
}

TEST(AttendRules, QueriesNeedNotBeTheLastTokens) {
  Harness harness(sizes());
  const SequenceId a = harness.create(300), b = harness.create(50);
  AttendOptions options;
  options.sequence_options = {{.sequence = a, .q_begin = 100}};
  expect_seen(harness, {{a, 5}, {b, 1}}, options, {causal(100), causal(49)}, "middle");
  // Cross-attention: more queries than keys, anywhere, and all is seen.
  options.sequence_options = {{.sequence = b, .q_begin = 1000, .mask_mod = MaskMod::parse("True")}};
  const Sees all = [](std::int64_t, std::int64_t) { return true; };
  expect_seen(harness, {{b, 70}, {a, 1}}, options, {all, causal(299)}, "cross");
}

TEST(AttendRules, TheMiddleMayBeReleased) {
  Harness harness(sizes());
  const SequenceId a = harness.create(500), b = harness.create(100);
  harness.cache.release_between(a, 4, 400);
  EXPECT_EQ(harness.cache.view(a).begin, 0);
  EXPECT_EQ(harness.cache.view(a).hole_begin, 16);
  EXPECT_EQ(harness.cache.view(a).hole_end, 400);
  for (const std::int64_t count : {1, 9, 60}) {
    const auto streaming = [=](std::int64_t length) {
      return [=](std::int64_t row, std::int64_t key) {
        const std::int64_t q = length - count + row;
        return key <= q && (key < 4 || q - key < 30);
      };
    };
    expect_seen(harness, {{a, count}, {b, count}}, {.mask_mod = mods::streaming(4, 30)},
                {streaming(500), streaming(100)}, std::to_string(count));
  }
  const Tensor q({1, 4, 24}, DType::f32);
  const NewTokens step[] = {{a, 1}};
  expect_error(ErrorKind::value,
               "[attend] sequence 0 of the step has released its keys 16..399, and a query may see "
               "them",
               [&] { attend(harness.cache, 0, step, q, {.mask_mod = mods::streaming(17, 30)}); });
}

KVCacheOptions groups() {
  return {.page_size = 16,
          .groups = {{.layers = {1, 3}, .kv_heads = 2, .head_dim = 24, .n_pages = 100},
                     {.layers = {0}, .kv_heads = 1, .head_dim = 16, .window = 50, .n_pages = 30},
                     {.layers = {2},
                      .kv_heads = 4,
                      .head_dim = 8,
                      .v_head_dim = 5,
                      .window = 20,
                      .sink_tokens = 3,
                      .n_pages = 30}}};
}

TEST(AttendRules, GroupsOfLayersHaveTheirWindows) {
  Harness harness(groups());
  const SequenceId a = harness.create(30), b = harness.create(5);
  for (int i = 0; i < 20; ++i) {
    harness.append(a, 1 + i % 3 * 15);
    harness.append(b, 1);
  }
  EXPECT_EQ(harness.cache.view(a, 0).hole_end, 0);
  EXPECT_GT(harness.cache.view(a, 1).hole_end, 150);
  EXPECT_EQ(harness.cache.view(a, 2).hole_begin, 16);
  EXPECT_LE(harness.cache.stats(1).used_pages, 4 + 3 + 3);
  const std::int64_t length = harness.cache.length(a);
  for (const std::int64_t count : {1, 16}) {
    const std::vector<NewTokens> step{{a, count}, {b, 1}};
    const auto sinks = [=](std::int64_t row, std::int64_t key) {
      return causal(length - count)(row, key) && (key < 3 || causal(length - count, 20)(row, key));
    };
    const Sees few = [](std::int64_t row, std::int64_t key) {
      return causal(24)(row, key) && (key < 3 || causal(24, 20)(row, key));
    };
    expect_seen(harness, step, {}, {causal(length - count), causal(24)}, "all", 3);
    expect_seen(harness, step, {}, {causal(length - count, 50), causal(24, 50)}, "window", 0);
    expect_seen(harness, step, {}, {sinks, few}, "sinks", 2);
  }
  const NewTokens step[] = {{a, 1}};
  AttendPlan plan(harness.cache, step, {.q_heads = 4, .group = 1});
  const Tensor q({1, 4, 24}, DType::f32);
  Tensor out({1, 4, 24}, DType::f32);
  expect_error(ErrorKind::value, "[attend] layer 1 is in group 0, and the plan is for group 1",
               [&] { plan.run(harness.cache, 1, q, {.out = out.view()}); });
}

TEST(AttendRules, TokensThatWereNotWrittenAreRefused) {
  KVCacheOptions two = sizes();
  two.layers = 2;
  Harness harness(two);
  const SequenceId a = harness.create(20);
  const NewTokens step[] = {{a, 2}};
  harness.cache.append(step);
  const Tensor q({2, 4, 24}, DType::f32), k({2, 2, 24}, DType::f32), v({2, 2, 32}, DType::f32);
  const std::string text =
      "[attend] tokens from position 20 on of sequence 0 of the step are not written in layer ";
  expect_error(ErrorKind::value, text + "0", [&] { attend(harness.cache, 0, step, q); });
  harness.cache.write(0, step, k, v);
  EXPECT_NO_THROW(attend(harness.cache, 0, step, q));
  expect_error(ErrorKind::value, text + "1", [&] { attend(harness.cache, 1, step, q); });
  harness.cache.mark_written(1, step);
  EXPECT_NO_THROW(attend(harness.cache, 1, step, q));
}

// What was computed under a rule that is not causal by position is found only where the caller says
// so.
TEST(AttendRules, WhatARuleMadeIsNotFoundUnlessItIsCommitted) {
  const MaskMod prefix = MaskMod::parse("(kv_idx <= q_idx) | (kv_idx < 20)");
  Tensor ones({64}, DType::i64);
  const MaskMod table =
      MaskMod::parse("(kv_idx <= q_idx) & (ones[kv_idx] == 0)", {{"ones", Buffer(ones)}});
  struct Case {
    AttendOptions options;
    bool is_found;
    const char* what;
  };
  std::vector<Case> cases = {{{}, true, "causal"},
                             {{.window = 10}, true, "window"},
                             {{.mask_mod = mods::streaming(2, 9)}, true, "streaming"},
                             {{.mask_mod = prefix}, false, "prefix"},
                             {{.mask_mod = table}, false, "table"}};
  for (const Case& one : cases) {
    for (const std::int64_t count : {40, 3}) {
      KVCacheOptions two = sizes(4);
      two.layers = 2;
      Harness harness(two);
      const SequenceId a = harness.cache.create();
      std::vector<std::int64_t> ids(40, 7);
      for (std::int64_t at = 0; at < 40; at += count) {
        const std::int64_t n = std::min<std::int64_t>(count, 40 - at);
        const NewTokens step[] = {{a, n, std::span(ids).first(static_cast<std::size_t>(n))}};
        harness.cache.append(step);
        const Tensor q({n, 4, 24}, DType::f32), k({n, 2, 24}, DType::f32),
            v({n, 2, 32}, DType::f32);
        for (std::int64_t layer = 0; layer < 2; ++layer) {
          harness.cache.write(layer, step, k, v);
          attend(harness.cache, layer, step, q, one.options);
        }
      }
      EXPECT_EQ(harness.cache.cached_prefix(ids) == 40, one.is_found) << one.what << count;
      harness.cache.commit(a, 40);
      EXPECT_EQ(harness.cache.cached_prefix(ids), 40) << one.what << count;
    }
  }
}

TEST(AttendRules, WhatDoesNotFitIsRefused) {
  Harness harness(sizes()), other(sizes());
  const SequenceId a = harness.create(40), foreign = other.create(40);
  const Tensor q({2, 4, 24}, DType::f32);
  const NewTokens step[] = {{a, 2}};
  const auto refused = [&](const SequenceOptions& one, const std::string& text) {
    AttendOptions options;
    options.sequence_options = {one};
    expect_error(ErrorKind::value, "[attend] " + text,
                 [&] { attend(harness.cache, 0, step, q, options); });
  };
  refused({.sequence = foreign, .window = 3},
          "sequence_options has a handle that belongs to no sequence of this cache");
  refused({.sequence = a, .window = -1}, "window must not be negative; got -1");
  refused({.sequence = a, .q_begin = -1}, "q_begin must not be negative; got -1");
  refused({.sequence = a, .b = -1}, "b must not be negative; got -1");
  refused({.sequence = a, .q_begin = 1, .parents = {-1, 0}},
          "give q_begin or parents, not both: a tree is the last tokens");
  refused({.sequence = a, .parents = {-1}},
          "parents of sequence 0 of the step must be at least its 2 queries and at most its 40 "
          "tokens; got 1");
  refused({.sequence = a, .parents = {-1, 1}},
          "the parent of token 1 in the tree of sequence 0 of the step must be -1 or come before "
          "it; got 1");
  AttendOptions twice;
  twice.sequence_options = {{.sequence = a}, {.sequence = a}};
  expect_error(ErrorKind::value, "[attend] sequence_options must not name a sequence twice",
               [&] { attend(harness.cache, 0, step, q, twice); });
  const NewTokens wrong[] = {{foreign, 2}};
  expect_error(ErrorKind::value, "[attend] the handle belongs to no sequence of this cache",
               [&] { attend(harness.cache, 0, wrong, q); });
}

}  // namespace
}  // namespace quire

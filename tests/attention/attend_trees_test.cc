// Mods of a step in which some sequences have trees: they count along paths there, and positions
// elsewhere. Every token has the bits of flex_attention over its sequence alone, under tables of
// depths and of what it should see.
#include <gtest/gtest.h>

#include <algorithm>
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
using Numbers = std::vector<std::int64_t>;

// One sequence of a step, and its tree if it has one.
struct Part {
  SequenceId sequence;
  std::int64_t count = 1;
  Numbers parents = {};
  std::int64_t b = -1;  // not given
};

// What is asked of a step, once as mods and once in words.
struct Asked {
  AttendOptions options;
  std::string score_mod;  // with d(...) around positions
  std::function<bool(std::int64_t b, std::int64_t q_depth, std::int64_t kv_depth)> shows;
};

struct Tree {
  Numbers depths;          // of all tokens of the sequence
  std::int64_t begin = 0;  // of the tree
  const Numbers* parents = nullptr;

  Tree(const Part& part, std::int64_t length)
      : begin(length - std::ssize(part.parents)), parents(&part.parents) {
    for (std::int64_t i = 0; i < begin; ++i) depths.push_back(i);
    for (const std::int64_t parent : part.parents)
      depths.push_back(parent < 0 ? begin : depths[static_cast<std::size_t>(begin + parent)] + 1);
  }
  bool on_path(std::int64_t q, std::int64_t key) const {
    if (parents->empty() || key < begin) return key <= q;
    for (std::int64_t at = q - begin; at >= 0; at = (*parents)[static_cast<std::size_t>(at)])
      if (at == key - begin) return true;
    return false;
  }
};

std::string with_tables(std::string text) {
  for (const char* name : {"q_idx", "kv_idx"}) {
    const std::string from = std::string("d(") + name + ")";
    for (std::size_t at; (at = text.find(from)) != std::string::npos;)
      text.replace(at, from.size(), std::string("depths[") + name + "]");
  }
  for (std::size_t at; (at = text.find("d(b)")) != std::string::npos;)
    text.replace(at, 4, "row[0]");
  return text;
}

void expect_depths(Harness& harness, const std::vector<Part>& parts, Asked asked,
                   const NamedBuffers& buffers, const std::string& what) {
  const KVCache& cache = harness.cache;
  std::vector<NewTokens> step;
  std::int64_t tokens = 0, first = 0;
  for (const Part& part : parts) {
    step.push_back({part.sequence, part.count});
    tokens += part.count;
    SequenceOptions own{.sequence = part.sequence, .parents = part.parents};
    if (part.b >= 0) own.b = part.b;
    asked.options.sequence_options.push_back(own);
  }
  const Tensor q = random_normal({tokens, 4, cache.options().head_dim}, DType::f32, harness.random);
  const Tensor out = attend(cache, 0, step, q, asked.options);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int64_t count = parts[i].count, length = cache.length(parts[i].sequence);
    const std::int64_t b = parts[i].b >= 0 ? parts[i].b : static_cast<std::int64_t>(i);
    const Tree tree(parts[i], length);
    Tensor seen({length, length}, DType::boolean);
    for (std::int64_t at = length - count; at < length; ++at)
      for (std::int64_t key = 0; key < length; ++key)
        seen.at<bool>({at, key}) =
            tree.on_path(at, key) && asked.shows(b, tree.depths[static_cast<std::size_t>(at)],
                                                 tree.depths[static_cast<std::size_t>(key)]);
    NamedBuffers all = buffers;
    all.emplace_back("depths", Buffer(Tensor::from(tree.depths)));
    all.emplace_back("row", Buffer(Tensor::from<std::int64_t>({b}, {1})));
    AttentionOptions alone{
        .mask_mod = MaskMod::parse("seen[q_idx, kv_idx]", {{"seen", Buffer(seen)}}),
        .enable_gqa = true,
        .q_begin = {length - count}};
    if (!asked.score_mod.empty())
      alone.score_mod = ScoreMod::parse(with_tables(asked.score_mod), all);
    const auto rows = [&](const ConstTensorView& view) {
      return view.slice(0, first, first + count).transpose(0, 1).unsqueeze(0);
    };
    const Tensor expected =
        flex_attention(rows(q), harness.dense(cache.k_pages(0), parts[i].sequence),
                       harness.dense(cache.v_pages(0), parts[i].sequence), alone);
    EXPECT_TRUE(same_bits(rows(out), expected)) << what << ", sequence " << i;
    first += count;
  }
}

// The text of a mod for the step: the same without the tables.
std::string plain(std::string text) {
  for (std::size_t at; (at = text.find("d(")) != std::string::npos;) {
    text.erase(text.find(')', at), 1);
    text.erase(at, 2);
  }
  return text;
}

Numbers random_tree(std::int64_t count, std::mt19937_64& random) {
  Numbers parents(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    parents[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(random() % (i + 1)) - 1;
  return parents;
}

TEST(AttendTrees, ModsCountAlongPaths) {
  Harness harness({.kv_heads = 2, .head_dim = 24, .page_size = 7, .n_pages = 400}, 11);
  const SequenceId a = harness.create(207), b = harness.create(400), c = harness.create(90);
  const Buffer slopes(Tensor::from<float>({0.5f, 0.25f, 0.125f, 1.0f}, {4}));
  Tensor bias({9, 500}, DType::f32);
  for (std::int64_t i = 0; i < bias.numel(); ++i)
    bias.data_as<float>()[i] = static_cast<float>(i % 37) * 0.1f;
  const NamedBuffers buffers{{"slopes", slopes}, {"bias", Buffer(bias)}};
  const std::string mods[] = {"", "score + slopes[h] * (d(kv_idx) - d(q_idx))",
                              "score + bias[d(b), d(kv_idx)] - 0.01 * d(q_idx)"};
  const auto all = [](std::int64_t, std::int64_t, std::int64_t) { return true; };
  const auto near = [](std::int64_t, std::int64_t q, std::int64_t kv) { return q - kv < 3; };
  const auto third = [](std::int64_t row, std::int64_t, std::int64_t kv) {
    return kv % 3 != row % 3;
  };
  for (const std::int64_t large : {std::int64_t{7}, std::int64_t{60}}) {
    for (const std::string& mod : mods) {
      const std::vector<Part> parts = {{b, 1, {}, 3},
                                       {a, 7, random_tree(7, harness.random), 3},
                                       {c, large, random_tree(large + 2, harness.random), 8}};
      std::vector<Part> plain_b = parts;
      for (Part& part : plain_b) part.b = -1;
      AttendOptions options;
      if (!mod.empty()) options.score_mod = ScoreMod::parse(plain(mod), buffers);
      expect_depths(harness, parts, {options, mod, all}, buffers, "all: " + mod);
      expect_depths(harness, plain_b, {options, mod, all}, buffers, "without b: " + mod);
      options.mask_mod = mods::sliding_window(3);
      expect_depths(harness, parts, {options, mod, near}, buffers, "rule: " + mod);
      options.mask_mod = MaskMod::parse("(kv_idx % 3 != b % 3) & (kv_idx <= q_idx)");
      expect_depths(harness, parts, {options, mod, third}, buffers, "by b: " + mod);
      options.mask_mod.reset();
      options.window = 3;
      expect_depths(harness, parts, {options, mod, near}, buffers, "window: " + mod);
    }
  }
}

// Once its path is kept, a token has the position that it was computed with.
TEST(AttendTrees, AKeptPathIsWhatItsTokensWere) {
  Harness harness({.kv_heads = 2, .head_dim = 24, .page_size = 5, .n_pages = 100}, 3);
  const SequenceId a = harness.create(57);
  const Numbers parents = {-1, -1, 0, 1, 1, 4, 3};
  const Tensor q = random_normal({7, 4, 24}, DType::f32, harness.random);
  AttendOptions options{.score_mod = mods::alibi(4), .mask_mod = mods::streaming(2, 9)};
  AttendOptions with_tree = options;
  with_tree.sequence_options = {{.sequence = a, .parents = parents}};
  const NewTokens step[] = {{a, 7}};
  const Tensor guessed = attend(harness.cache, 0, step, q, with_tree);
  const std::int64_t path[] = {51, 54, 55};
  harness.cache.keep(a, 50, path);
  const NewTokens kept[] = {{a, 3}};
  Tensor rows({3, 4, 24}, DType::f32);
  for (std::int64_t i = 0; i < 3; ++i)
    std::ranges::copy(std::span(q.data_as<float>() + (path[i] - 50) * 96, 96),
                      rows.data_as<float>() + i * 96);
  const Tensor again = attend(harness.cache, 0, kept, rows, options);
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < 96; ++j)  // other places in memory, so another order of sums
      EXPECT_NEAR(again.data_as<float>()[i * 96 + j],
                  guessed.data_as<float>()[(path[i] - 50) * 96 + j], 1e-5);
}

TEST(AttendTrees, WhatCannotCountAlongPathsIsRefused) {
  Harness harness({.kv_heads = 2, .head_dim = 24, .n_pages = 10});
  const SequenceId a = harness.create(20);
  const Tensor q({3, 4, 24}, DType::f32);
  const NewTokens step[] = {{a, 3}};
  AttendOptions options{.rope = Rope{.theta = 10000}};
  options.sequence_options = {{.sequence = a, .parents = {-1, 0, 0}}};
  expect_error(
      ErrorKind::value,
      "[attend] rope turns rows by where they lie, and tokens of a tree lie elsewhere than "
      "on their path; write keys that are rotated, without rope",
      [&] { attend(harness.cache, 0, step, q, options); });
  options.rope.reset();
  options.score_mod = mods::alibi(4);
  options.dropout_p = 0.5;
  options.sequence_options[0].b = 5;
  expect_error(
      ErrorKind::value,
      "[attend] dropout_p with b of sequence_options and mods that count along the paths of "
      "a tree is not supported: b would be the number in the step",
      [&] { attend(harness.cache, 0, step, q, options); });
}

}  // namespace
}  // namespace quire

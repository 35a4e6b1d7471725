// The decode kernel gives the bits of the rules (tests/support/row_rules.h), whatever the shape,
// type, place in memory, split, mask or mod; and reads nothing it may not. ctest runs this once per
// ISA.
#include "kernels/decode/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "quire/isa.h"
#include "tests/support/forward_case.h"

namespace quire {
namespace {

using kernels::DecodeItem;
using kernels::KeyRun;
using kernels::TileFault;
using testing::ForwardCase;
using testing::ForwardOptions;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Scratch {
  explicit Scratch(std::size_t bytes)
      : data(std::aligned_alloc(64, (bytes + 63) / 64 * 64 + 64), &std::free) {
    std::memset(data.get(), 0xff, bytes);
  }
  std::unique_ptr<void, decltype(&std::free)> data;
};

DecodeItem whole_item(const ForwardCase& problem) {
  DecodeItem item;
  item.keys = problem.sequence();
  item.rows = problem.rows().data();
  item.row_count = static_cast<int>(problem.rows().size());
  item.split_end = (item.keys.length + kernels::kSplitKeys - 1) / kernels::kSplitKeys;
  return item;
}

TileFault run(ForwardCase& problem) {
  problem.clear_outputs();
  const DecodeItem item = whole_item(problem);
  Scratch scratch(kernels::decode_scratch_bytes(problem.call(), item.row_count));
  TileFault fault;
  kernels::decode(problem.call(), item, scratch.data.get(), fault);
  return fault;
}

// Every split as an item of its own, in any order, then merged.
TileFault run_in_parts(ForwardCase& problem, int splits_per_item) {
  problem.clear_outputs();
  DecodeItem item = whole_item(problem);
  const std::int64_t splits = item.split_end, rows = item.row_count;
  const std::int64_t size = kernels::decode_state_size(problem.call().value_dims);
  const std::size_t element = problem.f64() ? 8 : 4;
  std::vector<char> states(static_cast<std::size_t>(splits * rows * size) * element);
  Scratch scratch(kernels::decode_scratch_bytes(problem.call(), item.row_count));
  TileFault fault;
  for (std::int64_t end = splits; end > 0; end -= splits_per_item) {
    item.split_begin = std::max<std::int64_t>(end - splits_per_item, 0);
    item.split_end = end;
    item.states =
        states.data() + static_cast<std::size_t>(item.split_begin * rows * size) * element;
    kernels::decode(problem.call(), item, scratch.data.get(), fault);
  }
  // The last row by itself.
  const std::size_t bytes = static_cast<std::size_t>(size) * element;
  kernels::SplitStates of{states.data(), splits, rows * size};
  --item.row_count;
  kernels::merge_splits(problem.call(), item, of, scratch.data.get(), fault);
  item.rows += rows - 1;
  item.row_count = 1;
  of.data = states.data() + static_cast<std::size_t>(rows - 1) * bytes;
  kernels::merge_splits(problem.call(), item, of, scratch.data.get(), fault);
  return fault;
}

bool has_pairs() { return kernels::current_table().pairs != nullptr; }

struct Types {
  DType q, k, v, out;
  bool pairs = false;
};

std::vector<Types> all_types() {
  const DType f32 = DType::f32, f64 = DType::f64, bf16 = DType::bf16, f16 = DType::f16;
  std::vector<Types> types = {
      {f32, f32, f32, f32},  {bf16, bf16, bf16, bf16}, {f16, f16, f16, f16},  {f64, f64, f64, f64},
      {f32, bf16, f16, f32}, {bf16, f32, bf16, f16},   {f64, f32, bf16, f64}, {f16, f64, f64, f32}};
  if (has_pairs()) types.push_back({bf16, bf16, bf16, bf16, true});
  return types;
}

void set_types(ForwardOptions& options, const Types& types) {
  options.q = types.q;
  options.k = types.k;
  options.v = types.v;
  options.out = types.out;
  options.pairs = types.pairs;
}

// Of an item with keys of these types.
int most_rows(const Types& types) {
  ForwardOptions options;
  set_types(options, types);
  return kernels::most_decode_rows(ForwardCase(options, current_isa()).call());
}

std::string describe(const ForwardOptions& o) {
  return "heads " + std::to_string(o.heads) + " queries " + std::to_string(o.queries) + " keys " +
         std::to_string(o.keys) + " dims " + std::to_string(o.dims) + "/" +
         std::to_string(o.value_dims) + " types " + dtype_name(o.q) + " " + dtype_name(o.k) + " " +
         dtype_name(o.v) + (o.pairs ? " pairs" : "") + " span " + std::to_string(o.span) +
         " seed " + std::to_string(o.seed);
}

template <class E>
E pick(std::mt19937& random, std::initializer_list<E> from) {
  return from.begin()[random() % from.size()];
}

ForwardOptions random_options(std::mt19937& random, const Types& types) {
  ForwardOptions options;
  set_types(options, types);
  options.heads = 1 + static_cast<int>(random() % 6);
  options.queries = pick(random, {1, 1, 2});
  options.keys = pick<std::int64_t>(random, {1, 2, 15, 16, 17, 31, 64, 65, 100, 255, 256, 257, 500,
                                             1023, 1024, 1025, 1300, 2049});
  if (random() % 4 == 0) options.keys = 1 + static_cast<std::int64_t>(random() % 3000);
  const auto dims = [&] {
    return random() % 2 == 0 ? pick(random, {1, 8, 16, 32, 33, 40, 64, 72, 80, 96, 128, 130, 256})
                             : 1 + static_cast<int>(random() % 130);
  };
  options.dims = dims();
  options.value_dims = random() % 2 == 0 ? options.dims : dims();
  options.span = pick<std::int64_t>(random, {0, 0, 1, 7, 16, 100, 128});
  options.row_gap = pick(random, {0, 0, 5, 16});
  options.scale = pick(random, {0.25, 0.1, 1.0, 1 / std::sqrt(double(options.dims))});
  options.seed = static_cast<unsigned>(random());
  return options;
}

// Ascending runs over the keys, full and partial, with gaps.
std::vector<KeyRun> random_runs(std::mt19937& random, std::int64_t keys, bool partial) {
  std::vector<KeyRun> runs;
  const std::int64_t most = pick<std::int64_t>(random, {3, 40, 700});
  for (std::int64_t at = 0; at < keys;) {
    const auto begin = at + static_cast<std::int64_t>(random() % static_cast<unsigned>(most));
    const auto end = std::min(
        keys, begin + 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(most)));
    if (begin >= keys) break;
    if (random() % 8 != 0) runs.push_back({begin, end, !partial || random() % 2 == 0});
    at = end;
  }
  return runs;
}

void add_runs(std::mt19937& random, ForwardOptions& options) {
  const bool partial = random() % 2 == 0;
  if (partial) options.mask = MaskMod::parse("(kv_idx * 7 + q_idx * 3 + h) % 5 != 0");
  for (int i = 0; i < options.heads * options.queries; ++i)
    options.runs.push_back(random_runs(random, options.keys, partial));
}

void expect_bits(ForwardCase& problem, const std::string& what) {
  run(problem);
  EXPECT_EQ(problem.first_difference(), "") << what;
}

TEST(Decode, EveryTypeHasTheBitsOfTheRules) {
  std::mt19937 random(1);
  for (const Types& types : all_types()) {
    for (int i = 0; i < 60; ++i) {
      const ForwardOptions options = random_options(random, types);
      ForwardCase problem(options, current_isa());
      expect_bits(problem, describe(options));
    }
  }
}

TEST(Decode, EveryDimensionAndEveryNumberOfRows) {
  for (const Types& types : all_types()) {
    const int most = most_rows(types);
    for (int dims = 1; dims <= 130; ++dims) {
      ForwardOptions options;
      set_types(options, types);
      options.heads = 1 + dims % most;
      options.keys = 19 + dims;
      options.dims = dims;
      options.value_dims = 131 - dims;
      ForwardCase problem(options, current_isa());
      expect_bits(problem, describe(options));
    }
  }
}

TEST(Decode, EveryLengthOverTheFirstTiles) {
  for (std::int64_t keys = 1; keys <= 530; ++keys) {
    ForwardOptions options;
    options.heads = 1 + static_cast<int>(keys % 3);
    options.keys = keys;
    if (has_pairs() && keys % 2 == 0) set_types(options, all_types().back());
    ForwardCase problem(options, current_isa());
    expect_bits(problem, describe(options));
  }
}

TEST(Decode, StridedColumns) {
  std::mt19937 random(2);
  for (const Types& types : all_types()) {
    ForwardOptions options = random_options(random, types);
    options.k_column = 3;
    options.v_column = 2;
    options.q_column = 2;
    options.out_column = 4;
    ForwardCase problem(options, current_isa());
    expect_bits(problem, describe(options));
  }
}

TEST(Decode, RunsAndMasks) {
  std::mt19937 random(3);
  for (const Types& types : all_types()) {
    for (int i = 0; i < 40; ++i) {
      ForwardOptions options = random_options(random, types);
      add_runs(random, options);
      ForwardCase problem(options, current_isa());
      expect_bits(problem, describe(options));
    }
  }
}

// A key that no row sees is not read; one that another row sees does not matter.
TEST(Decode, NanInHiddenKeysNeverComesOut) {
  std::mt19937 random(4);
  for (const Types& types : all_types()) {
    for (int i = 0; i < 30; ++i) {
      ForwardOptions options = random_options(random, types);
      add_runs(random, options);
      ForwardCase problem(options, current_isa());
      for (std::int64_t key = 0; key < options.keys; ++key) {
        bool hidden_from_all = true, hidden_from_one = false;
        for (std::size_t row = 0; row < problem.rows().size(); ++row) {
          hidden_from_all &= !problem.visible(row, key);
          hidden_from_one |= !problem.visible(row, key);
        }
        if (hidden_from_all) {
          problem.plant_key(key, kNan);
          problem.plant_value(key, key % 2 == 0 ? kNan : kInf);
        } else if (hidden_from_one && key % 16 == 3) {
          problem.plant_value(key, kNan);
        }
      }
      expect_bits(problem, describe(options));
    }
  }
}

TEST(Decode, VisibleNanAndInfinity) {
  for (const Types& types : all_types()) {
    for (const double bad : {kNan, kInf, -kInf}) {
      for (const std::int64_t key : {0, 300, 1100}) {
        ForwardOptions options;
        set_types(options, types);
        options.heads = 3;
        options.keys = 1200;
        options.seed = static_cast<unsigned>(key) + 5;
        ForwardCase keys(options, current_isa());
        keys.plant_key(key, bad);
        expect_bits(keys, "key " + describe(options));
        ForwardCase values(options, current_isa());
        values.plant_value(key, bad);
        expect_bits(values, "value " + describe(options));
      }
    }
  }
}

// A split in which every visible score is NaN must not be taken for an empty one.
TEST(Decode, SplitOfNothingButNan) {
  ForwardOptions options;
  options.keys = 1500;
  options.runs = {{{0, 3, true}, {1024, 1500, true}}};
  ForwardCase problem(options, current_isa());
  for (std::int64_t key = 0; key < 3; ++key) problem.plant_key(key, kNan);
  expect_bits(problem, describe(options));
  run_in_parts(problem, 1);
  EXPECT_EQ(problem.first_difference(), "");
}

TEST(Decode, LargeScores) {
  for (const double spread : {1e3, 1e6, 1e8, 1e10, 1e30}) {
    for (unsigned seed = 1; seed < 6; ++seed) {
      ForwardOptions options;
      options.heads = 4;
      options.keys = 2100;
      options.spread = spread;
      options.seed = seed;
      ForwardCase problem(options, current_isa());
      expect_bits(problem, describe(options));
    }
  }
}

TEST(Decode, ScaleOfZeroOrLess) {
  for (const double scale : {0.0, -0.5, -3.0}) {
    ForwardOptions options;
    options.heads = 2;
    options.keys = 1111;
    options.scale = scale;
    options.runs = {{{5, 700, true}}, {{0, 3, true}, {900, 1111, true}}};
    ForwardCase problem(options, current_isa());
    expect_bits(problem, describe(options));
  }
}

ScoreMod some_mod(unsigned which) {
  std::vector<float> of_heads{0.5f, 0.25f, 0.125f, 1, 2, 0.75f, 3, 4, 5, 6, 7, 8};
  for (int h = 12; h < kernels::kManyDecodeRows; ++h)
    of_heads.push_back(0.3f * static_cast<float>(h % 5));
  const Buffer slopes(of_heads, {.name = "slopes"});
  std::vector<float> numbers;
  for (int i = 0; i < 37; ++i) numbers.push_back(static_cast<float>(i % 11) * 0.3f - 1);
  const Buffer table(numbers, {.name = "table"});
  switch (which % 4) {
    case 0:
      return ScoreMod::parse("5 * tanh(score / 5)");
    case 1:
      return ScoreMod::parse("score + slopes[h] * (kv_idx - q_idx)", {{"slopes", slopes}});
    case 2:
      return ScoreMod::parse("score + table[(kv_idx * 3 + q_idx) % 37]", {{"table", table}});
    default:
      return ScoreMod::parse("where(kv_idx % 3 == h % 3, -inf, exp(score * 0.1) + slopes[h])",
                             {{"slopes", slopes}});
  }
}

TEST(Decode, ScoreMods) {
  std::mt19937 random(5);
  for (const Types& types : all_types()) {
    for (unsigned i = 0; i < 24; ++i) {
      ForwardOptions options = random_options(random, types);
      options.score = some_mod(i);
      options.q_begin = 40;
      if (i % 3 == 0) add_runs(random, options);
      ForwardCase problem(options, current_isa());
      expect_bits(problem, describe(options) + " mod " + std::to_string(i % 4));
    }
  }
}

TEST(Decode, InPartsAndMerged) {
  std::mt19937 random(6);
  for (const Types& types : all_types()) {
    for (int i = 0; i < 12; ++i) {
      ForwardOptions options = random_options(random, types);
      options.keys = pick<std::int64_t>(random, {1, 1024, 1025, 2048, 2500, 3000});
      if (i % 3 == 1) add_runs(random, options);
      if (i % 3 == 2) options.score = some_mod(static_cast<unsigned>(i));
      ForwardCase problem(options, current_isa());
      run_in_parts(problem, 1 + i % 2);
      EXPECT_EQ(problem.first_difference(), "") << describe(options);
    }
  }
}

TEST(Decode, EveryNumberOfRowsWithMasksModsAndParts) {
  std::mt19937 random(7);
  for (const Types& types : all_types()) {
    const int most = most_rows(types);
    for (int rows = 1; rows <= most; ++rows) {
      for (int i = 0; i < 4; ++i) {
        ForwardOptions options = random_options(random, types);
        options.queries = rows % 2 == 0 && i < 2 ? 2 : 1;
        options.heads = rows / options.queries;
        options.keys = i == 3 ? 1050 : 1 + static_cast<std::int64_t>(random() % 150);
        if (i == 1) add_runs(random, options);
        if (i == 2) options.score = some_mod(static_cast<unsigned>(rows));
        ForwardCase problem(options, current_isa());
        if (i != 3) {
          expect_bits(problem, describe(options));
          continue;
        }
        run_in_parts(problem, 1);
        EXPECT_EQ(problem.first_difference(), "") << describe(options);
      }
    }
  }
}

// The primitives of many rows need vectors; elements of f64 are never many.
TEST(Decode, TakesManyRowsWhereTheIsaHasVectors) {
  ForwardOptions options;
  const bool vectors = kernels::current_table().lanes > 1;
  EXPECT_EQ(kernels::most_decode_rows(ForwardCase(options, current_isa()).call()),
            vectors ? kernels::kManyDecodeRows : kernels::kDecodeRows);
  options.q = options.k = options.v = options.out = DType::f64;
  EXPECT_EQ(kernels::most_decode_rows(ForwardCase(options, current_isa()).call()),
            kernels::kDecodeRows);
}

TEST(Decode, NothingVisible) {
  ForwardOptions options;
  options.heads = 2;
  options.keys = 700;
  options.runs = {{}, {{600, 601, true}}};
  ForwardCase problem(options, current_isa());
  expect_bits(problem, "one row of two sees nothing");
  options.keys = 0;
  options.runs = {};
  ForwardCase empty(options, current_isa());
  expect_bits(empty, "no keys");
}

// The first visible element that reads outside; hidden ones do not count.
TEST(Decode, FaultsOfVisibleElements) {
  const Buffer table(std::vector<float>(100, 1.f), {.name = "table"});
  ForwardOptions options;
  options.heads = 2;
  options.keys = 400;
  options.score = ScoreMod::parse("score + table[kv_idx]", {{"table", table}});
  options.runs = {{{0, 90, true}}, {{0, 50, true}, {300, 310, true}}};
  // The rules evaluate whole rows and would throw, so only the fault is looked at.
  ForwardCase problem(options, current_isa());
  const TileFault fault = run(problem);
  ASSERT_TRUE(fault.found);
  EXPECT_EQ(fault.at[1], 1);
  EXPECT_EQ(fault.at[3], 300);
  EXPECT_EQ(fault.value, 300);
  options.runs[1].pop_back();
  ForwardCase fine(options, current_isa());
  EXPECT_FALSE(run(fine).found);
}

}  // namespace
}  // namespace quire

// Dropout in the decode kernel and the row kernel: the bits of the rules with the factors of the
// reference, for every type, tail, mask, split and probability; dropped values are not read by the
// row kernel. The prefill kernel: tests/attention/dropout_test.cc. ctest runs this once per ISA.
#include "kernels/dropout.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/decode/decode.h"
#include "kernels/decode/row_kernel.h"
#include "kernels/dispatch.h"
#include "reference/dropout.h"
#include "tests/support/forward_case.h"

namespace quire {
namespace {

using testing::ForwardCase;
using testing::ForwardOptions;

std::unique_ptr<void, decltype(&std::free)> scratch_of(std::size_t bytes) {
  return {std::aligned_alloc(64, (bytes + 127) / 64 * 64), &std::free};
}

void decode(ForwardCase& problem) {
  problem.clear_outputs();
  const kernels::DecodeItem item{
      .keys = problem.sequence(),
      .rows = problem.rows().data(),
      .row_count = static_cast<int>(problem.rows().size()),
      .split_begin = 0,
      .split_end = (problem.sequence().length + kernels::kSplitKeys - 1) / kernels::kSplitKeys};
  const auto scratch = scratch_of(kernels::decode_scratch_bytes(problem.call(), item.row_count));
  kernels::TileFault fault;
  kernels::decode(problem.call(), item, scratch.get(), fault);
}

void rows_alone(ForwardCase& problem) {
  problem.clear_outputs();
  const auto scratch = scratch_of(kernels::row_scratch_bytes(problem.call()));
  kernels::TileFault fault;
  for (const kernels::QueryRow& row : problem.rows())
    kernels::compute_row(problem.call(), problem.sequence(), row, scratch.get(), fault);
}

std::vector<ForwardOptions> every_type() {
  std::vector<ForwardOptions> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    ForwardOptions options;
    options.q = options.k = options.v = options.out = dtype;
    options.heads = 3;
    options.dims = 9;
    options.value_dims = 20;
    options.q_begin = 77;
    all.push_back(options);
  }
  if (kernels::current_table().pairs != nullptr) {
    all.push_back(all[1]);
    all.back().pairs = true;
  }
  return all;
}

TEST(Dropout, BitsOfTheRules) {
  for (ForwardOptions options : every_type()) {
    for (const double p : {0.1, 0.5, 0.999, 1.0}) {
      for (const std::int64_t keys : {1, 15, 17, 63, 65, 255, 300, 1400}) {
        options.keys = keys;
        options.dropout = {p, 0x123456789abcdef0};
        ForwardCase problem(options, current_isa());
        decode(problem);
        EXPECT_EQ(problem.first_difference(), "") << p << " " << keys;
        rows_alone(problem);
        EXPECT_EQ(problem.first_difference(), "") << p << " " << keys;
      }
    }
  }
}

TEST(Dropout, HolesAndMods) {
  for (ForwardOptions options : every_type()) {
    options.keys = 1300;
    options.dropout = {0.3, 5};
    options.score = ScoreMod::parse("score + h - q_idx * 0.01");
    options.runs.assign(3, {{3, 20, true}, {70, 71, true}, {250, 700, true}, {1025, 1300, true}});
    options.runs[1] = {};
    ForwardCase problem(options, current_isa());
    decode(problem);
    EXPECT_EQ(problem.first_difference(), "");
    rows_alone(problem);
    EXPECT_EQ(problem.first_difference(), "");
  }
}

// A NaN where a dropped value is sends the row to the row kernel, which never reads it.
TEST(Dropout, DroppedValuesAreNotSeen) {
  for (ForwardOptions options : every_type()) {
    options.heads = 1;
    options.keys = 400;
    options.dropout = {0.4, 9};
    ForwardCase problem(options, current_isa());
    const std::vector<double> factors =
        reference::dropout_factors({0.4, 9}, {0, 0, options.q_begin}, options.keys);
    int dropped = 0;
    for (std::int64_t key = 0; key < options.keys; ++key) {
      if (factors[static_cast<std::size_t>(key)] != 0) continue;
      problem.plant_value(key, std::numeric_limits<double>::quiet_NaN());
      ++dropped;
    }
    EXPECT_GT(dropped, 100);
    decode(problem);
    EXPECT_EQ(problem.first_difference(), "");
  }
}

TEST(Dropout, Rule) {
  const kernels::DropoutRule half = kernels::dropout_rule({0.5, 0x0000000200000001});
  EXPECT_EQ(half.last_dropped, 0x7fffffffu);
  EXPECT_EQ(half.scale, 2);
  EXPECT_EQ(half.key[0], 1u);
  EXPECT_EQ(half.key[1], 2u);
  EXPECT_EQ(kernels::dropout_rule({1, 0}).last_dropped, 0xffffffffu);
  EXPECT_EQ(kernels::dropout_rule({1, 0}).scale, 0);
  EXPECT_EQ(kernels::dropout_rule({0x1p-40, 0}).last_dropped, 0u);  // word 0 < p * 2^32
  const kernels::DropoutPlace place = kernels::dropout_place(1, 2, 3, 512);
  EXPECT_EQ(place.counter, 128u);
}

}  // namespace
}  // namespace quire

// The row kernel alone: the bits of the rules for every type, so that a row may be handed to it or
// not; values with weight 0 are not read. ctest runs this once per ISA.
#include "kernels/decode/row_kernel.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "quire/isa.h"
#include "tests/support/forward_case.h"

namespace quire {
namespace {

using kernels::TileFault;
using testing::ForwardCase;
using testing::ForwardOptions;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TileFault run(ForwardCase& problem) {
  problem.clear_outputs();
  const std::size_t bytes = kernels::row_scratch_bytes(problem.call());
  const std::unique_ptr<void, decltype(&std::free)> scratch(
      std::aligned_alloc(64, (bytes + 127) / 64 * 64), &std::free);
  std::memset(scratch.get(), 0xff, bytes);
  TileFault fault;
  for (const kernels::QueryRow& row : problem.rows())
    kernels::compute_row(problem.call(), problem.sequence(), row, scratch.get(), fault);
  return fault;
}

std::vector<ForwardOptions> every_type() {
  std::vector<ForwardOptions> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    ForwardOptions options;
    options.q = options.k = options.v = options.out = dtype;
    options.heads = 3;
    options.keys = 1400;
    options.dims = 33;
    options.value_dims = 20;
    options.span = 50;
    all.push_back(options);
  }
  all.push_back(all[0]);
  all.back().k = DType::bf16;
  all.back().v = DType::f16;
  if (kernels::current_table().pairs != nullptr) {
    all.push_back(all[1]);
    all.back().pairs = true;
  }
  return all;
}

TEST(RowKernel, HasTheBitsOfTheRules) {
  for (ForwardOptions options : every_type()) {
    ForwardCase plain(options, current_isa());
    run(plain);
    EXPECT_EQ(plain.first_difference(), "") << dtype_name(options.k);
    options.score = ScoreMod::parse("3 * tanh(score / 3) - 0.01 * abs(kv_idx - q_idx)");
    ForwardCase modified(options, current_isa());
    run(modified);
    EXPECT_EQ(modified.first_difference(), "") << dtype_name(options.k);
  }
}

TEST(RowKernel, SkipsValuesWithoutWeight) {
  for (ForwardOptions options : every_type()) {
    options.heads = 1;
    options.runs = {{{0, 1000, false}, {1200, 1400, true}}};
    options.mask = MaskMod::parse("kv_idx % 3 != 1");
    options.score = ScoreMod::parse("where(kv_idx % 5 == 2, -2000.0, score)");
    ForwardCase problem(options, current_isa());
    for (std::int64_t key = 0; key < options.keys; ++key)
      if (!problem.visible(0, key) || key % 5 == 2) problem.plant_value(key, kNan);
    run(problem);
    EXPECT_EQ(problem.first_difference(), "") << dtype_name(options.k);
    EXPECT_EQ(problem.expected<float>(0).out[0], problem.expected<float>(0).out[0]);
  }
}

// Two keys with scores a step of f32 apart, 2^30 large, in different splits.
TEST(RowKernel, HugeScores) {
  ForwardOptions options;
  options.keys = 1100;
  options.dims = 1;
  options.scale = 0.25;
  options.spread = 1e9;
  ForwardCase problem(options, current_isa());
  run(problem);
  EXPECT_EQ(problem.first_difference(), "");
}

TEST(RowKernel, RecordsFaults) {
  const Buffer table(std::vector<float>(100, 1.f), {.name = "table"});
  ForwardOptions options;
  options.keys = 400;
  options.score = ScoreMod::parse("score + table[kv_idx]", {{"table", table}});
  options.runs = {{{0, 50, true}, {200, 210, true}}};
  ForwardCase problem(options, current_isa());
  const TileFault fault = run(problem);
  ASSERT_TRUE(fault.found);
  EXPECT_EQ(fault.at[3], 200);
}

}  // namespace
}  // namespace quire

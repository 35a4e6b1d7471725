// Keys attended to in several runs: kept states, resumed and folded, give the bits of one run.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "quire/flex_attention.h"
#include "quire/mods.h"
#include "tests/support/attention_case.h"
#include "tests/support/expect_error.h"
#include "tests/support/random_tensor.h"
#include "tests/support/same_bits.h"

namespace quire::testing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Result {
  Tensor out, lse, max_scores;
};

Result empty_result(const AttentionProblem& problem) {
  const Shape rows = problem.stats_shape();
  return {Tensor(problem.out_shape(), problem.q_dtype), Tensor(rows, problem.compute_type()),
          Tensor(rows, problem.compute_type())};
}

AttentionOutputs outputs_of(Result& to) {
  return {.out = to.out.view(), .lse = to.lse.view(), .max_scores = to.max_scores.view()};
}

void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.out, b.out)) << what;
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << what;
  EXPECT_TRUE(same_bits(a.max_scores, b.max_scores)) << what;
}

// A rule for keys from `begin` on, which count from 0 in the run.
std::optional<ScoreMod> from(const std::optional<ScoreMod>& mod, std::int64_t begin) {
  if (!mod.has_value()) return mod;
  return ScoreMod([&](auto score, auto b, auto h, auto q, auto kv) {
    return FloatExpr(detail::apply(mod->formula(), {score, b, h, q, kv + begin}));
  });
}
std::optional<MaskMod> from(const std::optional<MaskMod>& mod, std::int64_t begin) {
  if (!mod.has_value()) return mod;
  return MaskMod([&](auto b, auto h, auto q, auto kv) {
    return BoolExpr(
        detail::apply(mod->formula(), {detail::mod_arguments().score, b, h, q, kv + begin}));
  });
}

AttentionOptions options_of(const AttentionCase& c, std::int64_t begin) {
  return {.score_mod = from(c.score_mod, begin),
          .mask_mod = from(c.mask_mod, begin),
          .enable_gqa = true};
}

Result at_once(const AttentionCase& c, const ConstTensorView& q, const ConstTensorView& k,
               const ConstTensorView& v) {
  AttentionProblem problem = AttentionProblem::dense(q, k, v, options_of(c, 0));
  Result result = empty_result(problem);
  run_attention(problem, q, k, v, outputs_of(result));
  return result;
}

// Runs over `cuts`, each from where the last one ended.
Result in_runs(const AttentionCase& c, const ConstTensorView& q, const ConstTensorView& k,
               const ConstTensorView& v, const std::vector<std::int64_t>& cuts) {
  AttentionProblem whole = AttentionProblem::dense(q, k, v, options_of(c, 0));
  whole.states = KeptStates::kRunning;
  Tensor states(whole.states_shape(), whole.compute_type());
  std::int64_t begin = 0;
  for (const std::int64_t end : cuts) {
    const ConstTensorView keys = k.slice(2, begin, end), values = v.slice(2, begin, end);
    AttentionProblem problem = AttentionProblem::dense(q, keys, values, options_of(c, begin));
    problem.states = KeptStates::kRunning;
    run_attention(problem, q, keys, values,
                  {.out = {}, .states = states.view(), .resumes = begin > 0});
    begin = end;
  }
  Result result = empty_result(whole);
  const ConstTensorView all[] = {states};
  finish_states(whole, all, outputs_of(result));
  return result;
}

// A state of every split, folded afterwards.
Result by_splits(const AttentionCase& c, const ConstTensorView& q, const ConstTensorView& k,
                 const ConstTensorView& v) {
  AttentionProblem problem = AttentionProblem::dense(q, k, v, options_of(c, 0));
  problem.states = KeptStates::kSplits;
  Tensor states(problem.states_shape(), problem.compute_type());
  run_attention(problem, q, k, v, {.out = {}, .states = states.view()});
  std::vector<Tensor> each;
  std::vector<ConstTensorView> views;
  for (std::int64_t i = 0; i < states.dim(3); ++i)
    each.push_back(contiguous(states.view().select(3, i)));
  for (const Tensor& one : each) views.push_back(one);
  Result result = empty_result(problem);
  finish_states(problem, views, outputs_of(result));
  return result;
}

std::vector<AttentionCase> cases() {
  const Buffer table(std::vector<float>(9000, 0.3f), {.name = "table"});
  const std::vector<std::optional<ScoreMod>> scores{
      std::nullopt, ScoreMod::parse("3 * tanh(score / 3) + table[kv_idx] * 0.01 * (kv_idx - q_idx)",
                                    {{"table", table}})};
  const std::vector<std::optional<MaskMod>> masks{
      std::nullopt, mods::sliding_window(700, 300),
      MaskMod::parse("((q_idx * 7 + kv_idx) % 5 != 0) & (kv_idx > 1500)")};
  std::vector<AttentionCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (const auto& score : scores)
      for (const auto& mask : masks)
        all.push_back({.batch = 2,
                       .q_heads = 4,
                       .kv_heads = 2,
                       .q_len = 70,
                       .kv_len = 2300,
                       .head_dim = 24,
                       .v_head_dim = 20,
                       .q_dtype = dtype,
                       .k_dtype = dtype,
                       .v_dtype = dtype,
                       .size = 2,
                       .score_mod = score,
                       .mask_mod = mask});
  return all;
}

TEST(States, RunsOverConsecutiveKeysHaveTheBitsOfOne) {
  for (const AttentionCase& c : cases()) {
    const AttentionTensors t(c, 1);
    for (const std::int64_t queries : {70, 3}) {  // prefill, decode
      const ConstTensorView q = t.q.slice(2, 0, queries);
      const std::string what = c.to_string() + " queries " + std::to_string(queries);
      const Result one = at_once(c, q, t.k, t.v);
      expect_same(one, in_runs(c, q, t.k, t.v, {2300}), what);
      expect_same(one, in_runs(c, q, t.k, t.v, {1024, 2300}), what);
      expect_same(one, in_runs(c, q, t.k, t.v, {1024, 2048, 2300}), what);
      expect_same(one, by_splits(c, q, t.k, t.v), what);
    }
  }
}

// A key with weight 0 that holds NaN spoils the fast kernels' O: such rows go through the row
// kernel, which has to go on from a state as well. A visible NaN makes its row NaN.
TEST(States, RowsThatAreNotFiniteAreTheSame) {
  AttentionCase c{.q_heads = 1, .kv_heads = 1, .q_len = 70, .kv_len = 3000};
  c.mask_mod = MaskMod::parse("kv_idx % 97 != 5");
  for (const std::int64_t bad : {5, 5 + 97 * 15, 5 + 97 * 29}) {
    AttentionTensors t(c, 2);
    t.v_memory.data_as<float>()[bad * 16 + 3] = kNaN;  // hidden, in a tile that is visible
    for (const std::int64_t queries : {70, 2}) {
      const ConstTensorView q = t.q.slice(2, 0, queries);
      const Result one = at_once(c, q, t.k, t.v);
      const std::string what = std::to_string(bad);
      expect_same(one, in_runs(c, q, t.k, t.v, {1024, 2048, 3000}), what);
      expect_same(one, by_splits(c, q, t.k, t.v), what);
    }
  }
  AttentionTensors t(c, 2);
  t.k_memory.data_as<float>()[1300 * 16] = kNaN;
  const auto is_nan = [](const Result& result) {
    for (const float x : floats(result.out))
      if (x == x) return false;
    return floats(result.lse)[0] != floats(result.lse)[0];
  };
  EXPECT_TRUE(is_nan(at_once(c, t.q, t.k, t.v)));
  EXPECT_TRUE(is_nan(in_runs(c, t.q, t.k, t.v, {1024, 2048, 3000})));
  EXPECT_TRUE(is_nan(by_splits(c, t.q, t.k, t.v)));
}

TEST(States, WhatDoesNotFitIsRefused) {
  const AttentionCase c{.q_len = 4, .kv_len = 20};
  const AttentionTensors t(c, 3);
  AttentionProblem problem = AttentionProblem::dense(t.q, t.k, t.v, {});
  Result result = empty_result(problem);
  problem.states = KeptStates::kRunning;
  Tensor states(problem.states_shape(), DType::f32);
  expect_error(ErrorKind::value,
               "[flex_attention] a run that keeps states needs a tensor of states, and no other",
               [&] { run_attention(problem, t.q, t.k, t.v, outputs_of(result)); });
  expect_error(ErrorKind::value, "[flex_attention] a run that keeps states has no other output",
               [&] {
                 run_attention(problem, t.q, t.k, t.v,
                               {.out = {}, .lse = result.lse.view(), .states = states.view()});
               });
  problem.states = KeptStates::kSplits;
  Tensor splits(problem.states_shape(), DType::f32);
  expect_error(ErrorKind::value,
               "[flex_attention] states of splits begin anew: nothing can be resumed", [&] {
                 run_attention(problem, t.q, t.k, t.v,
                               {.out = {}, .states = splits.view(), .resumes = true});
               });
}

}  // namespace
}  // namespace quire::testing

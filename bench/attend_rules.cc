// What a rule costs in a step over a KVCache: plan and run of one layer under a mask_mod, against
// the same keys by `window`, in turn in one process; then plans alone, of 256 sequences that grow
// by a token a step. Numbers are medians; the ratio is the result.
//
//   attend_rules [--repetitions N] [--threads N] [--plans TEXT]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "quire/attend.h"
#include "quire/cpu_info.h"
#include "quire/mods.h"

namespace quire::bench {
namespace {

constexpr std::int64_t kHeads = 32, kKeyHeads = 8, kDim = 128;

// A cache with sequences of random rows.
struct Filled {
  explicit Filled(const std::vector<std::int64_t>& lengths)
      : cache({.kv_heads = kKeyHeads, .head_dim = kDim, .dtype = DType::bf16, .n_pages = 9000}) {
    for (const std::int64_t length : lengths) {
      sequences.push_back(cache.create());
      const NewTokens step[] = {{sequences.back(), length}};
      cache.append(step);
      Tensor rows({length, kKeyHeads, kDim}, DType::f32);
      std::uint32_t seed = 1;
      for (std::int64_t i = 0; i < rows.numel(); ++i) {
        seed = seed * 1664525 + 1013904223;
        rows.data_as<float>()[i] = static_cast<float>(seed >> 8) * 0x1p-24f;
      }
      cache.write(0, step, rows, rows);
    }
  }

  KVCache cache;
  std::vector<SequenceId> sequences;
};

// Milliseconds of a plan and its run.
double time_step(const KVCache& cache, const std::vector<NewTokens>& step,
                 const AttendOptions& options) {
  std::int64_t tokens = 0;
  for (const NewTokens& one : step) tokens += one.count;
  static Tensor q, out;
  if (q.rank() != 3 || q.shape()[0] != tokens) {
    q = Tensor({tokens, kHeads, kDim}, DType::bf16);
    out = Tensor({tokens, kHeads, kDim}, DType::bf16);
  }
  const double start = now();
  AttendPlan plan(cache, step, {.q_heads = kHeads, .dtype = DType::bf16}, options);
  plan.run(cache, 0, q, {.out = out.view()});
  return (now() - start) * 1e3;
}

void compare(const std::string& name, const KVCache& cache, const std::vector<NewTokens>& step,
             const AttendOptions& rule, const AttendOptions& window, int repetitions) {
  std::vector<double> rules, windows, ratios;
  for (int i = 0; i < repetitions; ++i) {
    windows.push_back(time_step(cache, step, window));
    rules.push_back(time_step(cache, step, rule));
    ratios.push_back(rules.back() / windows.back());
  }
  fmt::print("{:58} {:8.3f} ms {:8.3f} ms {:6.2f}\n", name, median(rules), median(windows),
             median(ratios));
}

// Microseconds of the plan of a step of 256 sequences, which then have a token more.
void plans(int repetitions, const std::string& only) {
  constexpr std::int64_t kSequences = 256;
  // Rows of the usual size, which are never touched: sizes decide how work is cut.
  KVCache cache(
      {.kv_heads = kKeyHeads, .head_dim = kDim, .dtype = DType::bf16, .n_pages = kSequences * 180});
  std::vector<NewTokens> step;
  for (std::int64_t i = 0; i < kSequences; ++i) {
    step.push_back({cache.create()});
    cache.append(step.back().sequence, 2000 + 3 * i);
  }
  Tensor pages({kSequences, 8192}, DType::i64);
  const MaskMod table =
      MaskMod::parse("(q_idx >= kv_idx) & (doc[b, kv_idx] == 0)", {{"doc", Buffer(pages)}});
  AttendOptions trees, own;
  for (const NewTokens& one : step) {
    trees.sequence_options.push_back({.sequence = one.sequence, .parents = {-1}});
    own.sequence_options.push_back({.sequence = one.sequence, .window = 500});
  }
  AttendOptions tree_rules = trees;
  tree_rules.mask_mod = mods::streaming(4, 1024);
  const std::pair<const char*, AttendOptions> cases[] = {
      {"causal", {}},
      {"window", {.window = 1024}},
      {"window of each", own},
      {"a tree of each", trees},
      {"mask_mod sliding_window(1024)", {.mask_mod = mods::sliding_window(1024)}},
      {"mask_mod streaming(4, 1024)", {.mask_mod = mods::streaming(4, 1024)}},
      {"mask_mod dilated", {.mask_mod = MaskMod::parse("(q_idx >= kv_idx) & (kv_idx % 512 < 64)")}},
      {"mask_mod with a table", {.mask_mod = table}},
      {"a tree of each, mask_mod streaming(4, 1024)", tree_rules}};
  std::vector<double> times[std::size(cases)];
  for (int i = 0; i < repetitions; ++i) {
    cache.append(step);
    for (std::size_t j = 0; j < std::size(cases); ++j) {
      if (std::string(cases[j].first).find(only) == std::string::npos) continue;
      const double start = now();
      const AttendPlan plan(cache, step, {.q_heads = kHeads, .dtype = DType::bf16},
                            cases[j].second);
      times[j].push_back((now() - start) * 1e6);
    }
  }
  for (std::size_t j = 0; j < std::size(cases); ++j) {
    if (times[j].empty()) continue;
    fmt::print("plan of {} sequences: {:46} {:8.1f} us, at least {:.1f}\n", kSequences,
               cases[j].first, median(times[j]), *std::ranges::min_element(times[j]));
  }
}

void run(int repetitions) {
  fmt::print("{:58} {:>11} {:>11} {:>6}\n", "", "rule", "window", "ratio");
  const Filled one({65536});
  const SequenceId a = one.sequences[0];
  const AttendOptions window{.window = 1024};
  for (const std::int64_t tokens : {1, 8, 9, 64}) {
    compare(fmt::format("65,536 keys, {} tokens: mask_mod sliding_window(1024)", tokens), one.cache,
            {{a, tokens}}, {.mask_mod = mods::sliding_window(1024)}, window, repetitions);
    compare(fmt::format("65,536 keys, {} tokens: mask_mod streaming(4, 1024)", tokens), one.cache,
            {{a, tokens}}, {.mask_mod = mods::streaming(4, 1024)}, window, repetitions);
  }
  const Filled many(std::vector<std::int64_t>(16, 4096));
  for (const std::int64_t tokens : {7, 9}) {
    std::vector<NewTokens> step;
    for (const SequenceId sequence : many.sequences) step.push_back({sequence, 1});
    step[3].count = tokens;
    AttendOptions tree;
    std::vector<std::int64_t> parents;
    for (std::int64_t i = 0; i < tokens; ++i) parents.push_back((i + 1) / 2 - 1);
    tree.sequence_options = {{.sequence = many.sequences[3], .parents = parents}};
    compare(fmt::format("16 requests of 4,096 keys, one with a tree of {}: parents", tokens),
            many.cache, step, tree, {}, repetitions);
    std::vector<std::int64_t> ancestors(static_cast<std::size_t>(tokens * tokens));
    for (std::int64_t i = 0; i < tokens; ++i)
      for (std::int64_t at = i; at >= 0; at = parents[static_cast<std::size_t>(at)])
        ancestors[static_cast<std::size_t>(i * tokens + at)] = 1;
    const Buffer table(Tensor::from(std::span<const std::int64_t>(ancestors), {tokens, tokens}));
    const MaskMod rule = MaskMod::parse(
        fmt::format("(kv_idx <= q_idx) & ((b != 3) | (kv_idx < {0}) | (tree[clamp(q_idx - {0}, 0, "
                    "{1}), clamp(kv_idx - {0}, 0, {1})] != 0))",
                    4096 - tokens, tokens - 1),
        {{"tree", table}});
    compare(fmt::format("16 requests of 4,096 keys, one with a tree of {}: mask_mod", tokens),
            many.cache, step, {.mask_mod = rule}, {}, repetitions);
  }
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  int repetitions = 101;
  std::string only;
  bool plans_only = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--repetitions") repetitions = std::atoi(argv[i + 1]);
    if (std::string(argv[i]) == "--threads") quire::set_num_threads(std::atoi(argv[i + 1]));
    if (std::string(argv[i]) == "--plans") only = argv[i + 1], plans_only = true;
  }
  if (!plans_only) quire::bench::run(repetitions);
  quire::bench::plans(repetitions, only);
}

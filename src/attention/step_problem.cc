// Makes the problem of a step over a KVCache: page tables are read in place, and what the queries
// see is determined once for all layers. Attention layer.
#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "attention/validate.h"
#include "cache/kv_cache_state.h"
#include "layout/jagged_layout.h"
#include "layout/paged_layout.h"
#include "plan/cache_step.h"
#include "plan/prepare_problem.h"
#include "plan/step_rule.h"
#include "plan/tree_depth.h"
#include "quire/attend.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

using plan::PositionWindow;
using plan::StepSequence;

namespace {

// The sequences of a step.
struct Step {
  layout::JaggedRows queries;
  std::vector<layout::PageRow> pages;
  std::vector<std::int64_t> q_begin;
  std::vector<StepSequence> sequences;
  std::vector<const SequenceOptions*> own;  // options of each sequence, or null
  std::vector<std::int64_t> mod_b;          // b of each sequence, as mods see it
  std::vector<MaskMod> tree_rules;          // rules of sequences with a tree, with depths
  std::int64_t longest_q = 0, longest_kv = 0, tokens = 0;
};

void check_options(const char* where, const KVLayerGroup& sizes, const AttendQueries& queries,
                   const AttentionOptions& options) {
  if (queries.q_heads < 1 || queries.q_heads % sizes.kv_heads != 0) {
    fail(ErrorKind::value, where, "q_heads must be a multiple of the cache's {} kv_heads; got {}",
         sizes.kv_heads, queries.q_heads);
  }
  attention::check_float(where, "q", queries.dtype);
  attention::check_step_options(where, options);
}

// The options of sequences, sorted by slot, so that a step finds its own.
std::vector<const SequenceOptions*> sorted_options(const char* where, const KVCache& cache,
                                                   const AttentionOptions& options) {
  std::vector<const SequenceOptions*> sorted;
  sorted.reserve(options.sequence_options.size());
  for (const SequenceOptions& one : options.sequence_options) {
    if (one.sequence.cache != cache.state().number)
      fail(ErrorKind::value, where,
           "sequence_options has a handle that belongs to no sequence of this cache");
    if (one.window.value_or(0) < 0)
      fail(ErrorKind::value, where, "window must not be negative; got {}", *one.window);
    if (one.q_begin.value_or(0) < 0)
      fail(ErrorKind::value, where, "q_begin must not be negative; got {}", *one.q_begin);
    if (one.b.value_or(0) < 0)
      fail(ErrorKind::value, where, "b must not be negative; got {}", *one.b);
    if (one.q_begin.has_value() && !one.parents.empty())
      fail(ErrorKind::value, where, "give q_begin or parents, not both: a tree is the last tokens");
    sorted.push_back(&one);
  }
  std::ranges::sort(sorted, {}, [](const SequenceOptions* one) { return one->sequence; });
  const auto twice = std::ranges::adjacent_find(
      sorted, {}, [](const SequenceOptions* one) { return one->sequence; });
  if (twice != sorted.end())
    fail(ErrorKind::value, where, "sequence_options must not name a sequence twice");
  return sorted;
}

const SequenceOptions* options_of(const std::vector<const SequenceOptions*>& sorted,
                                  SequenceId sequence) {
  if (sorted.empty()) return nullptr;
  const auto at = std::ranges::lower_bound(
      sorted, sequence, {}, [](const SequenceOptions* one) { return one->sequence; });
  return at != sorted.end() && (*at)->sequence == sequence ? *at : nullptr;
}

void check_parents(const char* where, std::size_t i, const SequenceView& view, std::int64_t count,
                   const std::vector<std::int64_t>& parents) {
  if (std::ssize(parents) < count || std::ssize(parents) > view.length) {
    fail(ErrorKind::value, where,
         "parents of sequence {} of the step must be at least its {} queries and at most its {} "
         "tokens; got {}",
         i, count, view.length, parents.size());
  }
  for (std::size_t token = 0; token < parents.size(); ++token) {
    if (parents[token] >= -1 && parents[token] < static_cast<std::int64_t>(token)) continue;
    fail(ErrorKind::value, where,
         "the parent of token {} in the tree of sequence {} of the step must be -1 or come before "
         "it; got {}",
         token, i, parents[token]);
  }
}

Step read_step(const char* where, const KVCache& cache, std::int64_t group,
               std::span<const NewTokens> tokens, const AttentionOptions& options) {
  const std::vector<const SequenceOptions*> sorted = sorted_options(where, cache, options);
  Step step;
  for (std::vector<std::int64_t>* each : {&step.queries.begin, &step.queries.length, &step.q_begin})
    each->reserve(tokens.size());
  step.pages.reserve(tokens.size());
  step.sequences.reserve(tokens.size());
  step.own.reserve(tokens.size());
  step.mod_b.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    cache.state().get(where, tokens[i].sequence);
    const SequenceView view = cache.view(tokens[i].sequence, group);
    const SequenceOptions* own = options_of(sorted, tokens[i].sequence);
    const std::int64_t count = tokens[i].count;
    const bool is_free = own != nullptr && own->q_begin.has_value();
    if (count < 0 || (!is_free && count > view.length)) {
      fail(ErrorKind::value, where, "sequence {} of the step has {} tokens; got a count of {}", i,
           view.length, count);
    }
    if (own != nullptr && !own->parents.empty()) check_parents(where, i, view, count, own->parents);
    const std::int64_t q_begin = is_free ? *own->q_begin : view.length - count;
    step.queries.begin.push_back(step.tokens);
    step.queries.length.push_back(count);
    step.pages.push_back({.pages = view.pages.data(), .length = view.length});
    step.q_begin.push_back(q_begin);
    step.sequences.push_back({.q_begin = q_begin,
                              .queries = count,
                              .length = view.length,
                              .hole_begin = view.hole_begin,
                              .hole_end = view.hole_end});
    const auto number = static_cast<std::int64_t>(i);
    step.mod_b.push_back(own != nullptr ? own->b.value_or(number) : number);
    step.sequences.back().b = step.mod_b.back();
    step.own.push_back(own);
    step.tokens += count;
    step.longest_q = std::max(step.longest_q, count);
    step.longest_kv = std::max(step.longest_kv, view.length);
  }
  return step;
}

// The window of the group or of the call, whichever is smaller; only the group's has sink tokens.
PositionWindow window_of(const KVLayerGroup& sizes, std::int64_t window) {
  if (window > 0 && (sizes.window == 0 || window < sizes.window)) return {.window = window};
  return {.window = sizes.window, .sinks = sizes.sink_tokens};
}

// Positions decide unless there is a rule and neither a window nor a tree.
void set_rules(Step& step, const KVLayerGroup& sizes, const AttentionOptions& options) {
  const MaskMod* const common = options.mask_mod ? &*options.mask_mod : nullptr;
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    StepSequence& of = step.sequences[i];
    const SequenceOptions* own = step.own[i];
    const bool has_window = own != nullptr && own->window.has_value();
    const bool has_rule = own != nullptr && own->mask_mod.has_value();
    const PositionWindow window = window_of(sizes, has_window ? *own->window : options.window);
    of.rule = has_rule ? &*own->mask_mod : common;
    if (own != nullptr) of.parents = own->parents;
    of.is_common = !has_rule && of.parents.empty() &&
                   (!has_window || window == window_of(sizes, options.window));
    if (of.rule == nullptr || window.window > 0 || !of.parents.empty()) of.positions = window;
  }
}

bool has_trees(const Step& step) {
  return std::ranges::any_of(step.sequences,
                             [](const StepSequence& of) { return !of.parents.empty(); });
}

// Mods of a step with trees count positions along paths. `asked`: the program of sequences without
// a tree.
void set_depths(const char* where, Step& step, AttentionProblem& problem, MaskMod& asked) {
  if (!has_trees(step)) return;
  if (problem.rope.has_value()) {
    fail(
        ErrorKind::value, where,
        "rope turns rows by where they lie, and tokens of a tree lie elsewhere than on their path; "
        "write keys that are rotated, without rope");
  }
  const plan::StepDepths depths(step.sequences, step.mod_b);
  // A rule that consecutive sequences share is rewritten once.
  const MaskMod* known = nullptr;
  step.tree_rules.reserve(step.sequences.size());
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    StepSequence& of = step.sequences[i];
    if (of.parents.empty() || of.rule == nullptr) continue;
    if (of.rule != known) {
      known = of.rule;
      step.tree_rules.push_back(depths.apply(*known));
    }
    of.rule = &step.tree_rules.back();
    of.b = static_cast<std::int64_t>(i);
  }
  const auto reads = [](const std::optional<ScoreMod>& mod) {
    return mod.has_value() && plan::reads_positions(mod->formula());
  };
  if (!reads(problem.score_mod) && !reads(problem.weight_mod)) return;
  if (!problem.mod_b.empty() && problem.dropout_p > 0) {
    fail(
        ErrorKind::value, where,
        "dropout_p with b of sequence_options and mods that count along the paths of a tree is not "
        "supported: b would be the number in the step");
  }
  for (std::optional<ScoreMod>* mod : {&problem.score_mod, &problem.weight_mod})
    if (mod->has_value()) *mod = depths.apply(**mod);
  if (!problem.mod_b.empty()) asked = depths.apply(asked);
  problem.mod_b.clear();
}

// The proofs of earlier steps. The caller holds the lock.
plan::RuleMemory* memory_of(const KVCache& cache) {
  std::unique_ptr<cache::StepMemory>& memory = cache.state().step_memory;
  if (memory == nullptr) memory = std::make_unique<plan::RuleMemory>();
  return static_cast<plan::RuleMemory*>(memory.get());
}

void check_group(const char* where, const KVCache& cache, std::int64_t group) {
  if (group >= 0 && group < std::ssize(cache.groups())) return;
  fail(ErrorKind::index, where, "group must be in 0..{}; got {}", cache.groups().size() - 1, group);
}

[[noreturn]] void fail_released(const char* where, std::int64_t i, const StepSequence& of) {
  if (of.hole_begin > 0) {
    fail(ErrorKind::value, where,
         "sequence {} of the step has released its keys {}..{}, and a query may see them", i,
         of.hole_begin, of.hole_end - 1);
  }
  fail(ErrorKind::value, where,
       "sequence {} of the step has released its keys before {}, and a query may see them", i,
       of.hole_end);
}

}  // namespace

AttentionProblem AttentionProblem::step(const KVCache& cache, std::span<const NewTokens> tokens,
                                        const AttendQueries& queries,
                                        const AttentionOptions& options, const char* function) {
  const FloatEnv float_env;
  check_group(function, cache, queries.group);
  const KVLayerGroup& sizes = cache.groups()[static_cast<std::size_t>(queries.group)];
  const std::int64_t page_size = cache.options().page_size;
  check_options(function, sizes, queries, options);
  Step step = read_step(function, cache, queries.group, tokens, options);
  set_rules(step, sizes, options);
  const auto batch = static_cast<std::int64_t>(tokens.size());
  AttentionProblem problem{{.batch = batch,
                            .q_heads = queries.q_heads,
                            .q_len = step.longest_q,
                            .head_dim = sizes.head_dim,
                            .kv_batch = batch,
                            .kv_heads = sizes.kv_heads,
                            .kv_len = step.longest_kv,
                            .v_head_dim = sizes.v_head_dim,
                            .q_dtype = queries.dtype,
                            .k_dtype = sizes.k_format.is_plain() ? sizes.dtype : DType::f32,
                            .v_dtype = sizes.v_format.is_plain() ? sizes.dtype : DType::f32,
                            .k_format = sizes.k_format,
                            .v_format = sizes.v_format},
                           options,
                           function};
  problem.q_begin = std::move(step.q_begin);
  problem.q_shape = {step.tokens, queries.q_heads, sizes.head_dim};
  problem.k_shape = {sizes.n_pages, sizes.kv_heads, page_size, sizes.head_dim};
  problem.v_shape = {sizes.n_pages, sizes.kv_heads, page_size, sizes.v_head_dim};
  problem.queries = std::make_shared<layout::JaggedQueries>(std::move(step.queries));
  problem.layout = std::make_shared<layout::PagedLayout>(page_size, false, std::move(step.pages));
  plan::read_key_indices(problem);
  const MaskMod* const rule = options.mask_mod ? &*options.mask_mod : nullptr;
  const PositionWindow window = window_of(sizes, options.window);
  const MaskMod program = plan::step_program(
      rule == nullptr || window.window > 0 ? std::optional(window) : std::nullopt, rule);
  const bool has_b = std::ranges::any_of(
      step.own, [](const SequenceOptions* own) { return own != nullptr && own->b.has_value(); });
  if (has_b) problem.mod_b = step.mod_b;
  MaskMod asked = program;
  set_depths(function, step, problem, asked);
  const std::unique_lock lock(cache.state().step_memory_lock, std::try_to_lock);
  const auto keys =
      plan::set_visible_keys(problem, step.sequences,
                             {.proved = program,
                              .evaluated = std::move(asked),
                              .memory = lock.owns_lock() ? memory_of(cache) : nullptr});
  if (keys->first_missing() >= 0)
    fail_released(function, keys->first_missing(),
                  step.sequences[static_cast<std::size_t>(keys->first_missing())]);
  problem.step_of =
      std::make_shared<const plan::CacheStep>(cache, queries.group, tokens, step.sequences, *keys);
  return problem;
}

}  // namespace quire

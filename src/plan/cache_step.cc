// Decides which tokens become drafts, and checks a layer before a step runs over it. Plan layer.
#include "plan/cache_step.h"

#include "cache/kv_cache_state.h"
#include "formula/bound/depends.h"
#include "formula/simplify/simplify.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::plan {
namespace {

// Whether the rule may show other keys to another sequence with the same ids so far: it does if it
// reads b or a table.
bool reads_more_than_ids(const MaskMod& rule) {
  const Formula simple = formula::simplify(rule.formula(), Precision::kF32);
  return !simple.buffers().empty() ||
         formula::depends(simple.graph())[static_cast<std::size_t>(simple.root())].b;
}

}  // namespace

CacheStep::CacheStep(const KVCache& of, std::int64_t layers, std::span<const NewTokens> tokens,
                     std::span<const StepSequence> step, const StepKeys& keys)
    : cache(&of.state()), version(of.version()), group(layers) {
  sequences.reserve(tokens.size());
  const MaskMod* known = nullptr;  // most sequences have the same rule
  bool is_particular = false;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const StepSequence& one = step[i];
    if (one.rule != nullptr && one.rule != known) {
      known = one.rule;
      is_particular = reads_more_than_ids(*known);
    }
    const bool has_rule = one.rule != nullptr;
    const bool sees_more =
        has_rule && (is_particular || keys.sees_later(static_cast<std::int64_t>(i)));
    sequences.push_back({.slot = tokens[i].sequence.slot,
                         .length = one.queries > 0 ? one.length : 0,
                         .q_begin = one.q_begin,
                         .makes_drafts = one.queries > 0 && (!one.parents.empty() || sees_more)});
  }
}

void CacheStep::check(const char* where, const KVCache& of, std::int64_t layer) const {
  const KVCache::State& state = of.state();
  if (&state != cache || of.version() != version)
    fail(ErrorKind::value, where, "the cache is another, or has changed since the plan was made");
  const auto of_layer = static_cast<std::int64_t>(state.place(where, layer).group);
  if (of_layer != group) {
    fail(ErrorKind::value, where, "layer {} is in group {}, and the plan is for group {}", layer,
         of_layer, group);
  }
  for (const Sequence& sequence : sequences) {
    const std::int64_t written =
        state.sequences[sequence.slot].written[static_cast<std::size_t>(layer)];
    if (written >= sequence.length) continue;
    fail(ErrorKind::value, where,
         "tokens from position {} on of sequence {} of the step are not written in layer {}",
         written, &sequence - sequences.data(), layer);
  }
}

void CacheStep::mark_drafts(const KVCache& of, std::int64_t layer) const noexcept {
  // Nothing in the cache depends on the last layer's output.
  if (layer + 1 == of.options().layers) return;
  for (const Sequence& sequence : sequences)
    if (sequence.makes_drafts) of.state().make_drafts(sequence.slot, sequence.q_begin);
}

}  // namespace quire::plan

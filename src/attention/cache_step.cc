// Checks of a layer before a step runs over it. Attention layer.
#include "attention/cache_step.h"

#include "cache/kv_cache_state.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::attention {

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
  // Nothing in the cache follows from the last layer's output.
  if (layer + 1 == of.options().layers) return;
  for (const Sequence& sequence : sequences)
    if (sequence.makes_drafts) of.state().make_drafts(sequence.slot, sequence.q_begin);
}

}  // namespace quire::attention

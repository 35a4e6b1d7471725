// CacheStep: which sequences of which cache a step was planned for, and what must hold when it runs
// over a layer. Plan layer.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "plan/step_keys.h"
#include "quire/kv_cache.h"

namespace quire::plan {

struct CacheStep {
  struct Sequence {
    std::uint32_t slot = 0;
    std::int64_t length = 0;
    std::int64_t q_begin = 0;
    /// Outputs of its queries may depend on more than the ids before them, so tokens computed from
    /// these outputs must not be found by prefix.
    bool makes_drafts = false;
  };

  /// `step`: one entry for each of `tokens`. `keys`: what their queries see.
  CacheStep(const KVCache& cache, std::int64_t group, std::span<const NewTokens> tokens,
            std::span<const StepSequence> step, const StepKeys& keys);

  const void* cache = nullptr;  // the state of a KVCache
  std::uint64_t version = 0;
  std::int64_t group = 0;
  std::vector<Sequence> sequences;  // that have queries

  /// Throws Error "[where] ..." if this is another cache, the cache has changed, the layer belongs
  /// to another group, or tokens are not written in the layer.
  void check(const char* where, const KVCache& cache, std::int64_t layer) const;
  /// Marks tokens that later layers compute from this layer's output as drafts, where necessary.
  void mark_drafts(const KVCache& cache, std::int64_t layer) const noexcept;
};

}  // namespace quire::plan

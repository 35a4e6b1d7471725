// StepMemory: what attention remembers of earlier steps over a cache. It belongs to the cache,
// which knows nothing about it. Cache layer.
#pragma once

namespace quire::cache {

struct StepMemory {
  StepMemory() = default;
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;
  virtual ~StepMemory() = default;
};

}  // namespace quire::cache

// How many slots of pages stay empty over a day's work: requests with log-normal lengths, page
// management only.
#pragma once
#include <cstdint>

namespace engine {

struct Waste {
  double share = 0;  // of slots of used pages that hold no token, over all steps
  double mean_sequences = 0, mean_tokens = 0;
  std::int64_t steps = 0, preemptions = 0;
};

// Prompts of 161 tokens and answers of 338 on average, as people talk to assistants; up to 256
// sequences at once, one token of each per step.
Waste simulate_waste(std::int64_t requests, std::int64_t page_size, std::uint64_t seed);

}  // namespace engine

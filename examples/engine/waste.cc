// A pool of 128 Ki tokens whose rows are one number each: only the page management matters.
#include "waste.h"

#include <quire/kv_cache.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace engine {
namespace {

struct Job {
  quire::SequenceId sequence;
  std::int64_t prompt = 0, answer = 0;
};

// Log-normal with this mean; sigma is that of the logarithm.
std::int64_t length(std::mt19937_64& random, double mean, double sigma) {
  std::lognormal_distribution<double> lengths(std::log(mean) - sigma * sigma / 2, sigma);
  return std::clamp<std::int64_t>(std::llround(lengths(random)), 1, 8192);
}

}  // namespace

Waste simulate_waste(std::int64_t requests, std::int64_t page_size, std::uint64_t seed) {
  quire::KVCache cache({.head_dim = 1, .page_size = page_size, .n_pages = 131072 / page_size});
  std::mt19937_64 random(seed);
  std::vector<Job> running;
  std::vector<quire::NewTokens> step;
  Waste waste;
  double slots = 0, filled = 0;
  for (std::int64_t started = 0; started < requests || !running.empty();) {
    while (started < requests && running.size() < 256) {
      Job job{cache.create(), length(random, 161, 1.0), length(random, 338, 0.8)};
      if (!cache.can_reserve(job.sequence, job.prompt)) {
        cache.release(job.sequence);
        break;
      }
      cache.append(job.sequence, job.prompt);
      running.push_back(job);
      ++started;
    }
    step.clear();
    for (const Job& job : running) step.push_back({job.sequence});
    while (!cache.can_reserve(step)) {  // the last one is dropped; it counts as answered
      cache.release(running.back().sequence);
      running.pop_back();
      step.pop_back();
      ++waste.preemptions;
    }
    cache.append(step);
    std::erase_if(running, [&](Job& job) {
      if (--job.answer > 0) return false;
      cache.release(job.sequence);
      return true;
    });
    const quire::KVCacheStats stats = cache.stats();
    slots += static_cast<double>(stats.used_pages * page_size);
    filled += static_cast<double>(stats.stored_tokens);
    waste.mean_sequences += static_cast<double>(stats.sequences);
    ++waste.steps;
  }
  waste.share = 1 - filled / slots;
  waste.mean_sequences /= static_cast<double>(waste.steps);
  waste.mean_tokens = filled / static_cast<double>(waste.steps);
  return waste;
}

}  // namespace engine

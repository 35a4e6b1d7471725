// An engine over one KVCache: continuous batching, shared prefixes, forks, preemption. Checks
// itself: every sample has the same tokens and logits, to the bit, as the same request run alone.
//
//   engine [requests]
#include <quire/error.h>

#include <cstdio>
#include <cstdlib>

#include "engine.h"
#include "one_at_a_time.h"
#include "waste.h"

namespace {

int run(std::size_t n_requests) {
  const engine::Model model({}, 1);
  const auto requests = engine::make_requests(n_requests, model.sizes().vocabulary, 2);
  engine::Engine batching(model, 16, 40);
  const std::vector<engine::Sample> samples = batching.run(requests);

  const engine::EngineCounts& counts = batching.counts();
  std::printf("%zu requests, %zu samples, %lld steps, %lld tokens run, %lld found in the cache\n",
              requests.size(), samples.size(), static_cast<long long>(counts.steps),
              static_cast<long long>(counts.tokens), static_cast<long long>(counts.found_tokens));
  const quire::KVCacheStats stats = batching.cache().stats();
  std::printf("%lld forks, %lld pages copied, %lld preemptions, %lld evictions\n",
              static_cast<long long>(counts.forks), static_cast<long long>(stats.copied_pages),
              static_cast<long long>(counts.preemptions), static_cast<long long>(stats.evictions));

  std::size_t wanted = 0, different = 0;
  for (const engine::Request& one : requests) wanted += static_cast<std::size_t>(one.samples);
  for (const engine::Sample& one : samples)
    different += !engine::are_equal(
        one, engine::run_alone(model, requests[one.request], one.request, one.number));
  const bool is_right = different == 0 && samples.size() == wanted && stats.used_pages == 0;
  std::printf("against one at a time: %zu of %zu samples differ in tokens or bits of logits\n",
              different, wanted);

  const engine::Waste waste = engine::simulate_waste(10000, 16, 3);
  std::printf(
      "trace of 10000 requests: %.2f %% of slots wasted at page 16 (%.0f sequences, %.0f "
      "tokens in the mean)\n",
      100 * waste.share, waste.mean_sequences, waste.mean_tokens);
  return is_right && waste.share < 0.04 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? static_cast<std::size_t>(std::atoi(argv[1])) : 60);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

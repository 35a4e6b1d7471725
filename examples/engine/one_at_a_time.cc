// Runs the prompt, then token by token.
#include "one_at_a_time.h"

#include <quire/kv_cache.h>

#include <cstring>

#include "forward.h"

namespace engine {

Sample run_alone(const Model& model, const Request& request, std::size_t which, int number) {
  const std::int64_t length = std::ssize(request.prompt) + request.new_tokens, page_size = 5;
  quire::KVCache cache(cache_options(model.sizes(), page_size, length / page_size + 1));
  const quire::SequenceId sequence = cache.create();
  Sample sample{which, number, request.prompt, {}};
  std::size_t there = 0;
  while (std::ssize(sample.logits) < request.new_tokens) {
    const std::vector<std::int64_t> ids(sample.tokens.begin() + static_cast<std::ptrdiff_t>(there),
                                        sample.tokens.end());
    const quire::NewTokens step[] = {{sequence, std::ssize(ids), ids}};
    const Rows x = forward(model, cache, step);
    there += ids.size();
    sample.logits.push_back(model.logits(x, ids.size() - 1));
    sample.tokens.push_back(choose(sample.logits.back(), sample));
  }
  return sample;
}

bool are_equal(const Sample& a, const Sample& b) {
  if (a.tokens != b.tokens || a.logits.size() != b.logits.size()) return false;
  for (std::size_t i = 0; i < a.logits.size(); ++i)
    if (std::memcmp(a.logits[i].data(), b.logits[i].data(), a.logits[i].size() * sizeof(float)) !=
        0)
      return false;
  return true;
}

}  // namespace engine

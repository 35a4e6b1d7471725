// Requests to the engine, and the answers: samples, each a list of tokens with the logits that
// every new one was chosen from.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model.h"

namespace engine {

struct Request {
  std::int64_t arrival = 0;  // the step before which it arrives
  std::uint64_t tenant = 0;  // tenants share no pages
  std::vector<std::int64_t> prompt;
  int samples = 1;  // best-of-n: number of answers
  std::int64_t new_tokens = 1;
};

struct Sample {
  std::size_t request = 0;
  int number = 0;                    // among those of its request
  std::vector<std::int64_t> tokens;  // the prompt's, then new ones
  std::vector<Rows> logits;          // of each new token
};

// Chooses the token with the largest logit plus noise; the noise depends only on the sample and the
// position.
std::int64_t choose(const Rows& logits, const Sample& sample);

// Requests that share beginnings, arrive in bursts and ask for one to four samples.
std::vector<Request> make_requests(std::size_t n, std::int64_t vocabulary, std::uint64_t seed);

}  // namespace engine

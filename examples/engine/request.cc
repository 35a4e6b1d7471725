// Chooses tokens with reproducible noise, and makes a workload.
#include "request.h"

#include <cmath>
#include <random>

namespace engine {
namespace {

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
  return x ^ (x >> 32);
}

}  // namespace

std::int64_t choose(const Rows& logits, const Sample& sample) {
  const std::uint64_t who =
      mix(mix(sample.request, static_cast<std::uint64_t>(sample.number)), sample.tokens.size());
  std::size_t best = 0;
  double most = -INFINITY;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double uniform = (static_cast<double>(mix(who, i) >> 12) + 0.5) * 0x1p-52;
    const double value = static_cast<double>(logits[i]) - std::log(-std::log(uniform));
    if (value > most) {
      most = value;
      best = i;
    }
  }
  return static_cast<std::int64_t>(best);
}

std::vector<Request> make_requests(std::size_t n, std::int64_t vocabulary, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  const auto text = [&](std::int64_t length) {
    std::vector<std::int64_t> ids(length);
    for (std::int64_t& id : ids) id = below(vocabulary);
    return ids;
  };
  const std::vector<std::int64_t> instructions[] = {text(50), text(75)};
  std::vector<Request> requests;
  std::int64_t arrival = 0;
  for (std::size_t i = 0; i < n; ++i) {
    Request one;
    arrival += below(4) == 0 ? below(12) : 0;  // bursts
    one.arrival = arrival;
    one.tenant = static_cast<std::uint64_t>(below(2));
    if (below(3) != 0) one.prompt = instructions[below(2)];
    for (const std::int64_t id : text(1 + below(60))) one.prompt.push_back(id);
    one.samples = below(3) == 0 ? 2 + static_cast<int>(below(3)) : 1;
    one.new_tokens = 1 + below(30);
    requests.push_back(one);
  }
  return requests;
}

}  // namespace engine

// The scheduler: who runs, who waits, and what a step contains.
#include "engine.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "forward.h"

namespace engine {

using quire::NewTokens;

Engine::Engine(const Model& model, std::int64_t page_size, std::int64_t n_pages)
    : model_(model), cache_(cache_options(model.sizes(), page_size, n_pages)) {}

std::vector<Sample> Engine::run(const std::vector<Request>& requests) {
  requests_ = &requests;
  std::size_t next = 0;
  while (next < requests.size() || !waiting_.empty() || !running_.empty()) {
    for (; next < requests.size() && requests[next].arrival <= counts_.steps; ++next) {
      const Request& one = requests[next];
      waiting_.push_back({{next, 0, one.prompt, {}}, {}, one.samples > 1});
    }
    admit();
    step();
  }
  return std::exchange(done_, {});
}

// In order of arrival, as long as the next chunk fits next to one token of everybody else. Tokens
// that are already in the cache (a shared prefix, or their own from before a preemption) are not
// computed again, except the last one, for its logits.
void Engine::admit() {
  while (!waiting_.empty() && running_.size() < kMostRunning) {
    Running one = waiting_.front();
    const std::span<const std::int64_t> tokens = one.sample.tokens;
    const auto [sequence, found] = cache_.create_with_prefix(
        tokens.first(tokens.size() - 1), (*requests_)[one.sample.request].tenant);
    one.sequence = sequence;
    running_.push_back(one);
    if (!cache_.can_reserve(next_step())) {
      cache_.release(sequence);
      running_.pop_back();
      return;
    }
    counts_.found_tokens += found;
    waiting_.pop_front();
  }
}

std::vector<NewTokens> Engine::next_step() const {
  std::vector<NewTokens> step;
  for (const Running& one : running_) {
    const std::int64_t there = cache_.length(one.sequence);
    const std::int64_t count = std::min(std::ssize(one.sample.tokens) - there, kChunk);
    step.push_back({one.sequence, count, std::span(one.sample.tokens).subspan(there, count)});
  }
  return step;
}

// The newest gives its pages back and will be computed again later.
void Engine::preempt() {
  if (running_.size() <= 1) throw std::runtime_error("the pool is too small for one request");
  cache_.release(running_.back().sequence);
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
  ++counts_.preemptions;
}

void Engine::step() {
  while (!running_.empty() && !cache_.can_reserve(next_step())) preempt();
  ++counts_.steps;
  if (running_.empty()) return;
  const std::vector<NewTokens> step = next_step();
  const Rows x = forward(model_, cache_, step);
  std::vector<Running> ran = std::exchange(running_, {});
  std::size_t last_row = 0;
  for (std::size_t i = 0; i < ran.size(); ++i) {
    last_row += static_cast<std::size_t>(step[i].count);
    counts_.tokens += step[i].count;
    if (cache_.length(ran[i].sequence) < std::ssize(ran[i].sample.tokens)) {
      running_.push_back(std::move(ran[i]));  // more of its prompt is left
      continue;
    }
    const Rows logits = model_.logits(x, last_row - 1);
    if (std::exchange(ran[i].may_fork, false)) fork(ran[i], logits);
    add_token(std::move(ran[i]), logits);
  }
}

// The other samples share all pages of the prompt.
void Engine::fork(const Running& running, const Rows& logits) {
  for (int number = 1; number < (*requests_)[running.sample.request].samples; ++number) {
    Running other = running;
    other.sample.number = number;
    other.sequence = cache_.fork(running.sequence);
    ++counts_.forks;
    add_token(std::move(other), logits);
  }
}

void Engine::add_token(Running running, const Rows& logits) {
  running.sample.tokens.push_back(choose(logits, running.sample));
  running.sample.logits.push_back(logits);
  if (std::ssize(running.sample.logits) < (*requests_)[running.sample.request].new_tokens) {
    running_.push_back(std::move(running));
    return;
  }
  cache_.release(running.sequence);
  done_.push_back(std::move(running.sample));
}

}  // namespace engine

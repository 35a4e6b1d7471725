// Continuous batching: requests come and go between steps, and every step runs the next tokens of
// all running requests, prompt chunks next to single tokens, through the model at once.
#pragma once
#include <quire/kv_cache.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "model.h"
#include "request.h"

namespace engine {

struct EngineCounts {
  std::int64_t steps = 0, tokens = 0;  // that ran through the model
  std::int64_t found_tokens = 0;       // of prompts, found in the cache instead
  std::int64_t forks = 0, preemptions = 0;
};

class Engine {
 public:
  Engine(const Model& model, std::int64_t page_size, std::int64_t n_pages);

  // All samples of all requests, in any order.
  std::vector<Sample> run(const std::vector<Request>& requests);

  const EngineCounts& counts() const { return counts_; }
  const quire::KVCache& cache() const { return cache_; }

 private:
  struct Running {
    Sample sample;
    quire::SequenceId sequence;
    bool may_fork = false;  // other samples of its request fork from the end of its prompt
  };

  void admit();
  std::vector<quire::NewTokens> next_step() const;
  void preempt();
  void step();
  void add_token(Running running, const Rows& logits);
  void fork(const Running& running, const Rows& logits);

  static constexpr std::int64_t kChunk = 24;       // tokens of a prompt in one step
  static constexpr std::size_t kMostRunning = 16;  // sequences

  const Model& model_;
  quire::KVCache cache_;
  const std::vector<Request>* requests_ = nullptr;
  std::deque<Running> waiting_;   // without a sequence
  std::vector<Running> running_;  // the longest running first
  std::vector<Sample> done_;
  EngineCounts counts_;
};

}  // namespace engine

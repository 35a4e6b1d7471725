// Runs a function on every rank of a group of threads. Tests only.
#pragma once
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "quire/communicator.h"

namespace quire::testing {

/// Returns when all have ended; a rank's communicator goes with it. What they threw, null for those
/// that threw nothing.
inline std::vector<std::exception_ptr> run_ranks(int ranks,
                                                 const std::function<void(Communicator&)>& body,
                                                 const ThreadGroupOptions& options = {}) {
  auto group = make_thread_group(ranks, options);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Communicator> mine = std::move(group[rank]);
      try {
        body(*mine);
      } catch (...) {
        thrown[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

/// The same where nothing may be thrown: rethrows the first.
inline void on_ranks(int ranks, const std::function<void(Communicator&)>& body,
                     const ThreadGroupOptions& options = {}) {
  for (const std::exception_ptr& one : run_ranks(ranks, body, options))
    if (one != nullptr) std::rethrow_exception(one);
}

}  // namespace quire::testing

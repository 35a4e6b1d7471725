// PoolThreads: the threads of one pool in one process, asleep until a run is offered. Uses as many
// threads as the system provides: where one cannot be created, the others and the calling thread do
// its share. Does not survive fork(): its owner checks fork_count. Runtime layer.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/claim.h"

namespace quire {

class PoolThreads {
 public:
  /// `most`: threads besides the calling ones. None is started yet.
  explicit PoolThreads(std::size_t most) : most_(most) { threads_.reserve(most); }
  /// Joins the threads. No run may be in progress.
  ~PoolThreads();
  PoolThreads(const PoolThreads&) = delete;
  PoolThreads& operator=(const PoolThreads&) = delete;

  /// Works on `claim` with the calling thread as worker 0 and up to `helpers` others as workers 1,
  /// 2, ...; returns when all of them have. May be called from several threads at once: each has
  /// its own claim, and free threads help the oldest. Throws Error in a child that was forked
  /// inside the claim's own body.
  void work(Claim& claim, std::size_t helpers);

  /// Whether the calling thread is inside a claim of any pool.
  static bool is_inside() noexcept;

 private:
  // A claim that is being worked on; lives on the caller's stack.
  struct Run {
    Claim& claim;
    std::size_t places;          // places left for helpers
    std::size_t joined = 0;      // helpers that have taken a place
    std::atomic<int> active{0};  // helpers still working
    Run* next = nullptr;         // the next newer run
  };
  struct Place {
    Run* run = nullptr;  // null: the pool is being destroyed
    std::size_t worker = 0;
  };

  void offer(Run& run);
  void withdraw(Run& run, std::uint64_t forks);
  void start_threads(std::size_t wanted);
  void wake(std::size_t places, std::size_t sleepers);
  Place wait_for_place();
  void leave(Run& run);
  void live();

  const std::size_t most_;
  std::atomic<std::uint64_t> offers_{0};  // so far; threads that are still awake poll it
  std::mutex mutex_;                      // guards everything below
  std::condition_variable offered_;       // a run was offered, or the pool ends
  std::condition_variable left_;          // the last helper of a run has left
  std::vector<std::thread> threads_;      // capacity reserved: adding one does not allocate
  Run* first_ = nullptr;                  // runs with places left, oldest first
  std::size_t sleepers_ = 0;              // threads waiting for offered_
  bool is_ending_ = false;
  std::chrono::steady_clock::time_point next_attempt_{};  // to start threads, after a failure
};

}  // namespace quire

// Executor on its own threads, started when a run first needs them. In a child of fork() the first
// run creates new ones. Runtime layer.
#include <algorithm>
#include <atomic>
#include <memory>

#include "quire/executor.h"
#include "runtime/check_size.h"
#include "runtime/claim.h"
#include "runtime/fork_count.h"
#include "runtime/pool_threads.h"
#include "runtime/thread_count.h"

namespace quire {
namespace {

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(std::size_t n) : concurrency_(n), here_(new Threads(n)) {}

  // The parent's threads are leaked in a child: they cannot be joined, and one of them may hold the
  // mutex.
  ~ThreadPool() override {
    const Threads* threads = here_.load(std::memory_order_acquire);
    if (threads->forks == fork_count()) delete threads;
  }

  void run(size_t n, Body body) override {
    const size_t workers = std::min(n, concurrency_);
    // From inside a body: the threads are already busy with the outer run.
    if (workers <= 1 || PoolThreads::is_inside()) {
      for (size_t index = 0; index < n; ++index) body(index, 0);
      return;
    }
    Claim claim(n, body);
    threads_of_this_process().work(claim, workers - 1);
    claim.finish();
  }

  size_t concurrency() const noexcept override { return concurrency_; }

 private:
  struct Threads {
    explicit Threads(std::size_t n) : pool(n - 1) {}
    const std::uint64_t forks = fork_count();
    PoolThreads pool;
  };

  PoolThreads& threads_of_this_process() {
    Threads* threads = here_.load(std::memory_order_acquire);
    if (threads->forks == fork_count()) return threads->pool;
    // Lock-free, because a lock could have been held at the fork. If several threads get here, one
    // wins.
    auto fresh = std::make_unique<Threads>(concurrency_);
    if (here_.compare_exchange_strong(threads, fresh.get(), std::memory_order_acq_rel))
      return fresh.release()->pool;
    return threads->pool;
  }

  const std::size_t concurrency_;
  std::atomic<Threads*> here_;
};

}  // namespace

std::shared_ptr<Executor> make_thread_pool(int n) {
  check_size("make_thread_pool", "n", n, 1, kMaxThreads);
  return std::make_shared<ThreadPool>(n);
}

}  // namespace quire

// Executor on the threads of an OpenMP runtime that is already loaded in the process. Each run is
// one parallel region whose threads claim indices until none are left. OpenMP is neither compiled
// in nor linked. Where the runtime would kill or hang the process, because threads cannot be
// created or belong to the parent of a fork(), our own pool runs instead. Runtime layer.
#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "quire/error.h"
#include "quire/executor.h"
#include "runtime/check_size.h"
#include "runtime/claim.h"
#include "runtime/fail.h"
#include "runtime/fork_count.h"
#include "runtime/thread_count.h"

namespace quire {
namespace {

// Whether this thread is inside a body of any OpenMpExecutor.
thread_local bool t_inside_region = false;
// The largest team that this thread has had: its threads stay and wait for the next region.
thread_local unsigned t_largest_team = 1;

// Tries whether `n` more threads can be alive at once.
bool can_start_threads(std::size_t n) {
  std::atomic<bool> may_end{false};
  std::vector<std::thread> threads;
  bool started = true;
  try {
    threads.reserve(n);
    while (threads.size() < n) threads.emplace_back([&] { may_end.wait(false); });
  } catch (const std::system_error&) {
    started = false;
  } catch (const std::bad_alloc&) {
    started = false;
  }
  may_end.store(true);
  may_end.notify_all();
  for (std::thread& thread : threads) thread.join();
  return started;
}

class OpenMpExecutor final : public Executor {
 public:
  OpenMpExecutor(const OpenMpRuntime& runtime, int n)
      : runtime_(runtime), concurrency_(static_cast<unsigned>(n)), pool_(make_thread_pool(n)) {}

  void run(size_t n, Body body) override {
    if (std::min<size_t>(n, concurrency_) <= 1 || t_inside_region) {
      for (size_t index = 0; index < n; ++index) body(index, 0);
      return;
    }
    if (!can_use_runtime()) return pool_->run(n, body);
    Region region{Claim(n, body), runtime_.thread_number};
    // Always all threads: a smaller team would end the others, and the next region would start them
    // again.
    runtime_.parallel(&work, &region, concurrency_, 0);
    region.claim.finish();
  }

  size_t concurrency() const noexcept override { return concurrency_; }

 private:
  struct Region {
    Claim claim;
    int (*thread_number)();
  };

  static void work(void* shared) {
    auto& region = *static_cast<Region*>(shared);
    const bool outer = t_inside_region;
    t_inside_region = true;
    region.claim.work(region.thread_number());
    t_inside_region = outer;
  }

  // libgomp ends the process when it cannot create a thread, so the first region of each calling
  // thread tries first.
  bool can_use_runtime() {
    if (fork_count() != forks_ || is_refused_.load(std::memory_order_relaxed)) return false;
    if (t_largest_team >= concurrency_) return true;
    if (can_start_threads(concurrency_ - t_largest_team)) {
      t_largest_team = concurrency_;
      return true;
    }
    is_refused_.store(true, std::memory_order_relaxed);
    return false;
  }

  const OpenMpRuntime runtime_;
  const unsigned concurrency_;
  const std::shared_ptr<Executor> pool_;  // starts no thread before it is used
  const std::uint64_t forks_ = fork_count();
  std::atomic<bool> is_refused_{false};
};

}  // namespace

std::shared_ptr<Executor> make_openmp_executor(const OpenMpRuntime& runtime, int n) {
  if (runtime.parallel == nullptr || runtime.thread_number == nullptr)
    fail(ErrorKind::value, "make_openmp_executor", "both functions of the runtime are needed");
  check_size("make_openmp_executor", "n", n, 1, kMaxThreads);
  return std::make_shared<OpenMpExecutor>(runtime, n);
}

}  // namespace quire

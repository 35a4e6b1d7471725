// The default executor, the one process-wide object of the library, and its number of threads; the
// serial executor. Runtime layer.
#include <cstdlib>
#include <memory>
#include <mutex>

#include "quire/executor.h"
#include "quire/isa.h"
#include "runtime/check_size.h"
#include "runtime/thread_count.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace quire {
namespace {

struct DefaultExecutor {
  std::mutex mutex;
  std::shared_ptr<Executor> executor;  // null until first used
};

// Never destroyed: when a process ends, other threads may still be inside calls, and joining the
// pool's threads could deadlock on something that no longer exists.
DefaultExecutor& state() {
  static DefaultExecutor& instance = *new DefaultExecutor;
  return instance;
}

#if defined(__unix__) || defined(__APPLE__)
// A lock held by another thread at a fork, and a static initialisation in progress, would stay
// locked in the child for ever. So a thread that forks waits until no thread is inside either.
void before_fork() {
  try {
    (void)isa_choice();
    // QUIRE_ISA is wrong: the first computation says so. NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (...) {
  }
  state().mutex.lock();
}
void after_fork() { state().mutex.unlock(); }
[[maybe_unused]] const int g_waits_for_forks = pthread_atfork(before_fork, after_fork, after_fork);
#endif

}  // namespace

std::shared_ptr<Executor> default_executor() {
  DefaultExecutor& current = state();
  const std::lock_guard lock(current.mutex);
  if (!current.executor) {
    const int n = choose_num_threads(std::getenv("QUIRE_NUM_THREADS"), available_cpus());
    current.executor = make_thread_pool(n);
  }
  return current.executor;
}

void set_num_threads(int n) {
  check_size("set_num_threads", "n", n, 1, kMaxThreads);
  std::shared_ptr<Executor> replaced = make_thread_pool(n);
  DefaultExecutor& current = state();
  {
    const std::lock_guard lock(current.mutex);
    current.executor.swap(replaced);
  }
  // `replaced` is destroyed here, outside the lock: its last owner joins its threads.
}

int get_num_threads() { return static_cast<int>(default_executor()->concurrency()); }

// The order of execution that every other executor must be equivalent to.
Executor::~Executor() = default;

void SerialExecutor::run(size_t n, Body body) {
  for (size_t index = 0; index < n; ++index) body(index, 0);
}

}  // namespace quire

// The default executor, the one process-wide object of the library, and the number of its threads.
// Runtime layer.
#include <cstdlib>
#include <memory>
#include <mutex>

#include "quire/executor.h"
#include "runtime/check_size.h"
#include "runtime/thread_count.h"

namespace quire {
namespace {

struct DefaultExecutor {
  std::mutex mutex;
  std::shared_ptr<Executor> executor;  // null until it is asked for
};

DefaultExecutor& state() {
  static DefaultExecutor instance;
  return instance;
}

}  // namespace

std::shared_ptr<Executor> default_executor() {
  DefaultExecutor& current = state();
  const std::lock_guard lock(current.mutex);
  if (!current.executor) {
    const int n = choose_num_threads(std::getenv("QUIRE_NUM_THREADS"), available_cpus());
    current.executor = make_tbb_executor(n);
  }
  return current.executor;
}

void set_num_threads(int n) {
  check_size("set_num_threads", "n", n, 1, kMaxThreads);
  std::shared_ptr<Executor> replaced = make_tbb_executor(n);
  DefaultExecutor& current = state();
  {
    const std::lock_guard lock(current.mutex);
    current.executor.swap(replaced);
  }
  // `replaced` ends here, outside the lock: the last holder of an arena waits for nothing but its
  // own threads.
}

int get_num_threads() { return static_cast<int>(default_executor()->concurrency()); }

}  // namespace quire

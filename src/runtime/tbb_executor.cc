// Executor on a oneTBB arena of its own: the only file that knows TBB. Each run starts one task per
// worker, and every task claims indices until none are left, so a slow index never holds up others.
// Runtime layer.
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/task_group.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "quire/executor.h"
#include "runtime/check_size.h"
#include "runtime/claim.h"
#include "runtime/order_for_tsan.h"
#include "runtime/thread_count.h"

namespace quire {
namespace {

// Whether this thread is inside a body of any TbbExecutor.
thread_local bool t_inside_body = false;

class InsideBody {
 public:
  InsideBody() noexcept : outer_(t_inside_body) { t_inside_body = true; }
  ~InsideBody() { t_inside_body = outer_; }
  InsideBody(const InsideBody&) = delete;
  InsideBody& operator=(const InsideBody&) = delete;

 private:
  bool outer_;
};

// TBB starts no more threads than there are CPUs unless told so, and the setting is the whole
// process's: the smallest of all that are alive counts. So Quire keeps one, which only grows and is
// not there at all until somebody asks for more threads than CPUs. Returns how many threads TBB
// then allows; a limit that the application has set stays in force (and an arena that asked for
// more would make TBB print a warning).
int allow_threads(int n) {
  static std::mutex mutex;
  static std::unique_ptr<tbb::global_control> limit;
  constexpr auto kThreads = tbb::global_control::max_allowed_parallelism;
  const std::lock_guard lock(mutex);
  const auto wanted = static_cast<size_t>(n);
  if (wanted > tbb::global_control::active_value(kThreads)) {
    // The new one first: without any, the limit would be lower for a moment.
    limit = std::make_unique<tbb::global_control>(kThreads, wanted);
  }
  return static_cast<int>(std::min(wanted, tbb::global_control::active_value(kThreads)));
}

class TbbExecutor final : public Executor {
 public:
  // The arena may have fewer threads than there are workers; each then takes more than one worker's
  // share in turn.
  explicit TbbExecutor(int n) : concurrency_(static_cast<size_t>(n)), arena_(allow_threads(n)) {
    arena_.initialize();
  }

  void run(size_t n, Body body) override {
    const size_t workers = std::min(n, concurrency_);
    if (workers <= 1 || t_inside_body) {
      for (size_t index = 0; index < n; ++index) body(index, 0);
      return;
    }
    Claim claim(n, body);
    const auto work = [&claim](size_t worker) {
      order_for_tsan();
      {
        const InsideBody inside;
        claim.work(worker);
      }
      order_for_tsan();
    };
    // Not bound to the caller's context: were that one cancelled, TBB would skip indices in
    // silence.
    tbb::task_group_context context(tbb::task_group_context::isolated);
    order_for_tsan();
    arena_.execute([&] {
      // Isolated: while this thread waits, it takes no task from outside this run.
      tbb::this_task_arena::isolate(
          [&] { tbb::parallel_for(size_t{0}, workers, work, tbb::simple_partitioner(), context); });
    });
    order_for_tsan();
    claim.finish();
  }

  size_t concurrency() const noexcept override { return concurrency_; }

 private:
  size_t concurrency_;
  tbb::task_arena arena_;
};

}  // namespace

std::shared_ptr<Executor> make_tbb_executor(int n) {
  check_size("make_tbb_executor", "n", n, 1, kMaxThreads);
  return std::make_shared<TbbExecutor>(n);
}

}  // namespace quire

// How a run wakes threads, and how threads find work and sleep. Runtime layer.
#include "runtime/pool_threads.h"

#include <algorithm>
#include <new>
#include <system_error>

#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/fork_count.h"

namespace quire {
namespace {

thread_local bool t_is_inside = false;

class Inside {
 public:
  Inside() noexcept : outer_(t_is_inside) { t_is_inside = true; }
  ~Inside() { t_is_inside = outer_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool outer_;
};

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Polls `condition` for a while before the caller goes to sleep: waking a thread takes 5 to 50 us,
// and the layers of a model follow each other more closely than that. Yields, so that where there
// are more threads than CPUs the awaited ones can run.
template <class Condition>
bool spin_until(const Condition& condition) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kLongest{200};
  constexpr int kPauses = 64;  // 1 to 3 us between looks at the clock
  const Clock::time_point end = Clock::now() + kLongest;
  for (;;) {
    for (int i = 0; i < kPauses; ++i) {
      if (condition()) return true;
      pause();
    }
    if (Clock::now() >= end) return condition();
    std::this_thread::yield();
  }
}

}  // namespace

bool PoolThreads::is_inside() noexcept { return t_is_inside; }

PoolThreads::~PoolThreads() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    offers_.fetch_add(1, std::memory_order_release);
    offered_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void PoolThreads::work(Claim& claim, std::size_t helpers) {
  const std::uint64_t forks = fork_count();
  Run run{.claim = claim, .places = helpers};
  offer(run);
  {
    const Inside inside;
    claim.work(0);
  }
  withdraw(run, forks);
}

void PoolThreads::offer(Run& run) {
  std::size_t places = 0, sleepers = 0;
  {
    const std::lock_guard lock(mutex_);
    start_threads(std::min(run.places, most_));
    if (threads_.empty()) {
      run.places = 0;
      return;
    }
    Run** last = &first_;
    while (*last != nullptr) last = &(*last)->next;
    *last = &run;
    offers_.fetch_add(1, std::memory_order_release);
    places = run.places;
    sleepers = sleepers_;
  }
  wake(places, sleepers);
}

// Starts as many threads as possible. After a failure (a limit of threads or memory) it waits a
// while before trying again, because a failure takes as long as a small run.
void PoolThreads::start_threads(std::size_t wanted) {
  using Clock = std::chrono::steady_clock;
  if (threads_.size() >= wanted) return;
  if (next_attempt_ != Clock::time_point{} && Clock::now() < next_attempt_) return;
  try {
    while (threads_.size() < wanted) threads_.emplace_back([this] { live(); });
  } catch (const std::system_error&) {  // no more threads
    next_attempt_ = Clock::now() + std::chrono::seconds(1);
  } catch (const std::bad_alloc&) {  // no memory to start one
    next_attempt_ = Clock::now() + std::chrono::seconds(1);
  }
}

// Wakes two threads; each one that finds a place wakes two more. So the caller can start working at
// once, and n threads are awake after log2(n) steps.
void PoolThreads::wake(std::size_t places, std::size_t sleepers) {
  for (std::size_t i = std::min({places, sleepers, std::size_t{2}}); i > 0; --i)
    offered_.notify_one();
}

void PoolThreads::withdraw(Run& run, std::uint64_t forks) {
  if (fork_count() != forks) {  // the other threads and the owner of the mutex are the parent's
    fail(ErrorKind::runtime, "Executor",
         "the process was forked by a body of run(), whose other "
         "threads do not exist in the child");
  }
  {
    const std::lock_guard lock(mutex_);
    Run** at = &first_;
    while (*at != nullptr && *at != &run) at = &(*at)->next;
    if (*at == &run) *at = run.next;
  }
  const auto all_left = [&] { return run.active.load(std::memory_order_acquire) == 0; };
  if (spin_until(all_left)) return;
  std::unique_lock lock(mutex_);
  left_.wait(lock, all_left);
}

PoolThreads::Place PoolThreads::wait_for_place() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (first_ != nullptr) {
      Run& run = *first_;
      const Place place{&run, ++run.joined};
      run.active.fetch_add(1, std::memory_order_relaxed);
      if (--run.places == 0) first_ = run.next;
      const std::size_t places = run.places, sleepers = sleepers_;
      lock.unlock();
      wake(places, sleepers);
      return place;
    }
    if (is_ending_) return {};
    const std::uint64_t seen = offers_.load(std::memory_order_relaxed);
    const auto is_offered = [&] { return offers_.load(std::memory_order_acquire) != seen; };
    lock.unlock();
    const bool found = spin_until(is_offered);
    lock.lock();
    if (found) continue;
    ++sleepers_;
    offered_.wait(lock, [&] { return first_ != nullptr || is_ending_; });
    --sleepers_;
  }
}

// The caller may return as soon as `active` is 0: `run` must not be touched after that.
void PoolThreads::leave(Run& run) {
  const std::lock_guard lock(mutex_);
  if (run.active.fetch_sub(1, std::memory_order_release) == 1) left_.notify_all();
}

void PoolThreads::live() {
  for (Place place = wait_for_place(); place.run != nullptr; place = wait_for_place()) {
    {
      const Inside inside;
      place.run->claim.work(place.worker);
    }
    leave(*place.run);
  }
}

}  // namespace quire

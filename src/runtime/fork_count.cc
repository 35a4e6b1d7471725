// A handler registered with pthread_atfork counts in the child. Runtime layer.
#include "runtime/fork_count.h"

#include <atomic>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace quire {
namespace {

constinit std::atomic<std::uint64_t> g_forks{0};

#if defined(__unix__) || defined(__APPLE__)
// At load, not at the first use: the first use may be another thread's, beside a fork. It can fail
// for want of memory alone; the process has none then to begin with.
[[maybe_unused]] const int g_counts_forks = pthread_atfork(
    nullptr, nullptr, +[] { g_forks.fetch_add(1, std::memory_order_relaxed); });
#endif

}  // namespace

std::uint64_t fork_count() noexcept { return g_forks.load(std::memory_order_relaxed); }

}  // namespace quire

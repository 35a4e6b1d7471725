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
// Registered at load, not on first use, which could race with a fork in another thread. It can fail
// only for lack of memory, and then the process could not have started.
[[maybe_unused]] const int g_counts_forks = pthread_atfork(
    nullptr, nullptr, +[] { g_forks.fetch_add(1, std::memory_order_relaxed); });
#endif

}  // namespace

std::uint64_t fork_count() noexcept { return g_forks.load(std::memory_order_relaxed); }

}  // namespace quire

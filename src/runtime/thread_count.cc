// Counts the CPUs of the process and reads QUIRE_NUM_THREADS. Runtime layer.
#include "runtime/thread_count.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <thread>

#include "quire/error.h"
#include "runtime/fail.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace quire {

int available_cpus() noexcept {
#if defined(__linux__)
  // Fails with EINVAL on machines with more CPUs than a cpu_set_t holds (1024); those fall through.
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int choose_num_threads(const char* environment, int cpus) {
  const std::string_view text = environment == nullptr ? "" : environment;
  if (text.empty()) return std::clamp(cpus, 1, kMaxThreads);
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 1 || n > kMaxThreads) {
    fail(ErrorKind::value, "QUIRE_NUM_THREADS", "must be a whole number in 1..{}; got '{}'",
         kMaxThreads, text);
  }
  return n;
}

}  // namespace quire

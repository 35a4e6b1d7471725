// The number of threads of the default executor, as pure functions where possible. Runtime layer.
#pragma once

namespace quire {

inline constexpr int kMaxThreads = 1024;

// CPUs this process may run on: its affinity mask where the system has one, at least 1.
int available_cpus() noexcept;

// `environment` is the value of QUIRE_NUM_THREADS; if null or empty, `cpus` is used (at most
// kMaxThreads). Throws Error when it is not a whole number in 1..kMaxThreads.
int choose_num_threads(const char* environment, int cpus);

}  // namespace quire

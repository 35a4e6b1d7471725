// Finds the runtime's functions by address, and keeps the last executor made for it. Python layer.
#include "openmp.h"

#include <nanobind/nanobind.h>
#include <pthread.h>

#include <cstdint>
#include <mutex>

#include "register.h"

namespace quire::python {
namespace {

std::mutex g_mutex;
OpenMpRuntime g_runtime;
std::shared_ptr<Executor> g_executor;

// After a fork() the runtime's threads are the parent's, and most runtimes would wait for them: a
// child uses a pool of its own. The mutex is held across the fork, so that the child finds it
// unlocked.
bool g_is_child = false;
[[maybe_unused]] const int g_registered = pthread_atfork(
    +[] { g_mutex.lock(); }, +[] { g_mutex.unlock(); },
    +[] {
      g_is_child = true;
      g_runtime = {};
      g_mutex.unlock();
    });

void use_openmp(std::uintptr_t parallel, std::uintptr_t thread_number) {
  const std::lock_guard lock(g_mutex);
  if (g_is_child) return;
  g_runtime = {reinterpret_cast<decltype(OpenMpRuntime::parallel)>(parallel),
               reinterpret_cast<decltype(OpenMpRuntime::thread_number)>(thread_number)};
  g_executor.reset();
}

}  // namespace

std::shared_ptr<Executor> openmp_executor(int threads) {
  if (threads <= 0) return nullptr;
  const std::lock_guard lock(g_mutex);
  if (g_runtime.parallel == nullptr) return nullptr;
  if (g_executor == nullptr || g_executor->concurrency() != static_cast<std::size_t>(threads))
    g_executor = make_openmp_executor(g_runtime, threads);
  return g_executor;
}

void register_openmp(nb::module_& module) {
  module.def("use_openmp", &use_openmp, nb::arg("parallel"), nb::arg("thread_number"),
             "Names an OpenMP runtime by the addresses of GOMP_parallel and omp_get_thread_num. It "
             "must stay in the process.");
}

}  // namespace quire::python

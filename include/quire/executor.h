// What runs the parallel parts: a small interface, a serial implementation, and the process-wide
// default, a thread pool. Every entry point of the library accepts another Executor. Knows nothing
// about attention. Public; runtime layer.
//
// fork(): calls work in a child. Pools made before the fork, the default one included, start new
// threads in the child when they are next used; their size stays. It does not matter if another
// thread was inside a call when the process forked, but discard in the child whatever that call was
// writing (its outputs, a KVCache, a plan).
#pragma once
#include <cstddef>
#include <memory>

#include "quire/export.h"
#include "quire/function_ref.h"

namespace quire {

// Implement it to run Quire on a pool of your own. What run() must do:
// - Call body(index, worker) once for every index in [0, n), on any threads, and return when all
//   calls have returned.
// - Claim indices from one ascending counter, each claim running to completion. So when index i
//   runs, all lower ones have been claimed: an index may wait for lower ones, and for nothing else.
// - worker is in [0, concurrency()); no two concurrent calls of one run share it: it selects
//   scratch memory.
// - When a body throws, claim nothing more, let running calls finish, then rethrow the exception of
//   the lowest index that threw. As claims ascend, that is the same exception for any number of
//   threads.
// - run() may be called from several threads at once, and from inside a body, without deadlock.
// - concurrency() is at least 1 and constant; calls reject an executor that returns 0.
class QUIRE_API Executor {
 public:
  using Body = FunctionRef<void(size_t index, size_t worker)>;

  virtual ~Executor();
  virtual void run(size_t n, Body body) = 0;
  virtual size_t concurrency() const noexcept = 0;
};

// Runs everything in the calling thread, in ascending order, as worker 0.
class QUIRE_API SerialExecutor final : public Executor {
 public:
  void run(size_t n, Body body) override;
  size_t concurrency() const noexcept override { return 1; }
};

// An executor on n threads, the calling one included; the others belong to the pool,
// start when a run first needs them and sleep while idle. If the system gives fewer
// (a limit of threads or memory), runs use those there are, at least the calling one,
// and ask for more later. A run() from inside a body is serial, as worker 0 of that
// inner run: the threads are busy with the outer run. Throws Error unless 1 <= n <=
// 1024.
QUIRE_API std::shared_ptr<Executor> make_thread_pool(int n);

[[deprecated("make_thread_pool does the same without oneTBB")]] inline std::shared_ptr<Executor>
make_tbb_executor(int n) {
  return make_thread_pool(n);
}

// Two functions of an OpenMP runtime already loaded in the process: GOMP_parallel and
// omp_get_thread_num, which libgomp, libomp and libiomp5 all have.
struct OpenMpRuntime {
  void (*parallel)(void (*body)(void*), void* shared, unsigned threads, unsigned flags) = nullptr;
  int (*thread_number)() = nullptr;
};

// An executor on n threads of that runtime, for programs in which another library computes on the
// same threads in turn with Quire: after its part they spin for a while, which would slow down a
// second pool and here means a quick start. A run() from inside a body is serial. Where the
// runtime would end or hang the process (its threads cannot be created, or were lost in a
// fork()), a pool of n threads runs instead. Throws Error for a null function and unless 1 <= n
// <= 1024.
QUIRE_API std::shared_ptr<Executor> make_openmp_executor(const OpenMpRuntime& runtime, int n);

// The default of every entry point: a thread pool with get_num_threads() threads, made on first
// use. The pointer stays usable after set_num_threads. Thread safe.
QUIRE_API std::shared_ptr<Executor> default_executor();

// Replaces the default executor for calls that start later; a running call keeps its executor.
// Throws Error unless 1 <= n <= 1024. Thread safe.
QUIRE_API void set_num_threads(int n);

// Initially the value of QUIRE_NUM_THREADS, or the number of CPUs this process may use (its
// affinity, not the size of the machine). Throws Error when QUIRE_NUM_THREADS is not a number in
// 1..1024. Thread safe.
QUIRE_API int get_num_threads();

}  // namespace quire

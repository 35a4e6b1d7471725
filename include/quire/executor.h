// What runs the parallel parts: a small interface, a serial one, and the process-wide default, a
// pool of threads. Every entry point of the library accepts another Executor. Knows nothing about
// attention. Public; runtime layer.
//
// fork(): in a child, calls work. Pools made before, the default one included, start threads of the
// child's own when they are next used; their size stays. That another thread was inside a call when
// the process forked does not matter, but what that call was writing (its outputs, a KVCache, a
// plan) is in the child as it was at that moment: discard it there.
#pragma once
#include <cstddef>
#include <memory>

#include "quire/export.h"
#include "quire/function_ref.h"

namespace quire {

// Replace it to run Quire on a pool of your own. What run() must do:
// - Call body(index, worker) once for every index in [0, n), on any threads, and return when all
// calls have returned.
// - Claim indices from one ascending counter, each claim running to completion. So when index i
// runs, all before it
//   have been claimed; work may be laid out so that an index waits for nothing but lower ones.
// - worker is in [0, concurrency()), and no two calls of one run that are under way at the same
// time share it: it
//   selects scratch memory.
// - When a body throws, claim nothing more, let the calls under way finish, then rethrow the
// exception of the lowest
//   index that threw. As claims ascend, that is the same exception for any number of threads.
// - run() may be called from several threads at once, and from inside a body, without deadlock.
// - concurrency() is at least 1 and stays what it is; calls refuse an executor that says 0.
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

// An executor on n threads, the calling one included; the others are its own, are started when a
// run first needs them and sleep when there is nothing to do. Where the system gives fewer (a limit
// of threads or of memory), runs are done by those there are, the calling one at least, and more
// are asked for later. A run() from inside a body is done serially in the calling thread as worker
// 0 of that inner run: the threads are busy with the outer one already. Throws Error unless 1 <= n
// <= 1024.
QUIRE_API std::shared_ptr<Executor> make_thread_pool(int n);

[[deprecated("make_thread_pool does the same without oneTBB")]] inline std::shared_ptr<Executor>
make_tbb_executor(int n) {
  return make_thread_pool(n);
}

// Two functions of an OpenMP runtime that is in the process already: GOMP_parallel and
// omp_get_thread_num, which libgomp, libomp and libiomp5 all have.
struct OpenMpRuntime {
  void (*parallel)(void (*body)(void*), void* shared, unsigned threads, unsigned flags) = nullptr;
  int (*thread_number)() = nullptr;
};

// An executor on n threads of that runtime. For programs in which another library computes on these
// threads in turn with Quire: after its part they spin for a while, which costs a second pool a
// good deal of its time, and here serves as a quick start. A run() from inside a body is done
// serially. Where the runtime would end or hang the process, because its threads cannot be made or
// were those of the parent of a fork(), a pool of n threads runs instead. Throws Error for a null
// function and unless 1 <= n <= 1024.
QUIRE_API std::shared_ptr<Executor> make_openmp_executor(const OpenMpRuntime& runtime, int n);

// The default of every entry point: a thread pool with get_num_threads() threads, made at the first
// use. The pointer stays usable after set_num_threads. Thread safe.
QUIRE_API std::shared_ptr<Executor> default_executor();

// Replaces the default executor for calls that start from now on; a run under way keeps the one it
// began with. Throws Error unless 1 <= n <= 1024. Thread safe.
QUIRE_API void set_num_threads(int n);

// At first the value of QUIRE_NUM_THREADS, else the number of CPUs this process may use (its
// affinity, not the size of the machine). Throws Error when QUIRE_NUM_THREADS is not a number
// in 1..1024. Thread safe.
QUIRE_API int get_num_threads();

}  // namespace quire

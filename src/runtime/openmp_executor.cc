// Executor on the threads of an OpenMP runtime that somebody else has brought into the process.
// Each run is one parallel region whose threads claim indices until none are left. Nothing of
// OpenMP is compiled in or linked. Runtime layer.
#include <algorithm>
#include <memory>

#include "quire/error.h"
#include "quire/executor.h"
#include "runtime/check_size.h"
#include "runtime/claim.h"
#include "runtime/fail.h"
#include "runtime/thread_count.h"

namespace quire {
namespace {

// Whether this thread is inside a body of any OpenMpExecutor.
thread_local bool t_inside_region = false;

class OpenMpExecutor final : public Executor {
 public:
  OpenMpExecutor(const OpenMpRuntime& runtime, int n)
      : runtime_(runtime), concurrency_(static_cast<size_t>(n)) {}

  void run(size_t n, Body body) override {
    if (std::min(n, concurrency_) <= 1 || t_inside_region) {
      for (size_t index = 0; index < n; ++index) body(index, 0);
      return;
    }
    Region region{Claim(n, body), runtime_.thread_number};
    // Always all threads: a smaller team would end the others, and the next one start them again.
    runtime_.parallel(&work, &region, static_cast<unsigned>(concurrency_), 0);
    region.claim.finish();
  }

  size_t concurrency() const noexcept override { return concurrency_; }

 private:
  struct Region {
    Claim claim;
    int (*thread_number)();
  };

  static void work(void* shared) {
    auto& region = *static_cast<Region*>(shared);
    const bool outer = t_inside_region;
    t_inside_region = true;
    region.claim.work(static_cast<size_t>(region.thread_number()));
    t_inside_region = outer;
  }

  OpenMpRuntime runtime_;
  size_t concurrency_;
};

}  // namespace

std::shared_ptr<Executor> make_openmp_executor(const OpenMpRuntime& runtime, int n) {
  if (runtime.parallel == nullptr || runtime.thread_number == nullptr)
    fail(ErrorKind::value, "make_openmp_executor", "both functions of the runtime are needed");
  check_size("make_openmp_executor", "n", n, 1, kMaxThreads);
  return std::make_shared<OpenMpExecutor>(runtime, n);
}

}  // namespace quire

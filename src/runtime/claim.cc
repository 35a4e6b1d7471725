// Hands out indices, and stops the run after a failure. Runtime layer.
#include "runtime/claim.h"

namespace quire {

void Claim::work(size_t worker) noexcept {
  for (;;) {
    const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= n_) return;
    try {
      body_(index, worker);
    } catch (...) {
      next_.store(n_, std::memory_order_relaxed);  // nothing more is claimed
      const std::lock_guard lock(mutex_);
      if (!failure_ || index < failed_index_) {
        failed_index_ = index;
        failure_ = std::current_exception();
      }
    }
  }
}

void Claim::finish() {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace quire

// Turn: a place where work is done in the order of its numbers, whichever threads do it. The
// holder of number n waits until 0..n-1 have passed, works, and passes. Waiting spins briefly, then
// blocks; it ends if all smaller numbers are held by threads that run. Kernels layer.
#pragma once
#include <atomic>
#include <thread>

namespace quire::kernels {

class Turn {
 public:
  void reset() noexcept { next_.store(0, std::memory_order_relaxed); }

  void wait_for(int number) const noexcept {
    constexpr int kSpins = 1000, kYields = 50;  // some us, then some 10 us: mostly it is over then
    for (int i = 0; i < kSpins + kYields; ++i) {
      if (next_.load(std::memory_order_acquire) == number) return;
      if (i >= kSpins) std::this_thread::yield();
    }
    for (int next = next_.load(std::memory_order_acquire); next != number;
         next = next_.load(std::memory_order_acquire))
      next_.wait(next, std::memory_order_acquire);
  }

  /// Only by the holder of `number`, after wait_for.
  void pass(int number) noexcept {
    next_.store(number + 1, std::memory_order_release);
    next_.notify_all();
  }

 private:
  std::atomic<int> next_ = 0;
};

}  // namespace quire::kernels

// RunBudget: counts the runs a mask under construction has so far, over all threads, and refuses a
// mask that will not fit into memory while it still fits. Mask layer.
#pragma once
#include <atomic>
#include <cstdint>

namespace quire::mask {

class RunBudget {
 public:
  /// max_bytes 0: what memory is available now. `where` begins the text of the error.
  RunBudget(const char* where, std::int64_t max_bytes);

  /// Throws Error if that is more than is left. Any threads.
  void spend(std::int64_t bytes);

 private:
  const char* where_;
  std::int64_t most_;
  std::atomic<std::int64_t> spent_{0};
};

}  // namespace quire::mask

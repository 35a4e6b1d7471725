// RunBudget: counts the runs of a mask under construction over all threads, and rejects in time a
// mask that would not fit into memory. Mask layer.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

namespace quire::mask {

class RunBudget {
 public:
  /// max_bytes 0: 64 MiB, and more if that much memory is available when it is needed: asking the
  /// system takes some 40 us, longer than most masks. `where` begins the error text.
  RunBudget(const char* where, std::int64_t max_bytes);

  /// Throws Error if less than that is left. Thread safe.
  void spend(std::int64_t bytes);

 private:
  bool fits(std::int64_t bytes, std::int64_t most);

  const char* where_;
  const bool is_given_;
  std::once_flag asked_;  // what the system has
  std::atomic<std::int64_t> most_;
  std::atomic<std::int64_t> spent_{0};
};

}  // namespace quire::mask

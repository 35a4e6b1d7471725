// RunBudget: a running total with a limit. Mask layer.
#include "mask/run_budget.h"

#include <algorithm>

#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/memory.h"

namespace quire::mask {

namespace {
constexpr std::int64_t kUnasked = std::int64_t{1} << 26;
}

RunBudget::RunBudget(const char* where, std::int64_t max_bytes)
    : where_(where), is_given_(max_bytes > 0), most_(is_given_ ? max_bytes : kUnasked) {}

// Compare-and-swap, so that the sum never passes the limit and never overflows.
bool RunBudget::fits(std::int64_t bytes, std::int64_t most) {
  std::int64_t spent = spent_.load(std::memory_order_relaxed);
  while (bytes <= most - spent) {
    if (spent_.compare_exchange_weak(spent, spent + bytes, std::memory_order_relaxed)) return true;
  }
  return false;
}

void RunBudget::spend(std::int64_t bytes) {
  if (fits(bytes, most_.load(std::memory_order_relaxed))) return;
  if (!is_given_) {
    std::call_once(asked_, [&] { most_.store(std::max(kUnasked, available_memory())); });
    if (fits(bytes, most_.load())) return;
  }
  fail(ErrorKind::runtime, where_, "the mask needs more than {}; larger blocks make it smaller",
       bytes_text(most_.load()));
}

}  // namespace quire::mask

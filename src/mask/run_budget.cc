// The running total and its limit. Mask layer.
#include "mask/run_budget.h"

#include <fmt/format.h>

#include "quire/error.h"
#include "runtime/memory.h"

namespace quire::mask {

RunBudget::RunBudget(const char* where, std::int64_t max_bytes)
    : where_(where), most_(max_bytes > 0 ? max_bytes : available_memory()) {}

void RunBudget::spend(std::int64_t bytes) {
  // Compare-and-swap, so that the sum never passes the limit and never overflows.
  std::int64_t spent = spent_.load(std::memory_order_relaxed);
  while (bytes <= most_ - spent) {
    if (spent_.compare_exchange_weak(spent, spent + bytes, std::memory_order_relaxed)) return;
  }
  throw Error(ErrorKind::runtime,
              fmt::format("[{}] the mask needs more than {}; larger blocks make it smaller", where_,
                          bytes_text(most_)));
}

}  // namespace quire::mask

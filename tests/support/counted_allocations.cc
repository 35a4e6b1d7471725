// operator new and delete that count. In a file of their own, so that compilers do not see both
// ends of an allocation at once and warn of malloc behind new.
#include "tests/support/counted_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> counted{0};
thread_local long until_failure = -1;  // never, if negative

[[maybe_unused]] void count_allocation() {
  ++counted;
  if (until_failure == 0) throw std::bad_alloc();
  if (until_failure > 0) --until_failure;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
namespace quire::testing {
bool counts_allocations() { return false; }
}  // namespace quire::testing
#else
namespace quire::testing {
bool counts_allocations() { return true; }
}  // namespace quire::testing
void* operator new(std::size_t size) {
  count_allocation();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t align) {
  count_allocation();
  const auto unit = static_cast<std::size_t>(align);
  if (void* memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#endif

namespace quire::testing {

long allocations() { return counted; }

FailingAllocations::FailingAllocations(long succeeding) { until_failure = succeeding; }
FailingAllocations::~FailingAllocations() { until_failure = -1; }

}  // namespace quire::testing

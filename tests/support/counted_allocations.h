// Every allocation of a program that uses this is counted, and can be made to fail. Tests only.
#pragma once

namespace quire::testing {

/// False under a sanitizer, which has allocators of its own: nothing is counted, nothing fails.
bool counts_allocations();

/// Allocations so far, of all threads.
long allocations();

/// While it lives, `succeeding` more allocations of this thread succeed; the next throws
/// std::bad_alloc, and so do all after it.
class FailingAllocations {
 public:
  explicit FailingAllocations(long succeeding);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;
};

}  // namespace quire::testing

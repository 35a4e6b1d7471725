// Where kernels run some 50 times slower than on this machine's fastest ISA: one lane at a time, or
// under an emulator (scripts/test-arm sets QUIRE_TEST_EMULATED). Tests made for full speed take
// smaller or fewer cases there. Tests only.
#pragma once
#include <cstdlib>

#include "quire/isa.h"

namespace quire::testing {

inline bool cpu_is_emulated() { return std::getenv("QUIRE_TEST_EMULATED") != nullptr; }

inline bool kernels_are_slow() { return current_isa() == Isa::scalar || cpu_is_emulated(); }

/// For loops over many cases: under an emulator one in `n`, after `skipped` of them. None of the
/// loops' values need be left out if n has no divisor in common with their lengths.
class FewerIfEmulated {
 public:
  explicit FewerIfEmulated(int n, int skipped = 0)
      : n_(cpu_is_emulated() ? n : 1), count_(n_ - skipped % n_) {}
  bool leaves_out() { return count_++ % n_ != 0; }

 private:
  int n_, count_;
};

}  // namespace quire::testing

// How many random cases a property runs. RapidCheck's properties (RC_GTEST_PROP) get the number
// from property_main.cc; this is for loops that a property or a test writes by itself. Tests only.
#pragma once
#include <cstdlib>

namespace quire::testing {

// QUIRE_PROPERTY_RUNS if it is set (`make check-all` sets 20000), else `usual`.
inline int property_runs(int usual = 2000) {
  const char* text = std::getenv("QUIRE_PROPERTY_RUNS");
  const int runs = text == nullptr ? 0 : std::atoi(text);
  return runs > 0 ? runs : usual;
}

}  // namespace quire::testing

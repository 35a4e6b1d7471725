// main() of the *_property executables: gives RapidCheck its number of cases and its seed, the same
// every time, so that a change is what turns a test red; QUIRE_PROPERTY_SEED is another seed, or
// `random` as in `make check-all`. On a failure RapidCheck prints a line `reproduce=...`; put that
// into RC_PARAMS to replay it (an RC_PARAMS that is set is left alone).
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/support/property.h"

int main(int argc, char** argv) {
  std::string params = "max_success=" + std::to_string(quire::testing::property_runs());
  const char* set = std::getenv("QUIRE_PROPERTY_SEED");
  const std::string seed = set == nullptr ? "20260716" : set;
  if (seed != "random") params += " seed=" + seed;
  setenv("RC_PARAMS", params.c_str(), 0);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

// main() of the *_property executables: gives RapidCheck its number of cases. On a failure
// RapidCheck prints a line `reproduce=...`; put that into RC_PARAMS to replay it (an RC_PARAMS that
// is set is left alone).
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/support/property.h"

int main(int argc, char** argv) {
  const std::string params = "max_success=" + std::to_string(quire::testing::property_runs());
  setenv("RC_PARAMS", params.c_str(), 0);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

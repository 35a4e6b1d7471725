// The rule that picks an ISA, on made-up machines. What this machine really runs is tested in
// tests/kernels.
#include "runtime/isa_choice.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/support/expect_error.h"

namespace quire {
namespace {

constexpr std::array kOldMachine = {Isa::scalar, Isa::avx2};

TEST(IsaChoice, FastestByDefault) {
  for (const char* unset : {static_cast<const char*>(nullptr), ""}) {
    const IsaChoice choice = choose_isa(std::nullopt, unset, kOldMachine);
    EXPECT_EQ(choice.isa, Isa::avx2);
    EXPECT_EQ(choice.why, "fastest this CPU has");
  }
}

TEST(IsaChoice, EnvironmentWinsOverFastest) {
  const IsaChoice choice = choose_isa(std::nullopt, "scalar", kOldMachine);
  EXPECT_EQ(choice.isa, Isa::scalar);
  EXPECT_EQ(choice.why, "QUIRE_ISA=scalar");
}

TEST(IsaChoice, ForcedWinsOverEnvironment) {
  const IsaChoice choice = choose_isa(Isa::avx2, "scalar", kOldMachine);
  EXPECT_EQ(choice.isa, Isa::avx2);
  EXPECT_EQ(choice.why, "forced by force_isa");
}

TEST(IsaChoice, MissingIsaIsAnErrorThatListsTheOthers) {
  testing::expect_error(
      ErrorKind::runtime,
      "[QUIRE_ISA] this CPU or this build lacks the ISA; got 'avx512', available: scalar, avx2",
      [] { choose_isa(std::nullopt, "avx512", kOldMachine); });
}

TEST(IsaChoice, UnknownNameIsAnErrorThatListsTheOthers) {
  for (const char* name : {"sse9", "AVX2", "avx2 ", "avx"}) {
    testing::expect_error(ErrorKind::value,
                          std::string("[QUIRE_ISA] no ISA has this name; got '") + name +
                              "', available: scalar, avx2",
                          [name] { choose_isa(std::nullopt, name, kOldMachine); });
  }
}

}  // namespace
}  // namespace quire

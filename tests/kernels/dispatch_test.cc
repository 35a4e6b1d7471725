// Forcing an ISA works, the forced one is the one that runs, and errors list what there is. ctest
// runs this once per ISA with QUIRE_ISA set.
#include "kernels/dispatch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "quire/isa.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

std::string joined_names() {
  std::string names;
  for (const Isa isa : available_isas()) {
    names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  return names;
}

TEST(Dispatch, EnvironmentDecides) {
  const char* asked = std::getenv("QUIRE_ISA");
  if (asked == nullptr || *asked == '\0') {
    EXPECT_EQ(current_isa(), available_isas().back());
    EXPECT_EQ(isa_choice().why, "fastest this CPU has");
    return;
  }
  EXPECT_STREQ(isa_name(current_isa()), asked);
  EXPECT_STREQ(kernels::current_table().name, asked);
  EXPECT_EQ(isa_choice().why, "QUIRE_ISA=" + std::string(asked));
}

TEST(Dispatch, ScalarIsAlwaysThereAndOrderIsSlowToFast) {
  const auto isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::scalar);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
}

TEST(Dispatch, EveryAvailableIsaHasItsTable) {
  for (const Isa isa : available_isas()) {
    const kernels::KernelTable& table = kernels::table_for(isa);
    EXPECT_EQ(table.isa, isa);
    EXPECT_STREQ(table.name, isa_name(isa));
    const bool is_neon = isa == Isa::neon || isa == Isa::neon_bf16;
    const size_t lanes = isa == Isa::scalar ? 1 : is_neon ? 4 : isa == Isa::avx2 ? 8 : 16;
    EXPECT_EQ(table.lanes, lanes) << table.name;
  }
}

TEST(Dispatch, ForcedIsaIsTheOneThatRuns) {
  const Isa before = current_isa();
  for (const Isa isa : available_isas()) {
    const ScopedIsa scope(isa);
    EXPECT_EQ(current_isa(), isa);
    EXPECT_EQ(isa_choice().isa, isa);
    EXPECT_EQ(isa_choice().why, "forced by force_isa");
    EXPECT_EQ(&kernels::current_table(), &kernels::table_for(isa));
  }
  EXPECT_EQ(current_isa(), before);
}

TEST(Dispatch, ScopesNest) {
  const Isa before = current_isa();
  {
    const ScopedIsa outer(available_isas().back());
    {
      const ScopedIsa inner("scalar");
      EXPECT_EQ(current_isa(), Isa::scalar);
    }
    EXPECT_EQ(current_isa(), available_isas().back());
    EXPECT_EQ(isa_choice().why, "forced by force_isa");
  }
  EXPECT_EQ(current_isa(), before);
}

TEST(Dispatch, ForceIsaAndBack) {
  const IsaChoice before = isa_choice();
  force_isa("scalar");
  EXPECT_EQ(current_isa(), Isa::scalar);
  force_isa(std::nullopt);
  EXPECT_EQ(current_isa(), before.isa);
  EXPECT_EQ(isa_choice().why, before.why);
}

TEST(Dispatch, UnknownNameIsRefusedAndChangesNothing) {
  const Isa before = current_isa();
  testing::expect_error(
      ErrorKind::value,
      "[force_isa] no ISA has this name; got 'sse9', available: " + joined_names(),
      [] { force_isa("sse9"); });
  EXPECT_THROW(ScopedIsa("sse9"), Error);
  EXPECT_EQ(current_isa(), before);
}

TEST(Dispatch, IsaThatTheCpuLacksIsRefused) {
  // No machine has both of these.
  const auto isas = available_isas();
  const Isa missing =
      std::find(isas.begin(), isas.end(), Isa::neon) == isas.end() ? Isa::neon : Isa::avx2;
  const std::string rest = " this CPU or this build lacks the ISA; got '" +
                           std::string(isa_name(missing)) + "', available: " + joined_names();
  testing::expect_error(ErrorKind::runtime, "[force_isa]" + rest,
                        [missing] { force_isa(isa_name(missing)); });
  testing::expect_error(ErrorKind::runtime, "[kernels]" + rest,
                        [missing] { kernels::table_for(missing); });
}

}  // namespace
}  // namespace quire

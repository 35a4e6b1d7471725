// Trap and emulate: where the CPU lacks AMX, or this process was not given its registers, each of
// its instructions raises SIGILL, and a handler executes it on software tiles (emulated_tiles.h), a
// set for each thread. So the library's own machine code runs under the tests. Linked into test
// programs only, which thereby answer the library's question whether AMX is there:
// QUIRE_TEST_AMX=emulate in the environment says yes and takes the traps, QUIRE_TEST_AMX=none says
// no, and without it the system is asked. Tests only.
#pragma once
#include <cstdint>

namespace quire::testing {

/// Whether instructions are emulated in this process.
bool amx_is_emulated();

/// What was emulated so far, by all threads. On a CPU that has AMX, loading a configuration and
/// releasing tiles do not trap, and are not counted.
struct TileCounts {
  std::uint64_t loads = 0, stores = 0, zeros = 0, products = 0;  // products: of bf16
  std::uint64_t byte_products = 0;
};
TileCounts emulated_counts();

}  // namespace quire::testing

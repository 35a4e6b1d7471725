// Whether this process may use the tile registers of AMX. Runtime layer.
#pragma once

namespace quire {

/// The CPU has tiles and their bf16 products, and the operating system gives this process the
/// registers. Asks for them, once for all threads: Linux wants to be asked before it makes room for
/// 8 KiB more in the state of a thread, and may refuse.
bool system_gives_amx() noexcept;

/// What the choice of an ISA asks: the same. In a file of its own, which is all that a program
/// which emulates the instructions has to replace (tests/support/amx_trap.h).
bool amx_is_usable() noexcept;

}  // namespace quire

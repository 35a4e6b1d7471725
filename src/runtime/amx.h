// Whether this process may use the tile registers of AMX. Runtime layer.
#pragma once

namespace quire {

/// Whether the CPU has tiles with products of bf16 and of bytes and the operating system lets this
/// process use them. Requests permission, once for all threads: Linux wants to be asked before it
/// reserves another 8 KiB of state per thread, and may refuse.
bool system_gives_amx() noexcept;

/// Used for ISA selection: returns system_gives_amx(). In a file of its own, the only one that a
/// program which emulates the instructions has to replace (tests/support/amx_trap.h).
bool amx_is_usable() noexcept;

}  // namespace quire

// fork_count: distinguishes a process from the one it was forked from. A child has a copy of all
// memory but only the thread that called fork(), so other threads and the locks they held are lost.
// An object that stores the count at construction can tell that its threads belong to another
// process. Runtime layer.
#pragma once
#include <cstdint>

namespace quire {

/// How often fork() was called between the process that loaded the library and this one. Costs a
/// load.
std::uint64_t fork_count() noexcept;

}  // namespace quire

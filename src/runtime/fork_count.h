// fork_count: tells a process from the one it was forked from. A child has a copy of all memory and
// only the thread that forked, so threads, and locks that others held, are gone for good: what
// remembers the count it was made at knows that they were another process's. Runtime layer.
#pragma once
#include <cstdint>

namespace quire {

/// How often fork() was called between the process that loaded the library and this one. Costs a
/// load.
std::uint64_t fork_count() noexcept;

}  // namespace quire

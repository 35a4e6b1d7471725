// Asks the system to back a stretch of memory with large pages. A hint: nothing but speed depends
// on it. Runtime layer.
#pragma once
#include <cstddef>

namespace quire {

/// What a large page is aligned to.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// `memory` is aligned to kHugePageBytes. To be called before the memory is touched; does nothing
/// where the system has no such hint.
void advise_huge_pages(void* memory, std::size_t bytes) noexcept;

}  // namespace quire

// madvise on Linux, nothing elsewhere. Runtime layer.
#include "runtime/huge_pages.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace quire {

void advise_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__)
  // Whole large pages only: the rest of the last one may belong to others. Refused or unknown: as
  // good as not asked.
  (void)madvise(memory, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
#endif
}

}  // namespace quire

// Asks the CPU and the operating system for tile registers. Runtime layer.
#include "runtime/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

namespace quire {

bool system_gives_amx() noexcept {
  __builtin_cpu_init();
  // This also checks XCR0: whether the operating system supports tiles.
  if (!__builtin_cpu_supports("amx-tile") || !__builtin_cpu_supports("amx-bf16") ||
      !__builtin_cpu_supports("amx-int8"))
    return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, Linux 5.16
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace quire
#else
namespace quire {

bool system_gives_amx() noexcept { return false; }

}  // namespace quire
#endif

// Queries the CPU, and holds the process-wide choice of an ISA. Contains no SIMD. The choice is one
// atomic for the process, an exception to the rule against globals: the environment variable is
// global too, and a test must be able to force an ISA for code that does not pass one. A plan reads
// the ISA once, when it is made, and keeps it. Runtime layer.
#include "quire/isa.h"

#include <atomic>
#include <cstdlib>
#include <vector>

#include "isa_list.h"
#include "runtime/amx.h"
#include "runtime/arm_cpu.h"
#include "runtime/isa_choice.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace quire {
namespace {

#if defined(__aarch64__)
// Reported by the kernel; assumed absent elsewhere than on Linux.
bool has_bfdot() {
#if defined(__linux__)
  return arm_has_bf16(getauxval(AT_HWCAP2));
#else
  return false;
#endif
}
#endif

// __builtin_cpu_supports also checks that the operating system saves the wide registers (XCR0).
bool cpu_has(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::scalar:
      return true;
    case Isa::neon:
    case Isa::neon_bf16:
      return false;
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx512;
    case Isa::avx512_bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16") &&
             __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
    case Isa::amx:
      return cpu_has(Isa::avx512_bf16) && amx_is_usable();
  }
  return false;
#elif defined(__aarch64__)
  return isa == Isa::scalar || isa == Isa::neon || (isa == Isa::neon_bf16 && has_bfdot());
#else
  return isa == Isa::scalar;
#endif
}

std::vector<Isa> probe() {
  std::vector<Isa> found;
#define X(name) \
  if (cpu_has(Isa::name)) found.push_back(Isa::name);
  QUIRE_FOR_EACH_ISA(X)
#undef X
  return found;
}

constexpr int kNotForced = -1;
std::atomic<int> g_forced{kNotForced};

// Read once: getenv races with another thread's setenv, and the choice must not change with the
// environment. While QUIRE_ISA is wrong, this throws at every call.
const IsaChoice& unforced_choice() {
  static const IsaChoice choice =
      choose_isa(std::nullopt, std::getenv("QUIRE_ISA"), available_isas());
  return choice;
}

}  // namespace

std::span<const Isa> available_isas() {
  static const std::vector<Isa> isas = probe();
  return isas;
}

Isa current_isa() {
  const int forced = g_forced.load(std::memory_order_relaxed);
  return forced == kNotForced ? unforced_choice().isa : static_cast<Isa>(forced);
}

IsaChoice isa_choice() {
  const int forced = g_forced.load(std::memory_order_relaxed);
  if (forced == kNotForced) return unforced_choice();
  return choose_isa(static_cast<Isa>(forced), nullptr, available_isas());
}

void force_isa(std::optional<std::string_view> name) {
  const int forced =
      name ? static_cast<int>(find_isa("force_isa", *name, available_isas())) : kNotForced;
  g_forced.store(forced, std::memory_order_relaxed);
}

ScopedIsa::ScopedIsa(std::string_view name) : previous_(g_forced.load(std::memory_order_relaxed)) {
  force_isa(name);
}

ScopedIsa::ScopedIsa(Isa isa) : ScopedIsa(isa_name(isa)) {}

ScopedIsa::~ScopedIsa() { g_forced.store(previous_, std::memory_order_relaxed); }

}  // namespace quire

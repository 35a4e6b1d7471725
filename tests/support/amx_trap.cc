// The handler: decodes ldtilecfg, sttilecfg, tilezero, tileloadd, tileloaddt1, tilestored,
// tdpbf16ps, tdpbssd and tilerelease. Anything else is left to what would have happened. Tests
// only.
#include "tests/support/amx_trap.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "runtime/amx.h"
#include "tests/support/emulated_tiles.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <signal.h>
#include <ucontext.h>

namespace quire::testing {
namespace {

std::atomic<std::uint64_t> g_loads{0}, g_stores{0}, g_zeros{0}, g_products{0}, g_byte_products{0};
bool g_emulated = false;
thread_local EmulatedTiles t_tiles;

// An instruction of AMX: VEX prefix of three bytes, map 2, and what follows.
struct Instruction {
  int opcode, prefix, reg, rm, vvvv;  // prefix: none, 66, F3, F2 as 0 to 3
  bool has_memory = false;
  char* address = nullptr;  // base and displacement
  long long index = 0;      // of the second register, times its scale
  int length = 0;
};

long long register_of(const ucontext_t& context, int number) {
  constexpr int kRegisters[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};
  return context.uc_mcontext.gregs[kRegisters[number]];
}

bool decode(const ucontext_t& context, Instruction& out) {
  const auto* const start =
      reinterpret_cast<const unsigned char*>(context.uc_mcontext.gregs[REG_RIP]);
  if (start[0] != 0xc4 || (start[1] & 0x1f) != 2 || (start[2] & 0x84) != 0) return false;
  const int high_x = (start[1] & 0x40) != 0 ? 0 : 8, high_b = (start[1] & 0x20) != 0 ? 0 : 8;
  out.vvvv = ~(start[2] >> 3) & 15;
  out.prefix = start[2] & 3;
  out.opcode = start[3];
  const int mod = start[4] >> 6;
  out.reg = start[4] >> 3 & 7;
  out.rm = start[4] & 7;
  const unsigned char* at = start + 5;
  out.has_memory = mod != 3;
  if (out.has_memory) {
    long long address = 0;
    bool has_base = true, from_next = false;
    int base = out.rm;
    if (out.rm == 4) {
      const int sib = *at++, index = (sib >> 3 & 7) + high_x;
      base = sib & 7;
      if (index != 4) out.index = register_of(context, index) * (1 << (sib >> 6));
      has_base = !(mod == 0 && base == 5);
    } else if (mod == 0 && out.rm == 5) {
      has_base = false;
      from_next = true;
    }
    if (has_base) address = register_of(context, base + high_b);
    std::int32_t displacement = 0;
    if (mod == 1) {
      displacement = static_cast<signed char>(*at++);
    } else if (mod == 2 || !has_base) {
      std::memcpy(&displacement, at, 4);
      at += 4;
    }
    address += displacement;
    if (from_next) address += reinterpret_cast<long long>(at);
    out.address = reinterpret_cast<char*>(address);
  }
  out.length = static_cast<int>(at - start);
  return true;
}

// A CPU with AMX has loaded the configuration itself: the kernel saved it with the registers.
void find_config(const ucontext_t& context) {
  constexpr unsigned kTileConfig = 17;
  unsigned size = 0, offset = 0, ecx = 0, edx = 0;
  if (!__builtin_cpu_supports("amx-tile")) return;
  if (!__get_cpuid_count(0xd, kTileConfig, &size, &offset, &ecx, &edx) || size != 64) return;
  const char* const state = reinterpret_cast<const char*>(context.uc_mcontext.fpregs);
  std::uint64_t saved;
  std::memcpy(&saved, state + 512, 8);  // XSTATE_BV
  EmulatedConfig config;
  if ((saved >> kTileConfig & 1) != 0) std::memcpy(&config, state + offset, 64);
  if (std::memcmp(&config, &t_tiles.config, 64) != 0) t_tiles.configure(config);
}

bool execute(const Instruction& in) {
  constexpr int kNone = 0, k66 = 1, kF3 = 2, kF2 = 3;
  switch (in.opcode) {
    case 0x49:
      if (in.has_memory) {
        EmulatedConfig config;
        if (in.prefix == k66) {
          std::memcpy(in.address + in.index, &t_tiles.config, sizeof(config));
          return true;
        }
        std::memcpy(&config, in.address + in.index, sizeof(config));
        return in.prefix == kNone && t_tiles.configure(config);
      }
      if (in.prefix == kNone) return t_tiles.configure({});
      ++g_zeros;
      return in.prefix == kF2 && t_tiles.zero(in.reg);
    case 0x4b:
      if (!in.has_memory) return false;
      if (in.prefix == kF3) {
        ++g_stores;
        return t_tiles.store(in.reg, in.address, in.index);
      }
      ++g_loads;
      return in.prefix != kNone && t_tiles.load(in.reg, in.address, in.index);
    case 0x5c:
      ++g_products;
      return in.prefix == kF3 && !in.has_memory && t_tiles.multiply_bf16(in.reg, in.rm, in.vvvv);
    case 0x5e:
      ++g_byte_products;
      return in.prefix == kF2 && !in.has_memory && t_tiles.multiply_bytes(in.reg, in.rm, in.vvvv);
    default:
      return false;
  }
}

void handle(int signal, siginfo_t*, void* raw_context) {
  auto& context = *static_cast<ucontext_t*>(raw_context);
  Instruction in{};
  if (decode(context, in)) {
    find_config(context);
    if (execute(in)) {
      context.uc_mcontext.gregs[REG_RIP] += in.length;
      return;
    }
  }
  ::signal(signal, SIG_DFL);  // it comes again, and ends the program
}

bool emulate() {
  struct sigaction action = {};
  action.sa_sigaction = &handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  __builtin_cpu_init();
  g_emulated = sigaction(SIGILL, &action, nullptr) == 0;
  return g_emulated;
}

}  // namespace

bool amx_is_emulated() { return g_emulated; }

TileCounts emulated_counts() { return {g_loads, g_stores, g_zeros, g_products, g_byte_products}; }

}  // namespace quire::testing

namespace quire {

bool amx_is_usable() noexcept {
  const char* const how = std::getenv("QUIRE_TEST_AMX");
  if (how == nullptr) return system_gives_amx();
  return std::string_view(how) == "emulate" && testing::emulate();
}

}  // namespace quire
#else
namespace quire::testing {

bool amx_is_emulated() { return false; }
TileCounts emulated_counts() { return {}; }

}  // namespace quire::testing

namespace quire {

bool amx_is_usable() noexcept { return false; }

}  // namespace quire
#endif

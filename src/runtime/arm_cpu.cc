// Constants from Linux' uapi/asm/hwcap.h and asm/cputype.h. Runtime layer.
#include "runtime/arm_cpu.h"

#include <algorithm>

namespace quire {
namespace {

struct Core {
  std::string_view implementer, part, name;
};

constexpr Core kCores[] = {
    {"0x41", "0xd08", "Arm Cortex-A72"},  {"0x41", "0xd0b", "Arm Cortex-A76"},
    {"0x41", "0xd0c", "Arm Neoverse-N1"}, {"0x41", "0xd40", "Arm Neoverse-V1"},
    {"0x41", "0xd49", "Arm Neoverse-N2"}, {"0x41", "0xd4f", "Arm Neoverse-V2"},
    {"0x41", "0xd84", "Arm Neoverse-V3"}, {"0x41", "0xd8e", "Arm Neoverse-N3"},
    {"0x46", "0x001", "Fujitsu A64FX"},   {"0xc0", "0xac3", "Ampere-1"},
    {"0xc0", "0xac4", "Ampere-1A"}};

struct Bit {
  int word, bit;
  std::string_view name;
};

constexpr Bit kBits[] = {{0, 1, "asimd"}, {0, 10, "asimdhp"}, {0, 20, "asimddp"}, {0, 22, "sve"},
                         {1, 1, "sve2"},  {1, 13, "i8mm"},    {1, 14, "bf16"}};

}  // namespace

std::string arm_core_name(std::string_view implementer, std::string_view part) {
  if (implementer.empty() || part.empty()) return "";
  const auto* core = std::find_if(std::begin(kCores), std::end(kCores), [&](const Core& one) {
    return one.implementer == implementer && one.part == part;
  });
  if (core != std::end(kCores)) return std::string(core->name);
  return "implementer " + std::string(implementer) + " part " + std::string(part);
}

std::vector<std::string> arm_features(std::uint64_t hwcap, std::uint64_t hwcap2) {
  std::vector<std::string> features;
  for (const Bit& one : kBits)
    if (((one.word == 0 ? hwcap : hwcap2) >> one.bit & 1) != 0) features.emplace_back(one.name);
  return features;
}

}  // namespace quire

// What Linux on AArch64 says about a CPU: names of cores from the numbers in /proc/cpuinfo,
// features from the auxiliary vector (which tells the truth under emulation, too). Pure functions
// that are compiled everywhere; nothing is asked here. Runtime layer.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// "Arm Neoverse-V1" of "0x41" and "0xd40" ("CPU implementer" and "CPU part"); of a core that is
/// not in the list the numbers, of empty texts nothing.
std::string arm_core_name(std::string_view implementer, std::string_view part);

/// Those of AT_HWCAP and AT_HWCAP2 that matter here, named as /proc/cpuinfo names them.
std::vector<std::string> arm_features(std::uint64_t hwcap, std::uint64_t hwcap2);

/// Whether AT_HWCAP2 has BFDOT (FEAT_BF16).
constexpr bool arm_has_bf16(std::uint64_t hwcap2) { return (hwcap2 >> 14 & 1) != 0; }

}  // namespace quire

// What Linux on AArch64 reports about a CPU: names of cores from the numbers in /proc/cpuinfo,
// features from the auxiliary vector (which is right under emulation, too). Pure functions that are
// compiled everywhere and query nothing themselves. Runtime layer.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// "Arm Neoverse-V1" for "0x41" and "0xd40" ("CPU implementer" and "CPU part"); the numbers for an
/// unknown core; "" for empty texts.
std::string arm_core_name(std::string_view implementer, std::string_view part);

/// The relevant features of AT_HWCAP and AT_HWCAP2, named as in /proc/cpuinfo.
std::vector<std::string> arm_features(std::uint64_t hwcap, std::uint64_t hwcap2);

/// Whether AT_HWCAP2 has BFDOT (FEAT_BF16).
constexpr bool arm_has_bf16(std::uint64_t hwcap2) { return (hwcap2 >> 14 & 1) != 0; }

}  // namespace quire

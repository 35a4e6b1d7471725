// The parser behind quire::cpu_info, with the place of /proc and /sys as an argument for tests.
// Runtime layer.
#pragma once
#include <string>

#include "quire/cpu_info.h"

namespace quire {

// Fills what <root>/proc/cpuinfo and <root>/sys/devices/system/cpu/cpu0/cache say; the rest keeps
// its default.
CpuInfo read_cpu_info(const std::string& root);

}  // namespace quire

// The parser behind quire::cpu_info, with the location of /proc and /sys as a parameter for tests.
// Runtime layer.
#pragma once
#include <string>

#include "quire/cpu_info.h"

namespace quire {

// Fills what <root>/proc/cpuinfo and <root>/sys/devices/system/cpu/cpu0/cache say; the rest keeps
// its default.
CpuInfo read_cpu_info(const std::string& root);

}  // namespace quire

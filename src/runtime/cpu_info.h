// The parser behind quire::cpu_info, with the location of /proc and /sys as a parameter for tests,
// and what plans ask about caches. Runtime layer.
#pragma once
#include <cstdint>
#include <string>

#include "quire/cpu_info.h"

namespace quire {

// Fills in what <root>/proc/cpuinfo and <root>/sys/devices/system/cpu/cpu0/cache say; the rest
// keeps its defaults.
CpuInfo read_cpu_info(const std::string& root);

// The L2 cache of a core in bytes, asked for once; 0 = not known.
int64_t l2_cache_bytes();

// The L3 cache that a core uses, shared with others, in bytes, asked for once; 0 = not known.
int64_t l3_cache_bytes();

}  // namespace quire

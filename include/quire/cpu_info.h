// A description of this machine for people: `quire info` and the head of a benchmark print it.
// Decides nothing; the choice of an ISA is in quire/isa.h. Public; runtime layer.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quire/export.h"

namespace quire {

struct CpuInfo {
  std::string model = "unknown";  // as the system names it
  int logical_cpus = 1;           // that this process may use
  int cores = 0;                  // physical ones of the machine; 0 = not known
  int64_t l1d_bytes = 0;          // caches as one core sees them; 0 = not known
  int64_t l2_bytes = 0;
  int64_t l3_bytes = 0;
  std::vector<std::string>
      features;  // those that matter here ("avx2", "amx_bf16", "asimd"), if known
};

// Reads /proc and /sys where they exist. Never throws for what is missing.
QUIRE_API CpuInfo cpu_info();

}  // namespace quire

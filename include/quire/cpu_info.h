// A description of this machine for people: `quire info` and the head of a benchmark print it.
// Decides nothing; the choice of an ISA is in quire/isa.h. Public; runtime layer.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quire/export.h"

namespace quire {

struct CpuInfo {
  std::string model = "unknown";  // as the operating system names it
  int logical_cpus = 1;           // usable by this process
  int cores = 0;                  // physical cores of the machine; 0: unknown
  int64_t l1d_bytes = 0;          // caches as seen by one core; 0: unknown
  int64_t l2_bytes = 0;
  int64_t l3_bytes = 0;
  // The relevant ones ("avx2", "amx_bf16", "asimd"), if known.
  std::vector<std::string> features;
};

// Reads /proc and /sys where they exist. Missing information is not an error.
QUIRE_API CpuInfo cpu_info();

}  // namespace quire

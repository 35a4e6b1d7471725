// Reads the description of the CPU from /proc and /sys on Linux; elsewhere asks the C library.
// Runtime layer.
#include "runtime/cpu_info.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "runtime/arm_cpu.h"
#include "runtime/thread_count.h"

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace quire {
namespace {

constexpr std::array<std::string_view, 23> kFeatures = {
    "avx2",        "fma",      "f16c",     "bmi2",     "avx512f",     "avx512bw",
    "avx512cd",    "avx512dq", "avx512vl", "avx_vnni", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd",       "asimdhp",
    "asimddp",     "bf16",     "i8mm",     "sve",      "sve2"};

std::string trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") - first + 1));
}

// x86 has "model name" and "flags"; Arm has "Features" and numbers instead of a name.
void read_proc(const std::string& path, CpuInfo& info) {
  std::ifstream file(path);
  std::string line;
  std::string package, implementer, part;
  std::set<std::pair<std::string, std::string>> cores;  // (package, core in it)
  while (std::getline(file, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = trim(std::string_view(line).substr(0, colon));
    const std::string value = trim(std::string_view(line).substr(colon + 1));
    if (key == "model name" && !value.empty()) {
      info.model = value;
    } else if (key == "CPU implementer") {
      implementer = value;
    } else if (key == "CPU part") {
      part = value;
    } else if (key == "physical id") {
      package = value;
    } else if (key == "core id") {
      cores.emplace(package, value);
    } else if ((key == "flags" || key == "Features") && info.features.empty()) {
      std::istringstream words(value);
      for (std::string word; words >> word;) {
        if (std::find(kFeatures.begin(), kFeatures.end(), word) != kFeatures.end()) {
          info.features.push_back(word);
        }
      }
    }
  }
  info.cores = static_cast<int>(cores.size());
  const std::string core = arm_core_name(implementer, part);
  if (!core.empty() && info.model == "unknown") info.model = core;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return trim(line);
}

// "48K" or "1M", as the kernel writes them; 0 for anything else.
int64_t parse_size(const std::string& text) {
  char* end = nullptr;
  const int64_t number = std::strtoll(text.c_str(), &end, 10);
  if (end == text.c_str() || number < 0 || number > (int64_t{1} << 40)) return 0;
  switch (*end) {
    case '\0':
      return number;
    case 'K':
      return number << 10;
    case 'M':
      return number << 20;
    default:
      return 0;
  }
}

void read_caches(const std::string& root, CpuInfo& info) {
  const std::string folder = root + "/sys/devices/system/cpu/cpu0/cache";
  for (int i = 0;; ++i) {
    const std::string cache = folder + "/index" + std::to_string(i);
    const std::string level = first_line(cache + "/level");
    if (level.empty()) return;
    const int64_t size = parse_size(first_line(cache + "/size"));
    if (first_line(cache + "/type") == "Instruction") continue;
    if (level == "1") info.l1d_bytes = size;
    if (level == "2") info.l2_bytes = size;
    if (level == "3") info.l3_bytes = size;
  }
}

// Where /sys is hidden (some containers), glibc still knows the caches from the CPU itself.
void ask_sysconf([[maybe_unused]] CpuInfo& info) {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  const auto fill = [](int64_t& bytes, int name) {
    if (bytes == 0) bytes = std::max<int64_t>(0, sysconf(name));
  };
  fill(info.l1d_bytes, _SC_LEVEL1_DCACHE_SIZE);
  fill(info.l2_bytes, _SC_LEVEL2_CACHE_SIZE);
  fill(info.l3_bytes, _SC_LEVEL3_CACHE_SIZE);
#endif
}

// Under emulation /proc describes the host; this describes the emulated CPU.
void ask_auxiliary_vector([[maybe_unused]] CpuInfo& info) {
#if defined(__aarch64__) && defined(__linux__)
  info.features = arm_features(getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
#endif
}

}  // namespace

CpuInfo read_cpu_info(const std::string& root) {
  CpuInfo info;
  read_proc(root + "/proc/cpuinfo", info);
  read_caches(root, info);
  return info;
}

namespace {

const CpuInfo& caches() {
  static const CpuInfo known = [] {
    CpuInfo info;
    ask_sysconf(info);
    if (info.l2_bytes == 0 || info.l3_bytes == 0) read_caches("", info);
    return info;
  }();
  return known;
}

}  // namespace

int64_t l2_cache_bytes() { return caches().l2_bytes; }

int64_t l3_cache_bytes() { return caches().l3_bytes; }

CpuInfo cpu_info() {
  CpuInfo info = read_cpu_info("");
  info.logical_cpus = available_cpus();
  ask_sysconf(info);
  ask_auxiliary_vector(info);
  return info;
}

}  // namespace quire

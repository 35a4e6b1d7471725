// Available memory from /proc/meminfo and the limits of control groups (v2 and v1); madvise for
// large pages. Runtime layer.
#include "runtime/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>

#include "quire/error.h"
#include "runtime/fail.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace quire {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

// The number in a file that holds nothing else; kNoLimit for "max" or if there is no such file.
std::int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value && value >= 0 ? value : kNoLimit;
}

std::int64_t system_memory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  std::int64_t kib = 0;
  while (file >> name >> kib) {
    if (name == "MemAvailable:") return saturating_product(kib, 1024);
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kNoLimit;
}

std::int64_t group_memory(const std::string& limit, const std::string& used) {
  const std::int64_t most = number_in(limit), now = number_in(used);
  if (most == kNoLimit || now == kNoLimit) return kNoLimit;
  return std::max<std::int64_t>(0, most - now);
}

}  // namespace

std::int64_t read_available_memory(const std::string& root) {
  const std::string v2 = root + "/sys/fs/cgroup/", v1 = v2 + "memory/";
  return std::min({system_memory(root), group_memory(v2 + "memory.max", v2 + "memory.current"),
                   group_memory(v1 + "memory.limit_in_bytes", v1 + "memory.usage_in_bytes")});
}

std::int64_t available_memory() { return read_available_memory(""); }

std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kNoLimit : product;
}

void require_memory(const char* where, const char* what, std::int64_t bytes) {
  constexpr std::int64_t kAlwaysTried = std::int64_t{64} << 20;  // not worth reading /proc for
  if (bytes <= kAlwaysTried) return;
  const std::int64_t available = available_memory();
  if (bytes <= available) return;
  fail(ErrorKind::runtime, where, "{} needs {}, and {} are available", what, bytes_text(bytes),
       bytes_text(available));
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::string_view kUnits[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return fmt::format("{} bytes", bytes);
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); value /= 1000) ++unit;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

void advise_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__)
  // Whole large pages only: the rest of the last one may belong to other data. The result is
  // ignored: it is only a hint.
  (void)madvise(memory, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
#endif
}

}  // namespace quire

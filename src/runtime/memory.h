// Memory limits and hints. Large results are rejected with an Error before they are allocated,
// because an allocation that succeeds and is then written to may get the process killed; large
// tensors ask the system for large pages. Runtime layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace quire {

/// Bytes that could be allocated and written now: what the system reports as available, or the
/// limit of a control group if that is lower. The largest int64 if neither is known.
std::int64_t available_memory();

/// The same with the location of /proc and /sys as a parameter, for tests.
std::int64_t read_available_memory(const std::string& root);

/// `a * b`, or the largest int64 if that overflows. Neither may be negative.
std::int64_t saturating_product(std::int64_t a, std::int64_t b);

/// Throws Error "[where] what needs 12.3 GB, and 1.0 GB are available" if it does not fit.
void require_memory(const char* where, const char* what, std::int64_t bytes);

/// "512 bytes", "12.3 MB": for texts.
std::string bytes_text(std::int64_t bytes);

/// Alignment of large pages.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// `memory` is aligned to kHugePageBytes. Call it before the memory is touched; does nothing where
/// the system has no such hint.
void advise_huge_pages(void* memory, std::size_t bytes) noexcept;

}  // namespace quire

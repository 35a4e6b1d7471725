// The 64-bit xxHash of bytes: the checksum of saved sequences. Detects accidents, not forgery.
// Cache layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace quire::cache {

std::uint64_t xxh64(std::span<const std::byte> bytes, std::uint64_t seed) noexcept;

}  // namespace quire::cache

// The 64-bit xxHash of bytes: the checksum of saved sequences. Detects accidents, not forgery.
// Cache layer.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace quire::cache {

std::uint64_t xxh64(std::span<const std::byte> bytes, std::uint64_t seed) noexcept;

// The same for bytes that come in pieces.
class Xxh64 {
 public:
  explicit Xxh64(std::uint64_t seed = 0) noexcept;
  void add(std::span<const std::byte> bytes) noexcept;
  std::uint64_t digest() const noexcept;

 private:
  void add_block(const std::byte* block) noexcept;

  std::uint64_t seed_, size_ = 0;
  std::array<std::uint64_t, 4> lanes_;
  std::array<std::byte, 32> rest_{};  // the last size_ % 32 bytes
};

}  // namespace quire::cache

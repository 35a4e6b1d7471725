// xxHash, 64 bits, from its specification: four lanes of 8 bytes, then the rest. Cache layer.
#include "cache/xxh64.h"

#include <array>
#include <bit>
#include <cstring>

namespace quire::cache {
namespace {

constexpr std::uint64_t kPrime1 = 0x9e3779b185ebca87u;
constexpr std::uint64_t kPrime2 = 0xc2b2ae3d27d4eb4fu;
constexpr std::uint64_t kPrime3 = 0x165667b19e3779f9u;
constexpr std::uint64_t kPrime4 = 0x85ebca77c2b2ae63u;
constexpr std::uint64_t kPrime5 = 0x27d4eb2f165667c5u;

static_assert(std::endian::native == std::endian::little);

template <class T>
T load(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t word) noexcept {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

}  // namespace

std::uint64_t xxh64(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  const std::byte* at = bytes.data();
  const std::byte* const end = at + bytes.size();
  std::uint64_t hash = seed + kPrime5;
  if (bytes.size() >= 32) {
    std::array<std::uint64_t, 4> lanes = {seed + kPrime1 + kPrime2, seed + kPrime2, seed,
                                          seed - kPrime1};
    for (; end - at >= 32; at += 32)
      for (std::size_t i = 0; i < 4; ++i)
        lanes[i] = round(lanes[i], load<std::uint64_t>(at + 8 * i));
    hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
           std::rotl(lanes[3], 18);
    for (const std::uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += bytes.size();
  for (; end - at >= 8; at += 8)
    hash = std::rotl(hash ^ round(0, load<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  if (end - at >= 4) {
    hash = std::rotl(hash ^ load<std::uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) hash = std::rotl(hash ^ load<std::uint8_t>(at) * kPrime5, 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace quire::cache

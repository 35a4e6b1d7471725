// xxHash, 64 bits, from its specification: four lanes of 8 bytes, then the rest. Cache layer.
#include "cache/xxh64.h"

#include <algorithm>
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

Xxh64::Xxh64(std::uint64_t seed) noexcept
    : seed_(seed), lanes_{seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1} {}

void Xxh64::add_block(const std::byte* block) noexcept {
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    lanes_[i] = round(lanes_[i], load<std::uint64_t>(block + 8 * i));
}

void Xxh64::add(std::span<const std::byte> bytes) noexcept {
  const std::size_t have = size_ % rest_.size();
  size_ += bytes.size();
  if (have > 0) {
    const auto some = bytes.first(std::min(bytes.size(), rest_.size() - have));
    std::ranges::copy(some, rest_.begin() + static_cast<std::ptrdiff_t>(have));
    bytes = bytes.subspan(some.size());
    if (have + some.size() < rest_.size()) return;
    add_block(rest_.data());
  }
  for (; bytes.size() >= rest_.size(); bytes = bytes.subspan(rest_.size())) add_block(bytes.data());
  std::ranges::copy(bytes, rest_.begin());
}

std::uint64_t Xxh64::digest() const noexcept {
  std::uint64_t hash = seed_ + kPrime5;
  if (size_ >= rest_.size()) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += size_;
  const std::byte* at = rest_.data();
  const std::byte* const end = at + size_ % rest_.size();
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

std::uint64_t xxh64(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  Xxh64 hash(seed);
  hash.add(bytes);
  return hash.digest();
}

}  // namespace quire::cache

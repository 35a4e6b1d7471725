// The format of saved sequences: their headers, and the check of a complete one before anything is
// loaded. Cache layer.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/byte_stream.h"
#include "quire/kv_cache.h"

namespace quire::cache {

struct Sequence;

inline constexpr std::uint32_t kSaveVersion = 2;

struct SequenceHeader {
  std::array<char, 8> magic = {'Q', 'u', 'i', 'r', 'e', 'K', 'V', '\n'};
  std::uint32_t version = kSaveVersion;
  std::uint32_t groups = 0;
  std::int64_t length = 0;
  std::int64_t known = 0;      // how many of the first ids are known
  std::int64_t committed = 0;  // tokens that are not drafts
};
static_assert(sizeof(SequenceHeader) == 40);

// A KVFormat as a number; 0 is plain.
std::uint16_t format_number(const KVFormat& format) noexcept;
// Its name, or "none" for a number that is not a format.
std::string format_name(std::uint16_t number);

// Followed by the indices of its layers, int64, and then the scales that tokens share, f32, of the
// keys and the values of each layer.
struct GroupHeader {
  std::uint8_t dtype = 0;
  std::uint8_t v_in_k = 0;
  std::uint16_t k_format = 0, v_format = 0;
  std::uint16_t zero = 0;
  std::int64_t layers = 0, kv_heads = 0, head_dim = 0, v_head_dim = 0;
  std::int64_t hole_begin = 0, hole_end = 0;  // positions without rows
};
static_assert(sizeof(GroupHeader) == 56);

// Everything known about a sequence before its ids and rows.
struct Saved {
  SequenceHeader sequence;
  std::vector<GroupHeader> groups;
};

// For all sequences of a cache; each has an entry followed by what save writes.
struct AllHeader {
  std::array<char, 8> magic = {'Q', 'u', 'i', 'r', 'e', 'K', 'V', 's'};
  std::uint32_t version = kSaveVersion;
  std::uint32_t zero = 0;
  std::int64_t sequences = 0;
};
static_assert(sizeof(AllHeader) == 24);

struct AllEntry {
  std::uint64_t salt = 0, cache = 0;
  std::uint32_t slot = 0, generation = 0;
};
static_assert(sizeof(AllEntry) == 24);

// Bytes of the headers of a sequence, with their checksum.
std::int64_t header_bytes(const KVCache::State& state);
void put_header(const KVCache::State& state, const Sequence& sequence, ByteWriter& to);
// Throws Error unless it is the header of a sequence with the same groups of layers.
Saved get_header(const KVCache::State& state, ByteReader& from);

// Reads a saved sequence and throws Error unless load would accept it, apart from pages.
void check_saved(const KVCache::State& state, ByteReader& from);
AllHeader get_all_header(ByteReader& from);
AllEntry get_all_entry(ByteReader& from);

}  // namespace quire::cache

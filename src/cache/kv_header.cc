// KVCache: writes the headers of saved sequences, reads them and compares them with the cache.
// Cache layer.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "cache/kv_cache_state.h"
#include "cache/kv_save.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::cache {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are stored as they are");

// Calls visit("k" or "v", scales, layer within the group) for the scales that tokens share.
template <class Visit>
void visit_shared_scales(const LayerGroup& group, const Visit& visit) {
  for (std::size_t layer = 0; layer < group.rows.layers(); ++layer) {
    visit("k", group.rows.k(layer).shared_scales(), layer);
    if (!group.rows.v_in_k()) visit("v", group.rows.v(layer).shared_scales(), layer);
  }
}

void check_equal(const char* where, const char* name, std::int64_t saved, std::int64_t wanted) {
  if (saved != wanted)
    fail(ErrorKind::value, where, "{} must be the cache's; got {}, and the cache has {}", name,
         saved, wanted);
}

void check_positions(const char* where, const SequenceHeader& header, const GroupHeader& group) {
  if (header.length >= 0 && header.known >= 0 && header.known <= header.length &&
      header.committed >= 0 && header.committed <= header.length && group.hole_begin >= 0 &&
      group.hole_begin <= group.hole_end && group.hole_end <= header.length &&
      (group.hole_begin < group.hole_end || group.hole_begin == 0)) {
    return;
  }
  fail(ErrorKind::value, where,
       "positions do not fit; got length {}, {} ids, {} committed and {}..{} released",
       header.length, header.known, header.committed, group.hole_begin, group.hole_end);
}

void check_format(const char* where, const char* name, std::uint16_t saved,
                  const KVFormat& wanted) {
  if (saved == format_number(wanted)) return;
  fail(ErrorKind::value, where, "{} must be the cache's, {}; got {}", name, wanted.name(),
       format_name(saved));
}

// The scales that tokens share must be the cache's: under others the codes are other numbers.
void check_scales(const LayerGroup& group, ByteReader& from) {
  std::vector<std::byte> saved;
  visit_shared_scales(group, [&](const char* name, std::span<const std::byte> scales,
                                 std::size_t layer) {
    saved.resize(scales.size());
    from.get(saved);
    if (!std::ranges::equal(saved, scales))
      fail(ErrorKind::value, from.where(), "{}_scales of layer {} must be the cache's; got others",
           name, group.sizes.layers[layer]);
  });
}

GroupHeader get_group(const LayerGroup& group, ByteReader& from) {
  const KVLayerGroup& sizes = group.sizes;
  const char* const where = from.where();
  GroupHeader header;
  from.get(header);
  if (header.dtype != static_cast<std::uint8_t>(sizes.dtype) || header.zero != 0) {
    fail(ErrorKind::value, where, "dtype must be the cache's, {}; got {}", dtype_name(sizes.dtype),
         header.dtype < kDTypeCount && header.zero == 0
             ? dtype_name(static_cast<DType>(header.dtype))
             : "none");
  }
  check_format(where, "k_format", header.k_format, sizes.k_format);
  check_format(where, "v_format", header.v_format, sizes.v_format);
  check_equal(where, "v_in_k", header.v_in_k, sizes.v_in_k ? 1 : 0);
  check_equal(where, "layers", header.layers, std::ssize(sizes.layers));
  check_equal(where, "kv_heads", header.kv_heads, sizes.kv_heads);
  check_equal(where, "head_dim", header.head_dim, sizes.head_dim);
  check_equal(where, "v_head_dim", header.v_head_dim, sizes.v_head_dim);
  for (const std::int64_t wanted : sizes.layers) {
    std::int64_t layer = 0;
    from.get(layer);
    check_equal(where, "the layers of a group", layer, wanted);
  }
  check_scales(group, from);
  return header;
}

}  // namespace

std::uint16_t format_number(const KVFormat& format) noexcept {
  const auto bits = [](auto value, int shift) { return static_cast<unsigned>(value) << shift; };
  return static_cast<std::uint16_t>(bits(format.storage, 0) | bits(format.scale, 4) |
                                    bits(format.offset, 7) | bits(format.place, 10) |
                                    bits(format.hadamard, 12));
}

std::string format_name(std::uint16_t number) {
  for (const std::string& name : KVFormat::names()) {
    for (const bool hadamard : {false, true}) {
      const KVFormat format = KVFormat::of(name, hadamard);
      if (format_number(format) == number) return format.name();
    }
  }
  return number == 0 ? "plain" : fmt::format("format {}", number);
}

std::int64_t header_bytes(const KVCache::State& state) {
  std::size_t scales = 0;
  for (const LayerGroup& group : state.groups)
    visit_shared_scales(group, [&](const char*, std::span<const std::byte> some, std::size_t) {
      scales += some.size();
    });
  return static_cast<std::int64_t>(sizeof(SequenceHeader) +
                                   state.groups.size() * sizeof(GroupHeader) +
                                   state.places.size() * sizeof(std::int64_t) + scales + 8);
}

void put_header(const KVCache::State& state, const Sequence& sequence, ByteWriter& to) {
  SequenceHeader header;
  header.groups = static_cast<std::uint32_t>(state.groups.size());
  header.length = sequence.length;
  header.known = std::ssize(sequence.ids);
  header.committed = KVCache::State::committed_of(sequence);
  to.put(header);
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    const KVLayerGroup& sizes = state.groups[g].sizes;
    to.put(GroupHeader{.dtype = static_cast<std::uint8_t>(sizes.dtype),
                       .v_in_k = sizes.v_in_k,
                       .k_format = format_number(sizes.k_format),
                       .v_format = format_number(sizes.v_format),
                       .layers = std::ssize(sizes.layers),
                       .kv_heads = sizes.kv_heads,
                       .head_dim = sizes.head_dim,
                       .v_head_dim = sizes.v_head_dim,
                       .hole_begin = sequence.tables[g].hole_begin,
                       .hole_end = sequence.tables[g].hole_end});
    to.put(std::as_bytes(std::span(sizes.layers)));
    visit_shared_scales(state.groups[g], [&](const char*, std::span<const std::byte> scales,
                                             std::size_t) { to.put(scales); });
  }
  to.put_checksum();
}

Saved get_header(const KVCache::State& state, ByteReader& from) {
  const char* const where = from.where();
  Saved saved;
  from.get(saved.sequence);
  if (saved.sequence.magic != SequenceHeader{}.magic)
    fail(ErrorKind::value, where, "these bytes are not a saved sequence");
  if (saved.sequence.version != kSaveVersion)
    fail(ErrorKind::value, where, "version must be {}; got {}", kSaveVersion,
         saved.sequence.version);
  check_equal(where, "groups", saved.sequence.groups, std::ssize(state.groups));
  saved.groups.reserve(state.groups.size());
  for (const LayerGroup& group : state.groups) saved.groups.push_back(get_group(group, from));
  from.check_checksum();
  for (const GroupHeader& group : saved.groups) check_positions(where, saved.sequence, group);
  return saved;
}

AllHeader get_all_header(ByteReader& from) {
  AllHeader header;
  from.get(header);
  if (header.magic != AllHeader{}.magic)
    fail(ErrorKind::value, from.where(), "these bytes are not the sequences of a cache");
  if (header.version != kSaveVersion)
    fail(ErrorKind::value, from.where(), "version must be {}; got {}", kSaveVersion,
         header.version);
  from.check_checksum();
  return header;
}

AllEntry get_all_entry(ByteReader& from) {
  AllEntry entry;
  from.get(entry);
  from.check_checksum();
  return entry;
}

}  // namespace quire::cache

// KVCache: saves a sequence as bytes and loads it. The header is followed by the ids, then for each
// layer the keys and the values, [kv_heads, tokens, dim]: the format does not depend on pages.
// Cache layer.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "cache/kv_cache_state.h"
#include "cache/xxh64.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/memory.h"

namespace quire {

using cache::Sequence;

namespace {

constexpr std::array<char, 8> kKvMagic = {'Q', 'u', 'i', 'r', 'e', 'K', 'V', '\n'};
constexpr std::uint32_t kVersion = 1;
constexpr const char* kLoad = "KVCache::load";

static_assert(std::endian::native == std::endian::little, "numbers are stored as they are");

struct Header {
  std::array<char, 8> magic = kKvMagic;
  std::uint32_t version = kVersion;
  std::uint32_t dtype = 0;
  std::int64_t layers = 0, kv_heads = 0, head_dim = 0, v_head_dim = 0;
  std::int64_t begin = 0, length = 0;  // rows of the positions between
  std::int64_t known = 0;              // ids of the first so many tokens
  std::uint64_t checksum = 0;          // of what comes before it, and of what comes after
};
static_assert(sizeof(Header) == 80);

std::uint64_t checksum(const Header& header, std::span<const std::byte> rest) {
  const auto before = std::as_bytes(std::span(&header, 1)).first(offsetof(Header, checksum));
  return cache::xxh64(rest, cache::xxh64(before, 0));
}

// Bytes after the header; the largest number where that does not fit.
std::int64_t payload_bytes(const Header& header, DType dtype) {
  const std::int64_t heads = saturating_product(header.layers, header.kv_heads);
  const std::int64_t row = saturating_product(
      heads, (header.head_dim + header.v_head_dim) * static_cast<std::int64_t>(dtype_size(dtype)));
  const std::int64_t rows = saturating_product(header.length - header.begin, row);
  const std::int64_t ids = saturating_product(header.known, 8);
  return rows > std::numeric_limits<std::int64_t>::max() - ids
             ? std::numeric_limits<std::int64_t>::max()
             : rows + ids;
}

// Calls visit(bytes in the page, how many) for everything a sequence holds, in the order of saving.
template <class State, class Visit>
void visit_rows(State& state, const Sequence& sequence, const Visit& visit) {
  const std::int64_t page_size = state.options.page_size;
  for (std::size_t layer = 0; layer < state.k.size(); ++layer) {
    for (auto* tensor : {&state.k[layer], &state.v[layer]}) {
      const std::int64_t row_bytes =
          tensor->shape()[3] * static_cast<std::int64_t>(dtype_size(state.options.dtype));
      for (std::int64_t head = 0; head < state.options.kv_heads; ++head) {
        for (std::int64_t at = sequence.begin; at < sequence.length;) {
          const std::int64_t slot = at % page_size;
          const std::int64_t n = std::min(page_size - slot, sequence.length - at);
          const std::int32_t page = sequence.pages[at / page_size];
          visit(cache::page_rows(*tensor, page, head) + slot * row_bytes, n * row_bytes);
          at += n;
        }
      }
    }
  }
}

void check_equal(const char* name, std::int64_t saved, std::int64_t wanted) {
  if (saved != wanted)
    fail(ErrorKind::value, kLoad, "{} must be the cache's; got {}, and the cache has {}", name,
         saved, wanted);
}

Header read_header(const KVCacheOptions& options, std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof header)
    fail(ErrorKind::value, kLoad, "a saved sequence has at least {} bytes; got {}", sizeof header,
         bytes.size());
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kKvMagic)
    fail(ErrorKind::value, kLoad, "these bytes are not a saved sequence");
  if (header.version != kVersion)
    fail(ErrorKind::value, kLoad, "version must be {}; got {}", kVersion, header.version);
  if (header.checksum != checksum(header, bytes.subspan(sizeof header)))
    fail(ErrorKind::value, kLoad, "the checksum does not fit: the bytes were changed or cut");
  if (header.dtype != static_cast<std::uint32_t>(options.dtype)) {
    fail(ErrorKind::value, kLoad, "dtype must be the cache's, {}; got {}",
         dtype_name(options.dtype),
         header.dtype < kDTypeCount ? dtype_name(static_cast<DType>(header.dtype)) : "none");
  }
  check_equal("layers", header.layers, options.layers);
  check_equal("kv_heads", header.kv_heads, options.kv_heads);
  check_equal("head_dim", header.head_dim, options.head_dim);
  check_equal("v_head_dim", header.v_head_dim, options.v_head_dim);
  if (header.begin < 0 || header.length < header.begin || header.known < 0 ||
      header.known > (header.begin > 0 ? 0 : header.length)) {
    fail(ErrorKind::value, kLoad, "positions do not fit; got begin {}, length {} and {} ids",
         header.begin, header.length, header.known);
  }
  const std::int64_t wanted = payload_bytes(header, options.dtype);
  const std::int64_t got = bytes.size() - sizeof header;
  if (got != wanted)
    fail(ErrorKind::value, kLoad, "{} bytes must follow the header; got {}", wanted, got);
  return header;
}

// A page table has an entry for each page before `begin`, too, of which the file holds nothing: a
// few bytes could ask for any amount of memory.
void check_table(const Header& header, std::int64_t n_pages, std::size_t bytes) {
  constexpr std::int64_t kAlways = std::int64_t{16} << 20, kPerByte = 64;
  const std::int64_t table = saturating_product(n_pages, sizeof(std::int32_t));
  if (table <= kAlways || table / kPerByte <= static_cast<std::int64_t>(bytes)) return;
  fail(ErrorKind::value, kLoad,
       "{} bytes cannot bring a sequence whose rows begin at {}: its page table would take {}",
       bytes, header.begin, bytes_text(table));
}

}  // namespace

std::vector<std::byte> KVCache::save(SequenceId id) const {
  const State& state = *state_;
  const Sequence& sequence = state.get("KVCache::save", id);
  if (sequence.written < sequence.length) {
    fail(ErrorKind::value, "KVCache::save",
         "rows from position {} on are not written in all layers", sequence.written);
  }
  Header header;
  header.dtype = static_cast<std::uint32_t>(state.options.dtype);
  header.layers = state.options.layers;
  header.kv_heads = state.options.kv_heads;
  header.head_dim = state.options.head_dim;
  header.v_head_dim = state.options.v_head_dim;
  header.begin = sequence.begin;
  header.length = sequence.length;
  header.known = sequence.begin > 0 ? 0 : sequence.known;
  const std::int64_t payload = payload_bytes(header, state.options.dtype);
  require_memory("KVCache::save", "the bytes of the sequence", payload);
  std::vector<std::byte> bytes(sizeof header + static_cast<std::size_t>(payload));
  std::byte* to = bytes.data() + sizeof header;
  const auto put = [&](const void* from, std::size_t size) {
    std::memcpy(to, from, size);
    to += size;
  };
  const std::int64_t page_size = state.options.page_size;
  for (std::int64_t at = 0; at < header.known; at += page_size) {
    const std::int64_t n = std::min(page_size, header.known - at);
    const std::int32_t page = sequence.pages[at / page_size];
    put(state.pool.index().ids(page).data(), static_cast<std::size_t>(n) * 8);
  }
  visit_rows(state, sequence, put);
  header.checksum = checksum(header, std::span(bytes).subspan(sizeof header));
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

SequenceId KVCache::load(std::span<const std::byte> bytes, std::uint64_t salt) {
  State& state = *state_;
  const Header header = read_header(state.options, bytes);
  const std::int64_t page_size = state.options.page_size;
  const std::int64_t n_pages = state.pages_for(header.length), first = header.begin / page_size;
  check_table(header, n_pages, bytes.size());
  if (n_pages - first > state.pool.available()) {
    fail(ErrorKind::runtime, kLoad, "out of pages: {} needed, {} free and {} cached",
         n_pages - first, state.pool.free(), state.pool.cached());
  }
  require_memory(kLoad, "the page table", saturating_product(n_pages, 4));
  Sequence& sequence = state.prepare_slot(n_pages);
  const SequenceId id = state.use_slot(salt);
  sequence.pages.assign(first, kNoPage);
  sequence.begin = sequence.length = sequence.known = header.begin;
  const std::byte* from = bytes.data() + sizeof header;
  while (std::ssize(sequence.pages) < n_pages) sequence.pages.push_back(state.pool.take());
  // Slots before `begin`, of a file written with other pages, will never hold anything.
  if (n_pages > first) state.pool.set_fill(sequence.pages[first], header.begin % page_size);
  state.lengthen(sequence, {id, header.length - header.begin});
  for (std::int64_t at = 0; at < header.known; at += page_size) {
    const std::int64_t n = std::min(page_size, header.known - at);
    const std::int32_t page = sequence.pages[at / page_size];
    std::memcpy(state.pool.ids(page).data(), from, static_cast<std::size_t>(n) * 8);
    from += n * 8;
  }
  visit_rows(state, sequence, [&](std::byte* to, std::size_t size) {
    std::memcpy(to, from, size);
    from += size;
  });
  sequence.known = header.known;
  sequence.written = header.length;
  state.chain_pages(sequence);
  return id;
}

}  // namespace quire

// ByteWriter and ByteReader: write saved sequences to a ByteSink and read them from a ByteSource,
// with checksums. Cache layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "cache/xxh64.h"
#include "quire/kv_cache.h"

namespace quire::cache {

// Buffers small pieces.
class ByteWriter {
 public:
  explicit ByteWriter(ByteSink sink);

  void put(std::span<const std::byte> bytes);
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void put(const T& value) {
    put(std::as_bytes(std::span(&value, 1)));
  }
  // Writes the checksum of everything since the last one.
  void put_checksum();
  void finish();

 private:
  ByteSink sink_;
  Xxh64 sum_;
  std::vector<std::byte> waiting_;
};

// Never reads more bytes than it was asked for.
class ByteReader {
 public:
  // `where` begins error texts.
  ByteReader(const char* where, ByteSource source) : where_(where), source_(source) {}

  // Throws Error if there are not enough bytes.
  void get(std::span<std::byte> bytes);
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void get(T& value) {
    get(std::as_writable_bytes(std::span(&value, 1)));
  }
  void skip(std::size_t size);
  // Throws Error unless the next bytes are the checksum of everything read since the last one.
  void check_checksum();
  const char* where() const { return where_; }

 private:
  const char* where_;
  ByteSource source_;
  Xxh64 sum_;
};

}  // namespace quire::cache

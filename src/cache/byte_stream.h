// ByteWriter and ByteReader: bytes of saved sequences on their way to a ByteSink and from a
// ByteSource, with checksums of what has passed. Cache layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "cache/xxh64.h"
#include "quire/kv_cache.h"

namespace quire::cache {

// Small pieces are collected.
class ByteWriter {
 public:
  explicit ByteWriter(ByteSink sink);

  void put(std::span<const std::byte> bytes);
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void put(const T& value) {
    put(std::as_bytes(std::span(&value, 1)));
  }
  // The checksum of all that was put since the last one.
  void put_checksum();
  void finish();

 private:
  ByteSink sink_;
  Xxh64 sum_;
  std::vector<std::byte> waiting_;
};

// Reads no byte more than it is asked for.
class ByteReader {
 public:
  // `where` begins the texts of errors.
  ByteReader(const char* where, ByteSource source) : where_(where), source_(source) {}

  // Throws Error where there are not so many.
  void get(std::span<std::byte> bytes);
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void get(T& value) {
    get(std::as_writable_bytes(std::span(&value, 1)));
  }
  void skip(std::size_t size);
  // Throws Error unless the checksum of all that was read since the last one comes next.
  void check_checksum();
  const char* where() const { return where_; }

 private:
  const char* where_;
  ByteSource source_;
  Xxh64 sum_;
};

}  // namespace quire::cache

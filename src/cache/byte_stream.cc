// Writes bytes to a sink and reads them from a source. Cache layer.
#include "cache/byte_stream.h"

#include <algorithm>
#include <array>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::cache {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 16;

}  // namespace

ByteWriter::ByteWriter(ByteSink sink) : sink_(sink) { waiting_.reserve(kPiece); }

void ByteWriter::put(std::span<const std::byte> bytes) {
  sum_.add(bytes);
  if (waiting_.size() + bytes.size() > kPiece) finish();
  if (bytes.size() >= kPiece) {
    sink_(bytes);
  } else {
    waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
  }
}

void ByteWriter::put_checksum() {
  put(sum_.digest());
  sum_ = Xxh64();
}

void ByteWriter::finish() {
  if (!waiting_.empty()) sink_(waiting_);
  waiting_.clear();
}

void ByteReader::get(std::span<std::byte> bytes) {
  for (std::span<std::byte> rest = bytes; !rest.empty();) {
    const std::size_t n = source_(rest);
    if (n == 0 || n > rest.size()) {
      fail(ErrorKind::value, where_, "the bytes end too early: {} more are needed", rest.size());
    }
    rest = rest.subspan(n);
  }
  sum_.add(bytes);
}

void ByteReader::skip(std::size_t size) {
  std::array<std::byte, 4096> some;
  while (size > 0) {
    const std::size_t n = std::min(size, some.size());
    get(std::span(some).first(n));
    size -= n;
  }
}

void ByteReader::check_checksum() {
  const std::uint64_t wanted = sum_.digest();
  std::uint64_t found = 0;
  get(found);
  sum_ = Xxh64();
  if (found != wanted)
    fail(ErrorKind::value, where_, "the checksum does not fit: the bytes were changed or cut");
}

}  // namespace quire::cache

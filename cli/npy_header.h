// The header of a .npy file: element type, byte order, memory order and shape. Reads no elements.
// Command line layer.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "quire/dtype.h"
#include "quire/error.h"
#include "quire/shape.h"

namespace quire {

/// How an element is stored in the file.
enum class NpyEncoding : std::uint8_t {
  kSame,  // as in memory
  kU16,   // widened to i32
  kU32,   // widened to i64
  kU64,   // i64, if it fits
};

struct NpyHeader {
  DType dtype = DType::f32;  // of the resulting tensor
  NpyEncoding encoding = NpyEncoding::kSame;
  bool is_big_endian = false;
  bool is_fortran_order = false;
  Shape shape;
  std::size_t data_begin = 0;  // bytes before the first element
};

/// Bytes of an element in the file.
std::size_t npy_element_size(const NpyHeader& header) noexcept;

/// Throws Error "[read_npy] 'name' what".
[[noreturn]] void refuse_npy(std::string_view name, std::string_view what,
                             ErrorKind kind = ErrorKind::value);

/// Enough bytes for npy_header_bytes.
inline constexpr std::size_t kNpyPrelude = 12;

/// The size of the whole header, from its first bytes. Throws Error(value) for what is not a .npy
/// file.
std::size_t npy_header_bytes(std::span<const char> first, std::string_view name);

/// Parses the beginning of a file of format version 1, 2 or 3. `name` is the file's, for error
/// texts. Throws Error(value) for everything that is not exactly such a header, and Error(type) for
/// an element type that no tensor has.
NpyHeader parse_npy_header(std::span<const char> bytes, std::string_view name);

/// A version 1 header for row-major elements, padded to a multiple of 64 bytes as NumPy does. bf16
/// is `<V2`, as ml_dtypes writes it.
std::string npy_header(DType dtype, const Shape& shape);

}  // namespace quire

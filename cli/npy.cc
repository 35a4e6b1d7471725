// Elements of .npy files; npy_header.cc handles the header before them. Command line layer.
#include "npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <ostream>
#include <system_error>
#include <utility>
#include <vector>

#include "npy_header.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/memory.h"

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are copied as they are");

// The system's reason: ": No such file or directory". Empty if there is none.
std::string reason(int error) {
  return error == 0 ? "" : ": " + std::generic_category().message(error);
}

// Bytes of elements according to the header; the largest int64 if that overflows.
std::int64_t promised_bytes(const NpyHeader& header, std::string_view name) {
  const std::int64_t size = npy_element_size(header);
  try {
    return saturating_product(element_count(header.shape), size);
  } catch (const Error&) {
    refuse_npy(name, fmt::format("has shape {}, which is too large", to_string(header.shape)));
  }
}

// The file must have exactly as many elements as the shape says.
void check_length(const NpyHeader& header, std::size_t bytes, std::string_view name) {
  if (std::cmp_equal(promised_bytes(header, name), bytes)) return;
  refuse_npy(name, fmt::format("has shape {}, {} bytes an element, and {} bytes of elements",
                               to_string(header.shape), npy_element_size(header), bytes));
}

// Appends bytes of the stream until there are `size` of them or the stream ends. Memory grows with
// the bytes received, not with those promised.
void read_until(std::istream& stream, std::size_t size, std::vector<char>& bytes) {
  constexpr std::size_t kLeast = std::size_t{1} << 20;
  while (bytes.size() < size && stream) {
    const std::size_t had = bytes.size();
    bytes.resize(std::min(size, std::max(2 * had, kLeast)));
    stream.read(bytes.data() + had, static_cast<std::streamsize>(bytes.size() - had));
    bytes.resize(had + stream.gcount());
  }
}

// Reads an array, no further than its header promises: a pipe or a device may never end. `size`:
// the size of the file, if known.
std::vector<char> read_array(std::istream& stream, std::optional<std::uintmax_t> size,
                             std::string_view name) {
  std::vector<char> bytes;
  read_until(stream, kNpyPrelude, bytes);
  read_until(stream, npy_header_bytes(bytes, name), bytes);
  const NpyHeader header = parse_npy_header(bytes, name);
  const std::int64_t promised = promised_bytes(header, name);
  if (size.has_value()) check_length(header, *size - header.data_begin, name);
  require_memory("read_npy", "the array", promised);
  const std::size_t all = header.data_begin + promised;
  read_until(stream, all, bytes);
  if (bytes.size() == all && stream.peek() != std::istream::traits_type::eof()) {
    refuse_npy(name, fmt::format("goes on after the {} bytes of elements that its shape {} has",
                                 promised, to_string(header.shape)));
  }
  return bytes;
}

template <class From, class To>
void widen(const char* from, Tensor& to, std::string_view name) {
  for (std::int64_t i = 0; i < to.numel(); ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof(From), sizeof(From));
    if (std::cmp_greater(value, std::numeric_limits<To>::max()))
      refuse_npy(name, fmt::format("holds {}, which does not fit into i64", value));
    to.data_as<To>()[i] = static_cast<To>(value);
  }
}

void convert(const NpyHeader& header, const char* from, Tensor& to, std::string_view name) {
  const std::size_t bytes = to.numel() * dtype_size(to.dtype());
  switch (header.encoding) {
    case NpyEncoding::kU16:
      return widen<std::uint16_t, std::int32_t>(from, to, name);
    case NpyEncoding::kU32:
      return widen<std::uint32_t, std::int64_t>(from, to, name);
    case NpyEncoding::kU64:
      return widen<std::uint64_t, std::int64_t>(from, to, name);
    case NpyEncoding::kSame:
      break;
  }
  if (bytes == 0) return;
  std::memcpy(to.data(), from, bytes);
  // A bool must be 0 or 1; a file may hold other bytes.
  if (to.dtype() != DType::boolean) return;
  auto* values = static_cast<unsigned char*>(to.data());
  std::transform(values, values + bytes, values,
                 [](unsigned char c) -> unsigned char { return c != 0; });
}

std::vector<char> swapped(std::span<const char> bytes, std::size_t size) {
  std::vector<char> result(bytes.begin(), bytes.end());
  for (std::size_t i = 0; i < result.size(); i += size)
    std::reverse(result.data() + i, result.data() + i + size);
  return result;
}

}  // namespace

Tensor parse_npy(std::span<const char> bytes, std::string_view name) {
  const NpyHeader header = parse_npy_header(bytes, name);
  std::span<const char> elements = bytes.subspan(header.data_begin);
  check_length(header, elements.size(), name);
  std::vector<char> other_order;
  if (header.is_big_endian) {
    other_order = swapped(elements, npy_element_size(header));
    elements = other_order;
  }
  Shape stored = header.shape;  // the last axis lies closest in memory
  if (header.is_fortran_order) std::reverse(stored.begin(), stored.end());
  Tensor values = Tensor::empty(stored, header.dtype);
  convert(header, elements.data(), values, name);
  if (!header.is_fortran_order || stored.rank() < 2) return values;
  std::vector<std::int64_t> axes;
  for (std::size_t i = stored.rank(); i-- > 0;) axes.push_back(static_cast<std::int64_t>(i));
  return contiguous(std::as_const(values).view().permute(axes));
}

Tensor read_npy(const std::string& path) {
  const auto refuse = [&](int error) {
    fail(ErrorKind::runtime, "read_npy", "cannot read '{}'{}", path, reason(error));
  };
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) refuse(errno);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) refuse(EISDIR);
  std::optional<std::uintmax_t> size;  // a pipe has none, and files generated on the fly
                                       // report 0
  if (std::filesystem::is_regular_file(path, error)) {
    const std::uintmax_t known = std::filesystem::file_size(path, error);
    if (!error && known > 0) size = known;
  }
  const std::vector<char> bytes = read_array(file, size, path);
  if (file.bad()) refuse(errno);
  return parse_npy(bytes, path);
}

void write_npy(std::ostream& stream, const ConstTensorView& view) {
  const Tensor copy = view.is_contiguous() ? Tensor() : contiguous(view);
  stream << npy_header(view.dtype(), view.shape());
  if (view.numel() == 0) return;
  stream.write(static_cast<const char*>(view.is_contiguous() ? view.data() : copy.data()),
               static_cast<std::streamsize>(view.numel()) *
                   static_cast<std::streamsize>(dtype_size(view.dtype())));
}

}  // namespace quire

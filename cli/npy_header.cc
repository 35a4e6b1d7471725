// Reads and writes the header of .npy files. Command line layer.
#include "npy_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "runtime/fail.h"

namespace quire {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
// NumPy itself refuses headers of more than 10,000 bytes unless told that they are trusted.
constexpr std::size_t kMaxHeader = 65536;

struct ElementType {
  std::string_view code;  // without its byte order
  DType dtype;
  NpyEncoding encoding = NpyEncoding::kSame;
};

constexpr ElementType kTypes[] = {
    {"f4", DType::f32},
    {"f8", DType::f64},
    {"f2", DType::f16},
    {"V2", DType::bf16},
    {"i1", DType::i8},
    {"u1", DType::u8},
    {"i2", DType::i16},
    {"i4", DType::i32},
    {"i8", DType::i64},
    {"b1", DType::boolean},
    {"u2", DType::i32, NpyEncoding::kU16},
    {"u4", DType::i64, NpyEncoding::kU32},
    {"u8", DType::i64, NpyEncoding::kU64},
};

std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 40)) result += c >= ' ' && c <= '~' ? c : '?';
  return result + (text.size() > 40 ? "..." : "");
}

// The dictionary of a header: three keys, each once, in any order. Never reads past its end.
class DictionaryReader {
 public:
  DictionaryReader(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  void read(NpyHeader& header) {
    expect('{');
    std::array<bool, 3> seen{};
    while (!accept('}')) {
      const std::string_view key = quoted();
      const std::size_t which = std::ranges::find(kKeys, key) - kKeys.begin();
      if (which == kKeys.size()) wrong(fmt::format("unknown key '{}'", printable(key)));
      if (seen[which]) wrong(fmt::format("key '{}' stands twice", key));
      seen[which] = true;
      expect(':');
      if (which == 0) read_type(header);
      if (which == 1) header.is_fortran_order = truth();
      if (which == 2) header.shape = tuple();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    for (std::size_t i = 0; i < kKeys.size(); ++i)
      if (!seen[i]) wrong(fmt::format("key '{}' is missing", kKeys[i]));
    skip_space();
    if (at_ != text_.size()) wrong("something follows the '}'");
  }

 private:
  static constexpr std::array<std::string_view, 3> kKeys = {"descr", "fortran_order", "shape"};

  [[noreturn]] void wrong(const std::string& what) {
    refuse_npy(name_,
               fmt::format("has a broken header: {} (byte {} of the dictionary)", what, at_));
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t'))
      ++at_;
  }
  bool accept(char wanted) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) wrong(fmt::format("expected '{}'", wanted));
  }

  std::string_view quoted() {
    skip_space();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) wrong("expected a text");
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) wrong("a text does not end");
    const std::string_view result = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return result;
  }

  bool truth() {
    skip_space();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return word == "True";
    }
    wrong("expected True or False");
  }

  std::int64_t number() {
    skip_space();
    std::int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error == std::errc::result_out_of_range) wrong("a size is too large");
    if (error != std::errc() || value < 0) wrong("expected a size of at least 0");
    at_ += end - begin;
    return value;
  }

  Shape tuple() {
    expect('(');
    Shape shape;
    while (!accept(')')) {
      const std::int64_t size = number();
      if (shape.rank() == kMaxRank)
        refuse_npy(name_, fmt::format("has more than {} axes, the most a tensor has", kMaxRank));
      shape.push_back(size);
      const bool more = accept(',');
      if (!more && shape.rank() == 1) wrong("expected ',': a tuple of one number is (n,)");
      if (more) continue;
      expect(')');
      break;
    }
    return shape;
  }

  void read_type(NpyHeader& header) {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[')
      refuse_npy(name_, "has records of several fields; a tensor has one dtype", ErrorKind::type);
    const std::string_view descr = quoted();
    const char order = descr.empty() ? '?' : descr[0];
    const auto* type =
        std::ranges::find(kTypes, descr.substr(descr.empty() ? 0 : 1), &ElementType::code);
    const bool is_order = std::string_view("<>|=").find(order) != std::string_view::npos;
    if (type == std::end(kTypes) || !is_order) {
      refuse_npy(
          name_,
          fmt::format("has elements of type '{}'; there are f2, f4, f8, V2 (bf16), i1 to i8, u1 "
                      "to u8 and b1",
                      printable(descr)),
          ErrorKind::type);
    }
    header.dtype = type->dtype;
    header.encoding = type->encoding;
    header.is_big_endian = order == '>';
  }

  std::string_view text_, name_;
  std::size_t at_ = 0;
};

std::size_t little_endian(std::span<const char> bytes) {
  std::size_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

}  // namespace

void refuse_npy(std::string_view name, std::string_view what, ErrorKind kind) {
  fail(kind, "read_npy", "'{}' {}", name, what);
}

std::size_t npy_element_size(const NpyHeader& header) noexcept {
  switch (header.encoding) {
    case NpyEncoding::kU16:
      return 2;
    case NpyEncoding::kU32:
      return 4;
    case NpyEncoding::kU64:
    case NpyEncoding::kSame:
      break;
  }
  return dtype_size(header.dtype);
}

std::size_t npy_header_bytes(std::span<const char> first, std::string_view name) {
  const std::string_view text(first.data(), first.size());
  if (!text.starts_with(kNpyMagic))
    refuse_npy(name, "is no .npy file: it does not begin with \\x93NUMPY");
  if (text.size() < kNpyMagic.size() + 2) refuse_npy(name, "ends inside its header");
  const int version = static_cast<unsigned char>(text[6]);
  if (version < 1 || version > 3 || text[7] != 0) {
    refuse_npy(name, fmt::format("has format version {}.{}; versions 1.0, 2.0 and 3.0 are read",
                                 version, static_cast<unsigned char>(text[7])));
  }
  const std::size_t width = version == 1 ? 2 : 4, begin = kNpyMagic.size() + 2 + width;
  if (text.size() < begin) refuse_npy(name, "ends inside its header");
  const std::size_t length = little_endian(first.subspan(begin - width, width));
  if (length > kMaxHeader) {
    refuse_npy(name, fmt::format("has a header of {} bytes; more than {} are refused", length,
                                 kMaxHeader));
  }
  return begin + length;
}

NpyHeader parse_npy_header(std::span<const char> bytes, std::string_view name) {
  const std::size_t end = npy_header_bytes(bytes, name);
  if (bytes.size() < end) refuse_npy(name, "ends inside its header");
  const std::size_t begin = bytes[6] == 1 ? kNpyPrelude - 2 : kNpyPrelude;
  NpyHeader header;
  DictionaryReader(std::string_view(bytes.data() + begin, end - begin), name).read(header);
  header.data_begin = end;
  return header;
}

std::string npy_header(DType dtype, const Shape& shape) {
  const auto* type = std::ranges::find(kTypes, dtype, &ElementType::dtype);
  const bool has_order = dtype_size(dtype) > 1;
  std::string sizes;
  for (const std::int64_t size : shape)
    sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", size);
  if (shape.rank() == 1) sizes += ",";
  std::string text = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}",
                                 has_order ? '<' : '|', type->code, sizes);
  const std::size_t before = kNpyMagic.size() + 4;
  text.append(63 - (before + text.size()) % 64, ' ');
  text += '\n';
  std::string header(kNpyMagic);
  header += {1, 0, static_cast<char>(text.size() & 255), static_cast<char>(text.size() >> 8)};
  return header + text;
}

}  // namespace quire

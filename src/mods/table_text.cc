// Parses tables written as text, for programs in which people type them. Mods layer.
#include <algorithm>
#include <charconv>
#include <vector>

#include "quire/mods.h"
#include "runtime/float_env.h"

namespace quire::mods {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.emplace_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

template <class T>
std::optional<T> whole_number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "1, 1, 2": i64 if all are integers, otherwise f32.
std::optional<Buffer> listed(std::string_view list) {
  std::vector<std::int64_t> integers;
  std::vector<float> floats;
  for (const std::string& part : split_at_commas(list)) {
    const auto integer = whole_number<std::int64_t>(part);
    const auto real = whole_number<double>(part);
    if (!real.has_value()) return std::nullopt;
    if (integer.has_value()) integers.push_back(*integer);
    floats.push_back(static_cast<float>(*real));
  }
  return integers.size() == floats.size() ? Buffer(integers) : Buffer(floats);
}

// "i64[2048]": only the shape.
std::optional<Buffer> declared(DType dtype, const std::vector<std::string>& texts) {
  Shape shape;
  for (const std::string& text : texts) {
    const auto size = whole_number<std::int64_t>(text);
    if (!size.has_value() || *size < 0) return std::nullopt;
    shape.push_back(*size);
  }
  return Buffer::declare(dtype, shape);
}

}  // namespace

std::optional<std::pair<std::string, Buffer>> read_table(std::string_view text,
                                                         const GallerySizes& at) {
  const FloatEnv float_env;
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) return std::nullopt;
  const std::string name(trimmed(text.substr(0, equals)));
  if (name.empty()) return std::nullopt;
  const auto named = [&](std::optional<Buffer> buffer) {
    return buffer.has_value() ? std::optional(std::pair(name, *std::move(buffer))) : std::nullopt;
  };
  const std::string_view what = text.substr(equals + 1);
  const std::size_t open = what.find('['), close = what.find(']');
  if (open == std::string_view::npos) return named(listed(what));
  if (close == std::string_view::npos || close < open) return std::nullopt;
  const DType dtype = parse_dtype(std::string(trimmed(what.substr(0, open))));
  const std::string_view inside = trimmed(what.substr(open + 1, close - open - 1));
  const std::vector<std::string> shape =
      inside.empty() ? std::vector<std::string>() : split_at_commas(inside);
  const std::string_view rest = trimmed(what.substr(close + 1));
  if (rest.empty()) return named(declared(dtype, shape));
  if (rest[0] != ':') return std::nullopt;
  GalleryEntry filled;  // reuses how the gallery makes its tables
  filled.tables.push_back({name, dtype, shape, std::string(trimmed(rest.substr(1)))});
  return filled.buffers(at).front();
}

}  // namespace quire::mods

// Formulas, sizes and buffers from a command line. Command line layer.
#include "formula_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "npy.h"
#include "number_option.h"
#include "quire/buffer.h"
#include "quire/error.h"

namespace quire::cli {
namespace {

[[noreturn]] void bad_buffer(const std::string& text) {
  throw CLI::ValidationError("--buffer",
                             fmt::format("must look like doc=doc.npy, doc=1,1,2, doc=i64[2048] or "
                                         "\"doc=i64[2048]: kv_idx // 512\"; got '{}'",
                                         text));
}

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(' ') + 1 - begin));
}

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
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

// "1, 1, 2": i64 if all are integers, else f32.
Buffer listed_buffer(const std::string& whole, const std::string& list) {
  std::vector<std::int64_t> integers;
  std::vector<float> floats;
  for (const std::string& part : split_at_commas(list)) {
    const auto integer = whole_number<std::int64_t>(part);
    const auto real = whole_number<float>(part);
    if (!real.has_value()) bad_buffer(whole);
    if (integer.has_value()) integers.push_back(*integer);
    floats.push_back(*real);
  }
  return integers.size() == floats.size() ? Buffer(integers) : Buffer(floats);
}

Shape sizes_of(const std::string& whole, const std::vector<std::string>& texts) {
  Shape shape;
  for (const std::string& text : texts) {
    const auto size = whole_number<std::int64_t>(text);
    if (!size.has_value() || *size < 0) bad_buffer(whole);
    shape.push_back(*size);
  }
  return shape;
}

// "doc=doc.npy", "doc=i64[2048]", "doc=i64[kv_len]: kv_idx // 512" or "doc=1, 1, 2".
std::pair<std::string, Buffer> read_buffer(const std::string& text,
                                           const mods::GallerySizes& sizes) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) bad_buffer(text);
  const std::string name = trimmed(std::string_view(text).substr(0, equals));
  if (text.ends_with(".npy"))
    return {name, Buffer(read_npy(trimmed(std::string_view(text).substr(equals + 1))))};
  const std::size_t open = text.find('[', equals), close = text.find(']', equals);
  if (open == std::string::npos) return {name, listed_buffer(text, text.substr(equals + 1))};
  if (close == std::string::npos || close < open) bad_buffer(text);
  const std::string type = trimmed(std::string_view(text).substr(equals + 1, open - equals - 1));
  const std::string_view inside = std::string_view(text).substr(open + 1, close - open - 1);
  const std::vector<std::string> shape =
      trimmed(inside).empty() ? std::vector<std::string>() : split_at_commas(inside);
  const std::string rest = trimmed(std::string_view(text).substr(close + 1));
  if (rest.empty()) return {name, Buffer::declare(parse_dtype(type), sizes_of(text, shape))};
  if (rest[0] != ':') bad_buffer(text);
  mods::GalleryEntry filled;  // its tables are made in the same way
  filled.tables.push_back({name, parse_dtype(type), shape, trimmed(rest.substr(1))});
  return filled.buffers(sizes).front();
}

}  // namespace

void add_buffer_option(CLI::App& command, std::vector<std::string>& buffers) {
  command
      .add_option("--buffer", buffers,
                  "What a formula reads by name; as often as needed:\n"
                  "  doc=doc.npy      the array in a file\n"
                  "  doc=1,1,2,2      these numbers: i64, or f32 with a point\n"
                  "  \"doc=i32[4096]: kv_idx // 512\"    filled by a formula of\n"
                  "                   kv_idx (the last axis), q_idx (the one\n"
                  "                   before it), h and b, and of the sizes\n"
                  "                   kv_len, q_len, heads and batch\n"
                  "  doc=i32[4096]    no contents: enough for explain")
      ->type_name("NAME=WHAT")
      ->allow_extra_args(false);
}

CLI::Option* add_formula_arguments(CLI::App& command, FormulaArguments& arguments,
                                   const mods::GallerySizes& defaults) {
  CLI::Option* formula =
      command
          .add_option("formula", arguments.formula,
                      "e.g. \"score + slopes[h] * (kv_idx - q_idx)\", or @name of\n"
                      "the gallery (quire draw --list)")
          ->type_name("");
  add_buffer_option(command, arguments.buffers);
  const auto size = [&](const char* name, std::optional<std::int64_t>& value, const char* what,
                        std::int64_t otherwise) {
    add_number(command, name, value, what)->default_str(std::to_string(otherwise));
  };
  size("--batch", arguments.batch, "b runs below this", defaults.batch);
  size("--heads", arguments.heads, "h runs below this", defaults.heads);
  size("--q", arguments.q_len, "q_idx runs below this", defaults.q_len);
  size("--kv", arguments.kv_len, "kv_idx runs below this", defaults.kv_len);
  return formula;
}

FormulaSource read_formula(const FormulaArguments& arguments, const mods::GallerySizes& defaults) {
  FormulaSource source;
  const bool named = arguments.formula.starts_with('@');
  if (named) source.name = arguments.formula.substr(1);
  const mods::GalleryEntry* entry = named ? &mods::gallery_entry(source.name) : nullptr;
  const mods::GallerySizes& otherwise = named ? entry->sizes : defaults;
  source.sizes.batch = arguments.batch.value_or(otherwise.batch);
  source.sizes.heads = arguments.heads.value_or(otherwise.heads);
  source.sizes.q_len = arguments.q_len.value_or(otherwise.q_len);
  source.sizes.kv_len = arguments.kv_len.value_or(otherwise.kv_len);
  source.text = named ? entry->full_text(source.sizes) : arguments.formula;
  if (named) source.buffers = entry->buffers(source.sizes);
  for (const std::string& text : arguments.buffers) {
    auto [name, buffer] = read_buffer(text, source.sizes);
    const auto same = std::ranges::find(source.buffers, name, &NamedBuffers::value_type::first);
    if (same != source.buffers.end() && named)
      same->second = buffer;
    else
      source.buffers.emplace_back(name, buffer);
  }
  return source;
}

Formula parse_formula(const FormulaSource& source) {
  try {
    return Formula::parse(source.text, source.buffers);
  } catch (const Error& error) {
    const std::string text = error.what(), begin = "[parse] unknown name '";
    if (!text.starts_with(begin)) throw;
    const std::string name =
        text.substr(begin.size(), text.find('\'', begin.size()) - begin.size());
    if (source.text.find(name + "[") == std::string::npos) throw;
    throw Error(error.kind(),
                fmt::format("{}\n  if {} is a buffer, give it: --buffer {}=file.npy, or "
                            "--buffer \"{}=i32[4096]: kv_idx // 512\"",
                            text, name, name, name));
  }
}

}  // namespace quire::cli

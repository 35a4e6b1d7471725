// Makes mods from the entries of the gallery: evaluates parameters, fills tables, then parses the
// formula or calls the library function. Mods layer.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "mods/arguments.h"
#include "mods/gallery_parse.h"
#include "mods/library_calls.h"
#include "quire/error.h"
#include "quire/evaluate.h"
#include "quire/mods.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire::mods {
namespace {

// The values of a text at each position of [batch, heads, q, kv], in f64, which represents every
// int that a table or parameter may need.
Tensor values_of(const std::string& text, const NamedBuffers& buffers, const Shape& shape) {
  return evaluate(ScoreMod(Formula::parse(text, buffers)), Tensor(shape, DType::f64));
}

// A number as the formula language writes it: an int stays an int, a float a float.
std::string literal(double value, ValueType type) {
  if (type != ValueType::kFloat) return fmt::format("{}", static_cast<std::int64_t>(value));
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

bool uses(std::string_view text, std::string_view name) {
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (std::size_t at = text.find(name); at != std::string_view::npos;
       at = text.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end])))
      return true;
  }
  return false;
}

// The names that the texts of one entry may use, with their values for given sizes.
class Names {
 public:
  Names(const GalleryEntry& entry, const GallerySizes& at) {
    const std::array<std::pair<const char*, std::int64_t>, 4> sizes = {
        {{"q_len", at.q_len}, {"kv_len", at.kv_len}, {"heads", at.heads}, {"batch", at.batch}}};
    for (const auto& [name, value] : sizes) {
      check_at_least("gallery", name, value, 1);
      values_.emplace_back(name, std::to_string(value));
    }
    for (const GalleryEntry::Parameter& parameter : entry.parameters) {
      const ValueType type = Formula::parse(bind(parameter.text)).type();
      values_.emplace_back(parameter.name, literal(number(parameter.text), type));
    }
  }

  /// The value of a text that uses these names.
  double number(const std::string& text) const {
    return values_of(bind(text), {}, {1, 1, 1, 1}).at<double>({0, 0, 0, 0});
  }

  /// Puts statements before the text that bind the names it uses.
  std::string bind(const std::string& text) const {
    std::string bound;
    for (const auto& [name, value] : values_)
      if (uses(text, name)) bound += fmt::format("{} = {}; ", name, value);
    return bound + text;
  }

 private:
  std::vector<std::pair<std::string, std::string>> values_;
};

Buffer fill(const GalleryEntry::Table& table, const Names& names, const NamedBuffers& earlier) {
  Shape shape;
  for (const std::string& size : table.shape)
    shape.push_back(static_cast<std::int64_t>(names.number(size)));
  Shape places = shape;
  while (places.rank() < 4) places.insert(0, 1);
  const Tensor values = values_of(names.bind(table.text), earlier, places);
  return Buffer(to(values, table.dtype).reshape(shape), {.name = table.name});
}

void check_kind(const GalleryEntry& entry, GalleryEntry::Kind wanted) {
  if (entry.kind == wanted) return;
  const bool is_mask = entry.kind == GalleryEntry::Kind::kMask;
  fail(ErrorKind::value, "gallery", "'{}' is a {} mod, not a {} mod", entry.name,
       is_mask ? "mask" : "score", is_mask ? "score" : "mask");
}

NamedBuffers fill_tables(const GalleryEntry& entry, const Names& names) {
  NamedBuffers filled;
  for (const GalleryEntry::Table& table : entry.tables)
    filled.emplace_back(table.name, fill(table, names, filled));
  return filled;
}

// The formula of an entry that is a function of the library.
Formula call(const GalleryEntry& entry, const GallerySizes& at) {
  const Names names(entry, at);
  const NamedBuffers tables = fill_tables(entry, names);
  LibraryCall call = parse_call(entry.function);
  for (const std::string& argument : call.arguments) {
    const auto table = std::ranges::find(tables, argument, &NamedBuffers::value_type::first);
    if (table != tables.end())
      call.tables.push_back(table->second);
    else
      call.numbers.push_back(names.number(argument));
  }
  return call_library(call);
}

}  // namespace

std::string GalleryEntry::full_text(const GallerySizes& at) const {
  const FloatEnv float_env;
  return function.empty() ? Names(*this, at).bind(text) : call(*this, at).to_string();
}

NamedBuffers GalleryEntry::buffers(const GallerySizes& at) const {
  const FloatEnv float_env;
  return function.empty() ? fill_tables(*this, Names(*this, at)) : call(*this, at).named_buffers();
}

MaskMod GalleryEntry::mask_mod(const GallerySizes& at) const {
  const FloatEnv float_env;
  check_kind(*this, Kind::kMask);
  return function.empty() ? MaskMod::parse(full_text(at), buffers(at)) : MaskMod(call(*this, at));
}

ScoreMod GalleryEntry::score_mod(const GallerySizes& at) const {
  const FloatEnv float_env;
  check_kind(*this, Kind::kScore);
  return function.empty() ? ScoreMod::parse(full_text(at), buffers(at)) : ScoreMod(call(*this, at));
}

std::span<const GalleryEntry> gallery() {
  const FloatEnv float_env;
  static const std::vector<GalleryEntry> entries = [] {
    std::vector<GalleryEntry> all = parse_gallery(kGalleryText);
    for (GalleryEntry& entry : all)
      if (!entry.function.empty()) entry.text = entry.full_text(entry.sizes);
    return all;
  }();
  return entries;
}

const GalleryEntry& gallery_entry(std::string_view name) {
  const FloatEnv float_env;
  const std::span<const GalleryEntry> entries = gallery();
  const auto found = std::ranges::find(entries, name, &GalleryEntry::name);
  if (found != entries.end()) return *found;
  std::string names;
  for (const GalleryEntry& entry : entries)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
  fail(ErrorKind::value, "gallery", "no entry '{}'; there are {}", name, names);
}

}  // namespace quire::mods

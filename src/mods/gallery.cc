// Entries of the gallery become mods: numbers for the parameters, tensors for the tables, a parsed
// formula. Layer: mods.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "mods/arguments.h"
#include "mods/gallery_parse.h"
#include "mods/gallery_text.h"
#include "quire/error.h"
#include "quire/evaluate.h"
#include "quire/mods.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire::mods {
namespace {

// The values of a text at each place of [batch, heads, q, kv], in f64, which holds every int that
// a table or parameter can want.
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

// The names that the texts of one entry may use, with their numbers for some sizes.
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
      const std::string text = bind(parameter.text);
      const double value = values_of(text, {}, {1, 1, 1, 1}).at<double>({0, 0, 0, 0});
      values_.emplace_back(parameter.name, literal(value, Formula::parse(text).type()));
    }
  }

  /// The text behind statements that bind the names it uses.
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
    shape.push_back(static_cast<std::int64_t>(
        values_of(names.bind(size), {}, {1, 1, 1, 1}).at<double>({0, 0, 0, 0})));
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

}  // namespace

std::string GalleryEntry::full_text(const GallerySizes& at) const {
  const FloatEnv float_env;
  return Names(*this, at).bind(text);
}

NamedBuffers GalleryEntry::buffers(const GallerySizes& at) const {
  const FloatEnv float_env;
  const Names names(*this, at);
  NamedBuffers filled;
  for (const Table& table : tables) filled.emplace_back(table.name, fill(table, names, filled));
  return filled;
}

MaskMod GalleryEntry::mask_mod(const GallerySizes& at) const {
  const FloatEnv float_env;
  check_kind(*this, Kind::kMask);
  return MaskMod::parse(full_text(at), buffers(at));
}

ScoreMod GalleryEntry::score_mod(const GallerySizes& at) const {
  const FloatEnv float_env;
  check_kind(*this, Kind::kScore);
  return ScoreMod::parse(full_text(at), buffers(at));
}

std::span<const GalleryEntry> gallery() {
  const FloatEnv float_env;
  static const std::vector<GalleryEntry> entries = parse_gallery(kGalleryText);
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

// Splits the file into entries, and entries into fields. Mods layer.
#include "mods/gallery_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::mods {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// The parts between the separators, trimmed.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// One field: the word before the colon, and what follows, continuation lines included.
struct Field {
  int line;
  std::string_view key;
  std::string value;
};

class Reader {
 public:
  explicit Reader(std::string_view text) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      ++line_;
      take_line(text.substr(begin, end - begin));
      begin = end + 1;
    }
    finish_entry();
  }
  std::vector<GalleryEntry> entries;

 private:
  [[noreturn]] static void fail(int line, const std::string& what) {
    quire::fail(ErrorKind::value, "gallery", "line {}: {}", line, what);
  }

  void take_line(std::string_view line) {
    if (trim(line).empty() || line[0] == '#') return;
    if (line[0] == '[') {
      finish_entry();
      if (line.back() != ']') fail(line_, "an entry begins with its name in [ ]");
      entries.emplace_back().name = line.substr(1, line.size() - 2);
      entry_line_ = line_;
      return;
    }
    if (line[0] == ' ') {
      if (fields_.empty()) fail(line_, "there is no field to continue");
      fields_.back().value += fmt::format("\n{}", trim(line));
      return;
    }
    const std::size_t colon = line.find(':');
    if (entries.empty() || colon == std::string_view::npos)
      fail(line_, fmt::format("expected [name] or field: value; got {}", line));
    fields_.push_back({line_, line.substr(0, colon), std::string(trim(line.substr(colon + 1)))});
  }

  void finish_entry() {
    if (entries.empty()) return;
    GalleryEntry& entry = entries.back();
    for (const Field& field : fields_) set_field(entry, field);
    const auto count = [&](const char* key) {
      return std::ranges::count(fields_, key, &Field::key);
    };
    for (const char* key : {"kind", "about", "reference", "sizes"})
      check_one(entry, key, count(key));
    check_one(entry, "formula' or 'function", count("formula") + count("function"));
    if (std::ranges::count(entries, entry.name, &GalleryEntry::name) > 1)
      fail(entry_line_, fmt::format("the name '{}' stands twice", entry.name));
    fields_.clear();
  }

  void check_one(const GalleryEntry& entry, const char* key, std::ptrdiff_t count) const {
    if (count != 1)
      fail(entry_line_,
           fmt::format("entry '{}' must have one field '{}'; got {}", entry.name, key, count));
  }

  static void set_field(GalleryEntry& entry, const Field& field) {
    if (field.key == "kind") {
      if (field.value != "mask" && field.value != "score")
        fail(field.line, fmt::format("kind must be mask or score; got {}", field.value));
      entry.kind = field.value == "mask" ? GalleryEntry::Kind::kMask : GalleryEntry::Kind::kScore;
    } else if (field.key == "about") {
      entry.description = field.value;
    } else if (field.key == "reference") {
      entry.reference = field.value;
    } else if (field.key == "sizes") {
      set_sizes(entry.sizes, field);
    } else if (field.key == "let") {
      const auto [name, text] = assignment(field);
      entry.parameters.push_back({std::string(name), std::string(text)});
    } else if (field.key == "table") {
      entry.tables.push_back(table_of(field));
    } else if (field.key == "formula") {
      entry.text = field.value;
    } else if (field.key == "function") {
      entry.function = field.value;
    } else {
      fail(field.line, fmt::format("unknown field '{}'", field.key));
    }
  }

  static void set_sizes(GallerySizes& sizes, const Field& field) {
    for (const std::string_view part : split(field.value, ',')) {
      const std::vector<std::string_view> sides = split(part, '=');
      std::int64_t value = 0;
      const std::string_view digits = sides.size() == 2 ? sides[1] : std::string_view();
      const auto [end, code] = std::from_chars(digits.begin(), digits.end(), value);
      std::int64_t* target = sides[0] == "q_len"    ? &sizes.q_len
                             : sides[0] == "kv_len" ? &sizes.kv_len
                             : sides[0] == "heads"  ? &sizes.heads
                             : sides[0] == "batch"  ? &sizes.batch
                                                    : nullptr;
      if (target == nullptr || code != std::errc() || end != digits.end() || value < 1)
        fail(field.line, fmt::format("sizes are q_len = N, kv_len, heads, batch; got {}", part));
      *target = value;
    }
  }

  // name = text, split at the first "=".
  static std::pair<std::string_view, std::string_view> assignment(const Field& field) {
    const std::string_view value = field.value;
    const std::size_t equals = value.find('=');
    if (equals == std::string_view::npos)
      fail(field.line, fmt::format("{} needs '='; got {}", field.key, value));
    return {trim(value.substr(0, equals)), trim(value.substr(equals + 1))};
  }

  // name dtype[size, size] = text
  static GalleryEntry::Table table_of(const Field& field) {
    const auto [left, text] = assignment(field);
    const std::size_t blank = left.find(' '), open = left.find('[');
    if (blank == std::string_view::npos || open == std::string_view::npos || open < blank ||
        left.back() != ']')
      fail(field.line, fmt::format("a table is name dtype[sizes] = formula; got {}", field.value));
    GalleryEntry::Table table;
    table.name = left.substr(0, blank);
    table.dtype = parse_dtype(trim(left.substr(blank, open - blank)));
    for (const std::string_view size : split(left.substr(open + 1, left.size() - open - 2), ','))
      table.shape.emplace_back(size);
    table.text = text;
    return table;
  }

  int line_ = 0;
  int entry_line_ = 0;
  std::vector<Field> fields_;  // of the entry being read
};

}  // namespace

std::vector<GalleryEntry> parse_gallery(std::string_view text) {
  return std::move(Reader(text).entries);
}

}  // namespace quire::mods

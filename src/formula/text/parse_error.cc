// Line and caret for text of any content, UTF-8 included. Formula layer.
#include "formula/text/parse_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace quire::formula {
namespace {

constexpr std::size_t kColumns = 72;        // of text in one line, without the indent of 2
constexpr std::size_t kColumnsBefore = 48;  // columns before the position, if both sides are long
constexpr std::string_view kCut = "...";

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Bytes of the character at `i`; 1 where it is not UTF-8.
std::size_t character_size(std::string_view text, std::size_t i) {
  const auto lead = static_cast<unsigned char>(text[i]);
  const std::size_t size = lead >= 0xf0 && lead < 0xf8   ? 4
                           : lead >= 0xe0 && lead < 0xf0 ? 3
                           : lead >= 0xc2 && lead < 0xe0 ? 2
                                                         : 1;
  for (std::size_t k = 1; k < size; ++k)
    if (i + k >= text.size() || !is_continuation(text[i + k])) return 1;
  return size;
}

// Where the character before `i` begins.
std::size_t previous_character(std::string_view text, std::size_t i) {
  for (std::size_t size = 4; size > 1; --size)
    if (i >= size && character_size(text, i - size) == size) return i - size;
  return i - 1;
}

char shown(char c) {
  if (c == '\t') return ' ';
  return c >= ' ' && c <= '~' ? c : '?';
}

struct Window {
  std::string line;
  std::size_t caret = 0;  // column
};

Window window_around(std::string_view text, std::size_t place) {
  const auto at_begin = [&](std::size_t i) { return i == 0 || text[i - 1] == '\n'; };
  const auto at_end = [&](std::size_t i) { return i == text.size() || text[i] == '\n'; };
  std::size_t begin = place, end = place, before = 0, after = 0;
  const auto widen_left = [&](std::size_t limit) {
    for (; before < limit && !at_begin(begin); ++before) begin = previous_character(text, begin);
  };
  widen_left(kColumnsBefore);
  for (; before + after < kColumns && !at_end(end); ++after) end += character_size(text, end);
  widen_left(kColumns - std::min(after, kColumns));

  Window window;
  const bool cut_left = !at_begin(begin), cut_right = !at_end(end);
  if (cut_left) window.line = kCut;
  window.caret = window.line.size() + before;
  for (std::size_t i = begin; i < end; i += character_size(text, i)) window.line += shown(text[i]);
  if (cut_right) window.line += kCut;
  return window;
}

}  // namespace

void fail_at(std::string_view text, std::size_t place, ErrorKind kind, const std::string& message) {
  const Window window = window_around(text, std::min(place, text.size()));
  throw Error(
      kind, fmt::format("[parse] {}\n  {}\n  {:>{}}", message, window.line, '^', window.caret + 1));
}

std::string quoted(std::string_view name) {
  constexpr std::size_t kLongest = 40;
  std::string text = "'";
  for (const char c : name.substr(0, kLongest)) text += shown(c);
  return text + (name.size() > kLongest ? "...'" : "'");
}

std::string describe_character(std::string_view text, std::size_t place) {
  const char c = text[place];
  const auto byte = static_cast<unsigned char>(c);
  if (c > ' ' && c <= '~') return fmt::format("character '{}'", c);
  const std::size_t size = character_size(text, place);
  if (size == 1 && byte >= 0x80) return fmt::format("byte 0x{:02x}", byte);
  std::uint32_t code = size == 1 ? byte : byte & (0x7fu >> size);
  for (std::size_t k = 1; k < size; ++k)
    code = code << 6 | (static_cast<unsigned char>(text[place + k]) & 0x3f);
  return fmt::format("character U+{:04X}", code);
}

}  // namespace quire::formula

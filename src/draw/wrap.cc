// Counts UTF-8 characters, not bytes. Draw layer.
#include "draw/wrap.h"

namespace quire::drawing {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Bytes of the first `characters` characters.
std::size_t prefix_bytes(const std::string& text, std::size_t characters) {
  std::size_t bytes = 0;
  while (bytes < text.size() && (characters > 0 || continues_character(text[bytes])))
    if (!continues_character(text[bytes++])) --characters;
  return bytes;
}

}  // namespace

std::vector<std::string> wrap(const std::string& text, std::size_t most, std::size_t lines) {
  std::vector<std::string> result;
  std::string rest = text;
  while (prefix_bytes(rest, most) < rest.size()) {
    if (result.size() + 1 == lines) {
      rest = rest.substr(0, prefix_bytes(rest, most - 3)) + "...";
      break;
    }
    const std::size_t cut = prefix_bytes(rest, most), space = rest.rfind(' ', cut);
    const std::size_t end = space == std::string::npos || space == 0 ? cut : space;
    result.push_back(rest.substr(0, end));
    rest.erase(0, end + (end == cut && rest[end] != ' ' ? 0 : 1));
  }
  result.push_back(rest);
  return result;
}

}  // namespace quire::drawing

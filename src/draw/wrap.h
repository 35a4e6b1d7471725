// Wraps long titles and captions. Draw layer.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace quire::drawing {

/// Lines of at most `most` characters, broken at spaces if possible; the rest after `lines` lines
/// is replaced by "...". UTF-8 sequences stay whole.
std::vector<std::string> wrap(const std::string& text, std::size_t most, std::size_t lines);

}  // namespace quire::drawing

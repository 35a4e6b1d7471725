// The checksum of the words that BlockMask::encode writes, for code that creates or edits such
// words. Mask layer.
#pragma once
#include <cstdint>
#include <span>

namespace quire::mask {

/// Of all words but the first two: the number they begin with, and the checksum itself.
std::int64_t words_checksum(std::span<const std::int64_t> words);

}  // namespace quire::mask

// The checksum of the words that BlockMask::encode writes, for code that creates or edits such
// words. Mask layer.
#pragma once
#include <cstdint>
#include <span>

namespace quire::mask {

/// Over all words except the first two: the magic number and the checksum itself.
std::int64_t words_checksum(std::span<const std::int64_t> words);

}  // namespace quire::mask

// Any numbers as the words of a block mask: BlockMask::decode refuses them with an Error, or makes
// a mask that encode writes down, in every code, as words of the same mask.
#include "mask/mask_words.h"

#include <cstring>
#include <vector>

#include "fuzz/targets.h"
#include "quire/block_mask.h"
#include "quire/error.h"

namespace quire::fuzz {

void mask_words(Bytes bytes) {
  std::vector<std::int64_t> words(bytes.size() / sizeof(std::int64_t));
  if (words.empty()) return;
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(std::int64_t));
  // The checksum finds accidents; what is behind it must stand by itself.
  if (words.size() > 2) words[1] = mask::words_checksum(words);
  try {
    const std::int64_t count = words.size();
    const BlockMask mask = BlockMask::decode(ConstTensorView(words.data(), DType::i64, {count}));
    // Few blocks may stand in lengths that are huge: then a dense code is, too.
    constexpr std::int64_t kManyWords = 1 << 20;
    const bool is_small = BlockMask::dense_words(mask.batch(), mask.heads(), mask.q_blocks(),
                                                 mask.kv_blocks()) <= kManyWords;
    for (const BlockCode code : {BlockCode::kShort, BlockCode::kDense, BlockCode::kRuns})
      if (is_small || code == BlockCode::kRuns)
        check(BlockMask::decode(mask.encode(code)).same_blocks(mask), "words make the same mask");
  } catch (const Error&) {
  }
}

}  // namespace quire::fuzz

// Describes a BlockMaskReport and its mask. Command line layer.
#include "explain_mask.h"

#include <fmt/format.h>

#include <array>
#include <set>

#include "computed_share.h"
#include "quire/block_mask.h"
#include "quire/error.h"

namespace quire::cli {
namespace {

struct BlockCounts {
  std::int64_t planes = 0;                // distinct ones
  std::array<std::int64_t, 4> of_kind{};  // blocks of all planes, by BlockKind
};

BlockCounts count_blocks(const BlockMask& mask) {
  BlockCounts counts;
  std::set<std::int64_t> seen;
  for (std::int64_t b = 0; b < mask.batch(); ++b) {
    for (std::int64_t h = 0; h < mask.heads(); ++h) {
      if (!seen.insert(mask.plane(b, h)).second) continue;
      ++counts.planes;
      std::int64_t listed = 0;
      for (std::int64_t row = 0; row < mask.q_blocks(); ++row) {
        for (const BlockRun& run : mask.runs(b, h, row)) {
          counts.of_kind[static_cast<std::size_t>(run.kind)] += run.length;
          listed += run.length;
        }
      }
      counts.of_kind[0] += mask.q_blocks() * mask.kv_blocks() - listed;
    }
  }
  return counts;
}

std::string without_data(const Formula& formula) {
  std::string names;
  for (const Buffer& buffer : formula.buffers())
    if (!buffer.has_data()) names += (names.empty() ? "" : ", ") + buffer.name();
  return names;
}

}  // namespace

std::string explain_mask(const Formula& formula, const ExplainOptions& sizes, std::int64_t block) {
  if (formula.type() != ValueType::kBool)
    throw Error(ErrorKind::value, "[explain] --mask is for masks; the formula is a score mod");
  std::string text = fmt::format("block mask: {} queries x {} keys in blocks of {} x {}\n",
                                 sizes.q_len, sizes.kv_len, block, block);
  if (const std::string names = without_data(formula); !names.empty()) {
    return text + fmt::format(
                      "  not proved: that takes the contents of {0}; give them as in\n"
                      "  --buffer \"name=i32[kv_len]: kv_idx // 512\" or --buffer name=1,1,2\n",
                      names);
  }
  BlockMaskReport report;
  const BlockMask mask = create_block_mask(MaskMod(formula), sizes.batch, sizes.heads, sizes.q_len,
                                           sizes.kv_len, {.block_size = block, .report = &report});
  const BlockCounts counts = count_blocks(mask);
  const auto kind = [&](BlockKind of) { return counts.of_kind[static_cast<std::size_t>(of)]; };
  text += fmt::format("  planes      {} built, {} different, for {} x {} (batch, head) pairs\n",
                      report.planes, counts.planes, sizes.batch, sizes.heads);
  text += fmt::format("  rectangles  {} classified by their bounds\n", report.rectangles);
  text +=
      fmt::format("  evaluated   {} elements one by one, {:.3g} % of the area\n", report.evaluated,
                  100.0 * static_cast<double>(report.evaluated) / static_cast<double>(report.area));
  text += fmt::format("  blocks      {} full, {} full to the edge, {} partial, {} empty\n",
                      kind(BlockKind::kFull), kind(BlockKind::kFullToEdge),
                      kind(BlockKind::kPartial), kind(BlockKind::kEmpty));
  text += fmt::format("  stored      {} bytes\n", mask.nbytes());
  return text + fmt::format("  skipped     {:.2f} % of the pairs are in empty blocks\n",
                            100 * (1 - computed_share(mask)));
}

}  // namespace quire::cli

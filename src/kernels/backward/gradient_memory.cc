// Computes the sizes of private sums. Kernels layer.
#include "kernels/backward/gradient_memory.h"

#include <algorithm>

#include "kernels/backward/gradient_runner.h"
#include "kernels/prefill/forward_functions.h"

namespace quire::kernels {
namespace {

SiteSums make_site(const GradientSite& site, const GradientSizes& sizes, size_t bytes, int max_rows,
                   ScratchLayout& layout) {
  SiteSums made;
  const int64_t queries = (sizes.q_len + kQueryTile - 1) / kQueryTile * kQueryTile;
  const int64_t keys = round_to_16(sizes.kv_len);
  made.columns = round_to_16(site.width);
  int64_t others = 0;
  switch (site.pattern) {
    case GradientPattern::kUniform:
      made.count = kQueryTile;
      made.entries = 1;
      break;
    case GradientPattern::kLane:
      made.count = made.entries = queries;
      break;
    case GradientPattern::kRow:
      made.count = keys * kPanel;
      made.entries = keys;
      break;
    case GradientPattern::kDiagonal:
      made.first_diagonal = keys;
      made.entries = queries + keys;
      made.pitch = made.entries + kPanel;
      made.count = made.pitch * kPanel;
      break;
    case GradientPattern::kDotLane:
      made.count = queries * made.columns;
      made.entries = queries;
      others = keys + max_rows;
      break;
    case GradientPattern::kDotRow:
      made.count = (keys + kPanel) * made.columns;
      made.entries = keys;
      others = kQueryTile;
      break;
    case GradientPattern::kOwned:
    case GradientPattern::kShared:
    case GradientPattern::kGather:
      break;
  }
  made.sums = layout.take<char>(static_cast<size_t>(made.count) * bytes);
  made.index = layout.take<int64_t>(made.entries);
  made.other = layout.take<int64_t>(site.other_buffer < 0 ? 0 : static_cast<size_t>(made.entries));
  made.others = layout.take<char>(static_cast<size_t>(others * made.columns) * bytes);
  made.other_rows = layout.take<OtherRow>(others);
  made.other_count = others;
  return made;
}

TargetCopy make_copy(int64_t elements, size_t bytes, ScratchLayout& layout) {
  TargetCopy made;
  made.lines = (elements + kTouchedLine - 1) / kTouchedLine;
  made.step = made.lines * kTouchedLine;
  made.copies = gather_copies(elements);
  made.copy = layout.take<char>(static_cast<size_t>(made.step * made.copies) * bytes);
  made.touched = layout.take<uint8_t>(made.lines);
  return made;
}

}  // namespace

GradientMemory::GradientMemory(const GradientProgram& program, const GradientSizes& sizes,
                               ScratchLayout& layout) {
  const size_t bytes = program.tile.f64 ? 8 : 4;
  const int max_rows = program.tile.max_rows;
  tile_scratch = layout.take<char>(program.tile.scratch_bytes);
  max = layout.take<char>(kQueryTile * bytes);
  sites = layout.take<SiteSums>(program.sites.size());
  targets = layout.take<TargetCopy>(program.target_sizes.size());
  bool products = false;
  for (size_t i = 0; i < program.sites.size(); ++i) {
    const GradientPattern pattern = program.sites[i].pattern;
    products =
        products || pattern == GradientPattern::kDotLane || pattern == GradientPattern::kDotRow;
    const SiteSums made = make_site(program.sites[i], sizes, bytes, max_rows, layout);
    if (!layout.counts_only()) sites[i] = made;
  }
  for (size_t target = 0; target < program.target_sizes.size(); ++target) {
    const bool gathers =
        std::any_of(program.sites.begin(), program.sites.end(), [&](const GradientSite& site) {
          return site.pattern == GradientPattern::kGather &&
                 site.target == static_cast<int>(target);
        });
    const TargetCopy made =
        gathers ? make_copy(program.target_sizes[target], bytes, layout) : TargetCopy();
    if (!layout.counts_only()) targets[target] = made;
  }
  weights_panel = round_to_16(max_rows) * kPanel + kPanel;
  const auto tile = static_cast<size_t>(weights_panel) * kQueryPanels;
  weights = layout.take<char>(products ? tile * bytes : 0);
  turned = layout.take<char>(products ? kQueryTile * kPanel * bytes : 0);
  passed = layout.take<bool>((sizes.q_len + kQueryTile - 1) / kQueryTile);
}

std::size_t gradient_scratch_bytes(const GradientProgram& program, const GradientSizes& sizes) {
  ScratchLayout layout(nullptr);
  GradientMemory(program, sizes, layout);
  return layout.bytes();
}

}  // namespace quire::kernels

// Converts words of visible queries to groups and panels. Kernels layer.
#include "kernels/prefill/tile_activity.h"

#include <algorithm>
#include <bit>

#include "kernels/bit_range.h"

namespace quire::kernels {

namespace {

void add_to_panels(TileActivity& activity, int g) {
  const GroupActivity& group = activity.groups[g];
  for (int panel = group.panel_begin; panel < group.panel_end; ++panel)
    activity.of_panel[panel] = static_cast<uint16_t>(activity.of_panel[panel] | 1 << g);
}

}  // namespace

TileActivity full_activity(int rows, int queries) noexcept {
  TileActivity result;
  result.any = result.full = rows > 0 && queries > 0;
  for (int g = 0; g * kKeyGroup < rows; ++g) {
    GroupActivity& group = result.groups[g];
    group.row_begin = static_cast<int16_t>(g * kKeyGroup);
    group.row_end = static_cast<int16_t>(std::min(rows, (g + 1) * kKeyGroup));
    group.panel_end = static_cast<int8_t>((queries + kPanel - 1) / kPanel);
    add_to_panels(result, g);
  }
  return result;
}

TileActivity find_activity(const uint64_t* words, int rows, int queries) noexcept {
  const uint64_t existing = bits_between(0, queries);
  TileActivity result;
  uint64_t all_of_tile = existing;
  for (int g = 0; g * kKeyGroup < rows; ++g) {
    int first = g * kKeyGroup, last = std::min(rows, first + kKeyGroup) - 1;
    for (int row = first; row <= last; ++row) all_of_tile &= words[row];
    while (first <= last && (words[first] & existing) == 0) ++first;
    if (first > last) continue;
    while ((words[last] & existing) == 0) --last;
    uint64_t any = 0, all = existing;
    for (int row = first; row <= last; ++row) {
      const uint64_t word = words[row] & existing;
      result.holes |= word == 0;
      any |= word;
      all &= word;
    }
    GroupActivity& group = result.groups[g];
    group.row_begin = static_cast<int16_t>(first);
    group.row_end = static_cast<int16_t>(last + 1);
    group.panel_begin = static_cast<int8_t>(std::countr_zero(any) / kPanel);
    group.panel_end = static_cast<int8_t>((63 - std::countl_zero(any)) / kPanel + 1);
    const uint64_t inside =
        bits_between(group.panel_begin * kPanel, group.panel_end * kPanel) & existing;
    group.masked = (all & inside) != inside;
    add_to_panels(result, g);
    result.any = true;
  }
  result.full = result.any && all_of_tile == existing;
  return result;
}

GroupActivity TileActivity::take_block(int& g, bool with_masked) const noexcept {
  GroupActivity block = groups[g++];
  if (block.empty()) return block;
  while (g < kKeyGroups && (with_masked || !block.masked)) {
    const GroupActivity& next = groups[g];
    if (next.empty() || (next.masked && !with_masked) || next.row_begin != block.row_end ||
        next.panel_begin != block.panel_begin || next.panel_end != block.panel_end)
      break;
    block.row_end = next.row_end;
    ++g;
  }
  return block;
}

}  // namespace quire::kernels

// Clears and merges private sums. No SIMD. Kernels layer.
#include "kernels/backward/gradient_merge.h"

#include <algorithm>
#include <cstring>

#include "kernels/backward/gradient_sums.h"
#include "kernels/prefill/forward_functions.h"

namespace quire::kernels {
namespace {

// The entries of a site's sums that a head can touch: those of its own queries and keys, which may
// be far fewer than the longest sequence has.
struct Entries {
  int64_t begin = 0, end = 0;
};
Entries entries_of(const GradientSite& site, const SiteSums& sums, const GradientHead& head) {
  const int64_t queries = (head.q_len + kQueryTile - 1) / kQueryTile * kQueryTile;
  const int64_t keys = round_to_16(head.kv_len);
  switch (site.pattern) {
    case GradientPattern::kUniform:
      return {0, 1};
    case GradientPattern::kLane:
    case GradientPattern::kDotLane:
      return {0, queries};
    case GradientPattern::kRow:
    case GradientPattern::kDotRow:
      return {0, keys};
    case GradientPattern::kDiagonal:
      return {sums.first_diagonal - keys, sums.first_diagonal + queries};
    case GradientPattern::kOwned:
    case GradientPattern::kShared:
    case GradientPattern::kGather:
      break;
  }
  return {};
}

// Numbers [first, first + count) of the sums become 0.
void clear_numbers(const SiteSums& sums, int64_t first, int64_t count, size_t bytes) {
  std::memset(static_cast<char*>(sums.sums) + static_cast<size_t>(first) * bytes, 0,
              static_cast<size_t>(count) * bytes);
}

// A sum in a fixed tree; n is a power of two. Destroys the numbers.
template <class T>
T tree_sum(T* numbers, int n) {
  for (int half = n / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) numbers[j] += numbers[j + half];
  return numbers[0];
}

// Adds `value` to the elements under one index; for a dot, times the elements of the other side. A
// value of 0 adds nothing: the other side may hold a NaN that no query saw.
template <class T>
void add_entry(const SiteMerge<T>& merge, int64_t entry, T value) {
  const int64_t index = merge.sums.index[entry], width = merge.site.width;
  if (index < 0 || value == 0) return;
  T* const to = merge.gradient + index * width;
  for (int64_t t = 0; t < width; ++t)
    to[t] += merge.other == nullptr
                 ? value
                 : value * buffer_element<T>(*merge.other, merge.sums.other[entry] +
                                                               trailing_offset_of(*merge.other, t));
}

// Adds a row of a product.
template <class T>
void add_row(const SiteMerge<T>& merge, int64_t entry) {
  const int64_t index = merge.sums.index[entry], width = merge.site.width;
  if (index < 0) return;
  const T* const from = static_cast<const T*>(merge.sums.sums) + entry * merge.sums.columns;
  for (int64_t t = 0; t < width; ++t) merge.gradient[index * width + t] += from[t];
}

}  // namespace

void clear_sums(const GradientSite& site, const SiteSums& sums, const GradientHead& head,
                size_t bytes) noexcept {
  const Entries range = entries_of(site, sums, head);
  const int64_t count = range.end - range.begin;
  std::fill_n(sums.index + range.begin, count, int64_t{-1});
  std::fill_n(sums.other_rows, sums.other_count, OtherRow::kMissing);
  if (site.pattern == GradientPattern::kDiagonal) {
    for (int64_t s = 0; s < kPanel; ++s)
      clear_numbers(sums, s * sums.pitch + range.begin, count + kPanel, bytes);
    return;
  }
  const int64_t per_entry = site.pattern == GradientPattern::kUniform ? kQueryTile
                            : site.pattern == GradientPattern::kLane  ? 1
                            : site.pattern == GradientPattern::kRow   ? kPanel
                                                                      : sums.columns;
  clear_numbers(sums, 0, count * per_entry, bytes);
}

template <class T>
void merge_sums(const SiteMerge<T>& merge, const GradientHead& head) noexcept {
  const Entries range = entries_of(merge.site, merge.sums, head);
  const SiteSums& sums = merge.sums;
  T* const numbers = static_cast<T*>(sums.sums);
  switch (merge.site.pattern) {
    case GradientPattern::kUniform:
      return add_entry(merge, 0, tree_sum(numbers, kQueryTile));
    case GradientPattern::kLane:
      for (int64_t i = range.begin; i < range.end; ++i) add_entry(merge, i, numbers[i]);
      return;
    case GradientPattern::kRow:
      for (int64_t i = range.begin; i < range.end; ++i)
        if (sums.index[i] >= 0) add_entry(merge, i, tree_sum(numbers + i * kPanel, kPanel));
      return;
    case GradientPattern::kDiagonal:
      for (int64_t i = range.begin; i < range.end; ++i) {
        T parts[kPanel];
        for (int s = 0; s < kPanel; ++s) parts[s] = numbers[s * sums.pitch + i + s];
        add_entry(merge, i, tree_sum(parts, kPanel));
      }
      return;
    case GradientPattern::kDotLane:
    case GradientPattern::kDotRow:
      for (int64_t i = range.begin; i < range.end; ++i) add_row(merge, i);
      return;
    case GradientPattern::kOwned:
    case GradientPattern::kShared:
    case GradientPattern::kGather:
      return;
  }
}

template <class T>
void merge_copy(const TargetCopy& copy, int64_t elements, T* gradient) noexcept {
  if (copy.copies == 0) return;
  T* const from = static_cast<T*>(copy.copy);
  for (int64_t line = 0; line < copy.lines; ++line) {
    if (copy.copies == 1 && copy.touched[line] == 0) continue;
    copy.touched[line] = 0;
    const int64_t begin = line * kTouchedLine, end = std::min(begin + kTouchedLine, elements);
    for (int64_t i = begin; i < end; ++i) {
      T sum = from[i];
      for (int c = 1; c < copy.copies; ++c) sum += from[c * copy.step + i];
      gradient[i] += sum;
    }
    for (int c = 0; c < copy.copies; ++c)
      std::fill_n(from + c * copy.step + begin, kTouchedLine, T{0});
  }
}

template void merge_sums(const SiteMerge<float>&, const GradientHead&) noexcept;
template void merge_sums(const SiteMerge<double>&, const GradientHead&) noexcept;
template void merge_copy(const TargetCopy&, int64_t, float*) noexcept;
template void merge_copy(const TargetCopy&, int64_t, double*) noexcept;

}  // namespace quire::kernels

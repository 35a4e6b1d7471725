// Places the keys that rows chose. No SIMD. Kernels layer.
#include "kernels/decode/few_keys.h"

#include <algorithm>
#include <bit>

#include "kernels/bit_range.h"

namespace quire::kernels {
namespace {

// Nothing is prefetched while units are worked on: the walk has asked for all keys long before.
constexpr UnitAhead kNothing[2 * kMostWanted] = {};

// std::popcount is a call where the target has no instruction for it.
int count_bits(uint64_t word) {
  constexpr uint64_t kTwo = 0x5555555555555555, kFour = 0x3333333333333333;
  word -= word >> 1 & kTwo;
  word = (word & kFour) + (word >> 2 & kFour);
  return static_cast<int>(((word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f) * 0x0101010101010101 >> 56);
}

}  // namespace

template <class T>
FewKeys<T>::FewKeys(const ForwardCall& call, UnitRows<T>& keys, UnitRows<T>& values, int row_count,
                    ScratchLayout& layout)
    : call_(call), keys_(keys), values_(values), row_count_(row_count) {
  const size_t rows = padded_rows(row_count);
  seen_ = layout.take<uint64_t>(kSplitTiles * rows * (kMostFew / 64));
  scores_ = layout.take<T>(rows * kDecodeScoreStep);
  weights_ = layout.take<T>(rows * kDecodeScoreStep);
  if (layout.counts_only()) return;
  std::fill_n(scores_, rows * kDecodeScoreStep, T{0});
  std::fill_n(weights_, rows * kDecodeScoreStep, T{0});  // those of padding rows stay 0
}

template <class T>
bool FewKeys<T>::are_few(const RowVisibility& visible) const noexcept {
  if (visible.shared_keys() >= 0)
    return 2 * visible.shared_keys() <= visible.shared_units() * kUnitKeys;
  // In every 16 bits the topmost, set if any of them is.
  constexpr uint64_t kLow = 0x7fff7fff7fff7fff;
  int units = 0, keys = 0;
  for (int i = 0; i < kTileKeys / 64; ++i) {
    const uint64_t word = visible.any(i);
    units += count_bits((((word & kLow) + kLow) | word) & ~kLow);
    keys += count_bits(word);
  }
  return 2 * keys <= units * kUnitKeys;
}

template <class T>
void FewKeys<T>::add(int64_t tile, const RowVisibility& visible) noexcept {
  FewPart& part = parts_[part_count_++];
  part = {.tile = tile,
          .score = key_count_,
          .weight = value_units_ * kUnitKeys,
          .near = visible.near()};
  int16_t* const to = places_ + key_count_;
  const int64_t first = tile * kTileKeys;
  if (visible.shared_keys() >= 0) {
    part.keys = visible.shared_keys();
    const int32_t* const list = visible.near();
    for (int i = 0; i < part.keys; ++i) to[i] = static_cast<int16_t>(list[i] - first);
  } else {
    for (int unit = 0; unit < kTileUnits; ++unit)
      for (uint32_t bits = visible.unit(unit); bits != 0; bits &= bits - 1)
        to[part.keys++] = static_cast<int16_t>(unit * kUnitKeys + std::countr_zero(bits));
  }
  for (int i = 0; i < part.keys; ++i) part.early += to[i] < kTileKeys / 2 ? 1 : 0;
  keys_.place_list(first, to, part.keys, part.score, placed_keys_);
  values_.place_list(first, to, part.keys, part.weight, placed_values_);
  key_count_ += part.keys;
  value_units_ += units(part);
  keep_seen(part, visible);
}

template <class T>
void FewKeys<T>::keep_seen(FewPart& part, const RowVisibility& visible) noexcept {
  constexpr int kWords = kMostFew / 64;
  const bool alike = visible.are_alike();
  uint64_t* to = seen_ + (&part - parts_) * row_count_ * kWords;
  part.seen = to;
  part.seen_step = alike ? 0 : kWords;
  if (alike) {
    for (int word = 0; word < kWords; ++word)
      to[word] = bits_between(0, std::max(part.keys - word * 64, 0));
    return;
  }
  const int16_t* const places = this->places(part);
  for (int row = 0; row < row_count_; ++row) {
    const uint64_t* const words = visible.words(row);
    for (int word = 0; word < kWords; ++word) {
      uint64_t seen = 0;
      for (int i = word * 64; i < std::min(part.keys, (word + 1) * 64); ++i) {
        const auto place = static_cast<uint32_t>(places[i]);
        seen |= (words[place / 64] >> (place % 64) & 1) << (i % 64);
      }
      *to++ = seen;
    }
  }
}

template <class T>
UnitRun<T> FewKeys<T>::scored() noexcept {
  const int units = (key_count_ + kUnitKeys - 1) / kUnitKeys;
  for (int unit = 0; unit < units; ++unit) wanted_[unit] = {.place = unit, .keys = kAllKeys};
  return {.rows = keys_,
          .placed = placed_keys_,
          .ahead = kNothing,
          .wanted = {wanted_, static_cast<size_t>(units)},
          .lists = keys_.reads_lists() ? units_ : nullptr};
}

// A unit in which a chain ends and the next begins is wanted twice.
template <class T>
UnitRun<T> FewKeys<T>::valued(std::span<const FewPart> parts) noexcept {
  static_assert(chain_keys(false) == kTileKeys / 2 && chain_keys(true) == kTileKeys);
  const int chains = call_.pairs ? 1 : 2;
  int count = 0;
  for (const FewPart& part : parts) {
    int i = 0;
    for (int chain = 0; chain < chains; ++chain) {
      const int end = chain + 1 < chains ? part.early : part.keys;
      while (i < end) {
        const int unit = i / kUnitKeys, first = unit * kUnitKeys;
        const int to = std::min(end, first + kUnitKeys);
        wanted_[count++] = {.place = part.weight / kUnitKeys + unit,
                            .keys = (2u << (to - first - 1)) - (1u << (i - first)),
                            .chain = static_cast<int>(part.tile) * chains + chain};
        i = to;
      }
    }
  }
  return {.rows = values_,
          .placed = placed_values_,
          .ahead = kNothing,
          .wanted = {wanted_, static_cast<size_t>(count)},
          .lists = values_.reads_lists() ? units_ : nullptr};
}

template class FewKeys<float>;
template class FewKeys<double>;

}  // namespace quire::kernels

// Values of the decode kernel over codes: as values-inl.h, 32 columns at a time (a group of every
// format), decoded once for all rows of a block. Kernels layer.
#pragma once
#include "kernels/decode/coded_numbers-inl.h"
#include "kernels/fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET != HWY_SCALAR

// The codes of columns [c, c + kLanes) and [c + 16, c + 16 + kLanes) of a group, or their numbers.
struct ValuePair {
  V low, high;
};

template <class Format>
HWY_INLINE ValuePair value_codes(const char* at) {
  const auto* const codes = reinterpret_cast<const uint8_t*>(at);
  ValuePair pair;
  if constexpr (Format::kIsU4) {
    nibble_vectors<Format::kShift>(codes, pair.low, pair.high);
  } else {
    pair.low = bytes_value<Format::kType>(codes);
    pair.high = bytes_value<Format::kType>(codes + kCodeGroup / 2);
  }
  return pair;
}

// kRows rows by two vectors of each of kGroups groups, from `column` on.
template <class Format, int kRows, int kGroups>
HWY_NOINLINE void coded_value_block(const UnitValuesArgs<float>& args, int unit_idx, int first_row,
                                    int column) {
  constexpr int kHalf = kCodeGroup / 2;
  const DecodeUnit& unit = args.units[unit_idx];
  const int group = column / kCodeGroup, in_group = column % kCodeGroup;
  const ptrdiff_t at_row = first_row * args.out_step + column;
  V acc[kRows][kGroups][2];
  float* const chain = args.chain + at_row;
  QUIRE_UNROLL for (int g = 0; g < kRows; ++g) QUIRE_UNROLL for (int j = 0; j < kGroups; ++j)
      QUIRE_UNROLL for (int i = 0; i < 2; ++i) acc[g][j][i] =
          unit.begins_chain
              ? hn::Zero(kF32)
              : hn::LoadU(kF32, chain + g * args.out_step + j * kCodeGroup + i * kHalf);
  const float* const weights = args.weights + first_row * kDecodeScoreStep + unit.place * kUnitKeys;
  const float* scales = unit.scales;
  if constexpr (Format::kScale == UnitScale::kGroup) scales += group * Format::kParts * kUnitKeys;
  // Lines of the rows ahead, as many as groups here: a row of codes has no more of them.
  const UnitAhead& near = args.ahead[unit_idx + 1];
  const UnitAhead& far = args.ahead[unit_idx + kUnitsAhead];
  const bool asks = first_row == 0 && in_group == 0;
  const int near_line = asks ? group : near.lines, far_line = asks ? group : far.lines;
  for (int key = unit.begin; key < unit.end; ++key) {
    QUIRE_UNROLL for (int j = 0; j < kGroups; ++j) {
      if (near_line + j < near.lines)
        __builtin_prefetch(AheadRows::row(near, key) + 64 * (near_line + j), 0, 3);
      if (far_line + j < far.lines)
        __builtin_prefetch(AheadRows::row(far, key) + 64 * (far_line + j), 0, 2);
      ValuePair x = value_codes<Format>(Format::group(unit.rows[key], group + j) + in_group);
      if constexpr (Format::kScale == UnitScale::kChannel) {
        const float* const of_channels = unit.scales + column + j * kCodeGroup;
        x.low = hn::Mul(x.low, hn::LoadU(kF32, of_channels));
        x.high = hn::Mul(x.high, hn::LoadU(kF32, of_channels + kHalf));
      } else {
        constexpr int kNext = Format::kScale == UnitScale::kGroup ? Format::kParts * kUnitKeys : 0;
        const float* const at = scales + j * kNext + key;
        const V scale = hn::Set(kF32, *at);
        const V other = Format::kParts == 2 ? hn::Set(kF32, at[kUnitKeys]) : scale;
        x.low = Format::number(x.low, scale, other);
        x.high = Format::number(x.high, scale, other);
      }
      QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
        const V weight = hn::Set(kF32, weights[g * kDecodeScoreStep + key]);
        acc[g][j][0] = fma(x.low, weight, acc[g][j][0]);
        acc[g][j][1] = fma(x.high, weight, acc[g][j][1]);
      }
    }
  }
  float* const out = args.out + at_row;
  QUIRE_UNROLL for (int g = 0; g < kRows; ++g) QUIRE_UNROLL for (int j = 0; j < kGroups; ++j)
      QUIRE_UNROLL for (int i = 0; i < 2; ++i) {
    const ptrdiff_t at = g * args.out_step + j * kCodeGroup + i * kHalf;
    if (unit.ends_chain)
      hn::StoreU(hn::Add(hn::LoadU(kF32, out + at), acc[g][j][i]), kF32, out + at);
    else
      hn::StoreU(acc[g][j][i], kF32, chain + at);
  }
}

template <class Format, int kRows>
HWY_INLINE void coded_value_rows(const UnitValuesArgs<float>& args, int unit, int first_row) {
  // 16 of 32 registers for sums.
  constexpr int kGroups = kRows <= 4 && kLanes == 16 ? 2 : 1;
  int column = 0;
  for (; column + kGroups * kCodeGroup <= args.columns; column += kGroups * kCodeGroup)
    for (int c = 0; c < kCodeGroup / 2; c += static_cast<int>(kLanes))
      coded_value_block<Format, kRows, kGroups>(args, unit, first_row, column + c);
  if (kGroups > 1 && column < args.columns)
    coded_value_block<Format, kRows, 1>(args, unit, first_row, column);
}

// with_format calls it.
struct CodedUnitValues {
  const UnitValuesArgs<float>& args;
  template <class Format>
  HWY_INLINE void operator()(Format) const {
    for (int unit = 0; unit < args.unit_count; ++unit) {
      for (int row = 0; row < args.rows; row += kRowBlock[args.rows - row]) {
        switch (kRowBlock[args.rows - row]) {
          case 8:
            coded_value_rows<Format, 8>(args, unit, row);
            break;
          case 4:
            coded_value_rows<Format, 4>(args, unit, row);
            break;
          case 2:
            coded_value_rows<Format, 2>(args, unit, row);
            break;
          default:
            coded_value_rows<Format, 1>(args, unit, row);
        }
      }
    }
  }
};

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

// Values of the decode kernel over codes: as values-inl.h, 32 columns at a time (a group of every
// format), numbers made of the codes once for all rows of a block: f32, or rounded to pairs of
// bf16, whose columns lie as those of PairValues. Kernels layer.
#pragma once
#include "kernels/decode/coded_numbers-inl.h"
#include "kernels/fma-inl.h"
#include "kernels/pair_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET != HWY_SCALAR

// Columns [c, c + kLanes) and [c + 16, c + 16 + kLanes) of a group.
struct ValueHalves {
  V low, high;
};

template <class Format>
HWY_INLINE ValueHalves value_codes(const char* at) {
  const auto* const codes = reinterpret_cast<const uint8_t*>(at);
  if constexpr (Format::kIsU4) {
    V low = hn::Zero(kF32), high = low;
    nibble_vectors<Format::kShift>(codes, low, high);
    return {low, high};
  } else {
    return {code_vector<Format::kType>(codes), code_vector<Format::kType>(codes + kCodeGroup / 2)};
  }
}

// The numbers of key `key` and a group, from byte `in_group` of it on.
template <class Format>
HWY_INLINE ValueHalves value_numbers(const char* row, const UnitScales<Format>& scales, int key,
                                     int group, int in_group) {
  const ValueHalves x = value_codes<Format>(row + Format::offset(group * kCodeGroup) + in_group);
  const V scale = hn::Set(kF32, *scales.of(group, 0, key));
  const V other = Format::kParts == 2 ? hn::Set(kF32, *scales.of(group, 1, key)) : scale;
  return {decoded<Format::kShift>(x.low, scale, other),
          decoded<Format::kShift>(x.high, scale, other)};
}

// What a step multiplies: the numbers of one key, or pairs of those of two.
struct ValueSingles {
  using Weight = float;
  static constexpr int kKeys = 1;
  template <class Format>
  static HWY_INLINE ValueHalves load(const char* const* rows, const UnitScales<Format>& scales,
                                     int key, int group, int in_group) {
    return value_numbers<Format>(rows[key], scales, key, group, in_group);
  }
  template <int kRows>
  static HWY_INLINE void step(const ValueHalves& x, const float* weights, V (&acc)[kRows][2]) {
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
      const V weight = hn::Set(kF32, weights[g * kDecodeScoreStep]);
      acc[g][0] = fma(x.low, weight, acc[g][0]);
      acc[g][1] = fma(x.high, weight, acc[g][1]);
    }
  }
};
#if defined(QUIRE_BF16_DOT) && HWY_TARGET <= HWY_AVX3
struct ValuePairs {
  using Weight = uint16_t;
  static constexpr int kKeys = 2;
  struct Line {
    VU low, high;
  };
  template <class Format>
  static HWY_INLINE Line load(const char* const* rows, const UnitScales<Format>& scales, int key,
                              int group, int in_group) {
    const ValueHalves a = value_numbers<Format>(rows[key], scales, key, group, in_group);
    const ValueHalves b = value_numbers<Format>(rows[key + 1], scales, key + 1, group, in_group);
    const auto even = (__m512i)_mm512_cvtne2ps_pbh(a.high.raw, a.low.raw);
    const auto odd = (__m512i)_mm512_cvtne2ps_pbh(b.high.raw, b.low.raw);
    return {VU{_mm512_unpacklo_epi16(even, odd)}, VU{_mm512_unpackhi_epi16(even, odd)}};
  }
  template <int kRows>
  static HWY_INLINE void step(const Line& x, const uint16_t* weights, V (&acc)[kRows][2]) {
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
      uint32_t bits;
      std::memcpy(&bits, weights + g * kDecodeScoreStep, 4);
      const VU pair = hn::Set(kU32, bits);
      acc[g][0] = pair_dot(x.low, pair, acc[g][0]);
      acc[g][1] = pair_dot(x.high, pair, acc[g][1]);
    }
  }
};
#endif

// kRows rows by two vectors of each of kGroups groups, from `column` on.
template <class Format, class Product, int kRows, int kGroups>
HWY_NOINLINE void coded_value_block(const UnitValuesArgs<float>& args,
                                    const typename Product::Weight* all_weights,
                                    const UnitScales<Format>& scales, int unit_idx, int first_row,
                                    int column) {
  constexpr int kHalf = kCodeGroup / 2;
  const DecodeUnit& unit = args.units[unit_idx];
  const int group = column / kCodeGroup, in_group = column % kCodeGroup;
  const ptrdiff_t at_row = first_row * args.out_step + column;
  V acc[kGroups][kRows][2];
  float* const chain = args.chain + at_row;
  if (unit.begins_chain) {
    QUIRE_UNROLL for (int j = 0; j < kGroups; ++j) QUIRE_UNROLL for (int g = 0; g < kRows; ++g)
        acc[j][g][0] = acc[j][g][1] = hn::Zero(kF32);
  } else {
    QUIRE_UNROLL for (int j = 0; j < kGroups; ++j) QUIRE_UNROLL for (int g = 0; g < kRows; ++g)
        QUIRE_UNROLL for (int i = 0; i < 2; ++i) acc[j][g][i] =
            hn::LoadU(kF32, chain + g * args.out_step + j * kCodeGroup + i * kHalf);
  }
  const auto* const weights = all_weights + first_row * kDecodeScoreStep + unit.place * kUnitKeys;
  AheadRows ahead{&args.ahead[unit_idx + 1], &args.ahead[unit_idx + kUnitsAhead]};
  if (first_row > 0 || column > 0) ahead.next = kUnitKeys;  // once is enough
  for (int key = unit.begin; key < unit.end; key += Product::kKeys) {
    ahead.take(Product::kKeys);
    QUIRE_UNROLL for (int j = 0; j < kGroups; ++j) {
      const auto x = Product::template load<Format>(unit.rows, scales, key, group + j, in_group);
      Product::template step<kRows>(x, weights + key, acc[j]);
    }
  }
  float* const out = args.out + at_row;
  QUIRE_UNROLL for (int j = 0; j < kGroups; ++j) QUIRE_UNROLL for (int g = 0; g < kRows; ++g)
      QUIRE_UNROLL for (int i = 0; i < 2; ++i) {
    const ptrdiff_t at = g * args.out_step + j * kCodeGroup + i * kHalf;
    if (unit.ends_chain)
      hn::StoreU(hn::Add(hn::LoadU(kF32, out + at), acc[j][g][i]), kF32, out + at);
    else
      hn::StoreU(acc[j][g][i], kF32, chain + at);
  }
}

template <class Format, class Product, int kRows>
HWY_INLINE void coded_value_rows(const UnitValuesArgs<float>& args,
                                 const typename Product::Weight* weights, int unit, int first_row) {
  const DecodeUnit& at = args.units[unit];
  UnitScales<Format> scales;
  scales.collect(at, args.scale_step, at.begin, at.end, args.columns);
  // At most 16 of 32 registers for sums, or 8 of 16.
  constexpr int kGroups = kLanes == 16 && kRows <= 4 ? 2 : 1;
  for (int column = 0; column < args.columns; column += kGroups * kCodeGroup)
    for (int c = 0; c < kCodeGroup / 2; c += static_cast<int>(kLanes))
      coded_value_block<Format, Product, kRows, kGroups>(args, weights, scales, unit, first_row,
                                                         column + c);
}

// with_format calls it.
template <class Product>
struct CodedUnitValues {
  const UnitValuesArgs<float>& args;
  const typename Product::Weight* weights;
  template <class Format>
  HWY_NOINLINE void operator()(Format) const {
    for (int unit = 0; unit < args.unit_count; ++unit) {
      for (int row = 0; row < args.rows; row += kRowBlock[args.rows - row]) {
        switch (kRowBlock[args.rows - row]) {
          case 8:
            if constexpr (kLanes == 16) {
              coded_value_rows<Format, Product, 8>(args, weights, unit, row);
            } else {  // 8 of 16 registers for sums
              coded_value_rows<Format, Product, 4>(args, weights, unit, row);
              coded_value_rows<Format, Product, 4>(args, weights, unit, row + 4);
            }
            break;
          case 4:
            coded_value_rows<Format, Product, 4>(args, weights, unit, row);
            break;
          case 2:
            coded_value_rows<Format, Product, 2>(args, weights, unit, row);
            break;
          default:
            coded_value_rows<Format, Product, 1>(args, weights, unit, row);
        }
      }
    }
  }
};

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

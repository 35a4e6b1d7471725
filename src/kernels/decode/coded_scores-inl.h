// Scores of the decode kernel over codes: as scores-inl.h, with numbers decoded on their way from
// memory. Where there are few rows, two chains of dims are worked on in turn: one alone would wait
// for its own last fma (4 cycles) longer than it takes to decode the next numbers. Kernels layer.
#pragma once
#include "kernels/decode/coded_numbers-inl.h"
#include "kernels/fma-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET != HWY_SCALAR

// The scales of kLanes keys, and of the channels from some group on.
template <class Format>
struct KeyScales {
  V scale, other;
  const float* channels;

  HWY_INLINE KeyScales(const DecodeUnit& unit, int first, int group) {
    if constexpr (Format::kScale == UnitScale::kChannel) {
      channels = unit.scales + group * kCodeGroup;
      scale = other = hn::Zero(kF32);
    } else {
      const float* at = unit.scales + first;
      if constexpr (Format::kScale == UnitScale::kGroup) at += group * Format::kParts * kUnitKeys;
      scale = hn::LoadU(kF32, at);
      other = Format::kParts == 2 ? hn::LoadU(kF32, at + kUnitKeys) : scale;
    }
  }
  // `channel` counts in the group.
  HWY_INLINE V number(V code, int channel) const {
    if constexpr (Format::kScale == UnitScale::kChannel)
      return hn::Mul(code, hn::Set(kF32, channels[channel]));
    return Format::number(code, scale, other);
  }
};

template <int kRows>
HWY_INLINE void coded_add(V key, const float* q, V (&acc)[kRows]) {
  QUIRE_UNROLL for (int g = 0; g < kRows; ++g) acc[g] = fma(key, hn::Set(kF32, q[g]), acc[g]);
}

// Four channels from `channel` of the group on, in the bytes of x, or in their low or high halves.
template <class Format, int kRows, bool kHigh>
HWY_INLINE void coded_step(VU x, int channel, const KeyScales<Format>& scales, const float* q,
                           V (&acc)[kRows]) {
  if constexpr (Format::kIsU4) {
    constexpr int kOdd = kHigh ? 1 : 0;
    constexpr CodeShift kMeans = Format::kShift;
    coded_add<kRows>(scales.number(nibble_value<kMeans, 0 + kOdd>(x), channel), q, acc);
    coded_add<kRows>(scales.number(nibble_value<kMeans, 2 + kOdd>(x), channel + 1), q + kRows, acc);
    coded_add<kRows>(scales.number(nibble_value<kMeans, 4 + kOdd>(x), channel + 2), q + 2 * kRows,
                     acc);
    coded_add<kRows>(scales.number(nibble_value<kMeans, 6 + kOdd>(x), channel + 3), q + 3 * kRows,
                     acc);
  } else {
    constexpr CodeType kType = Format::kType;
    coded_add<kRows>(scales.number(byte_value<kType, 0>(x), channel), q, acc);
    coded_add<kRows>(scales.number(byte_value<kType, 1>(x), channel + 1), q + kRows, acc);
    coded_add<kRows>(scales.number(byte_value<kType, 2>(x), channel + 2), q + 2 * kRows, acc);
    coded_add<kRows>(scales.number(byte_value<kType, 3>(x), channel + 3), q + 3 * kRows, acc);
  }
}

// kLanes keys of a unit by kRows rows.
template <class Format, int kRows>
struct CodedScores {
  // Channels in 16 bytes of a row.
  static constexpr int kPiece = Format::kIsU4 ? kCodeGroup : kCodeGroup / 2;
  static constexpr bool kInTurn = kRows <= 4 && kLanes == 16;

  const DecodeUnit& unit;
  int first;
  const float* q;
  AheadRows ahead;
  int ahead_rows;  // asked for at each step

  static HWY_INLINE ptrdiff_t offset(int channel) {
    return Format::group(nullptr, channel / kCodeGroup) - static_cast<const char*>(nullptr) +
           channel % kCodeGroup;
  }

  // 16 bytes of one chain, and of another.
  template <bool kBoth>
  HWY_INLINE void piece(int a, int b, V (&acc)[2][kRows]) {
    VU x[4], y[4];
    load_quads(unit.rows + first, offset(a), x);
    if constexpr (kBoth) load_quads(unit.rows + first, offset(b), y);
    const KeyScales<Format> x_scales(unit, first, a / kCodeGroup);
    const KeyScales<Format> y_scales(unit, first, b / kCodeGroup);
    const float* const qa = q + a * kRows;
    const float* const qb = q + b * kRows;
    const int at_a = a % kCodeGroup, at_b = b % kCodeGroup;
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
      ahead.take(ahead_rows);
      coded_step<Format, kRows, false>(x[i], at_a + 4 * i, x_scales, qa + 4 * i * kRows, acc[0]);
      if constexpr (kBoth)
        coded_step<Format, kRows, false>(y[i], at_b + 4 * i, y_scales, qb + 4 * i * kRows, acc[1]);
    }
    if constexpr (Format::kIsU4) {
      QUIRE_UNROLL for (int i = 4; i < 8; ++i) {
        ahead.take(ahead_rows);
        coded_step<Format, kRows, true>(x[i - 4], 4 * i, x_scales, qa + 4 * i * kRows, acc[0]);
        if constexpr (kBoth)
          coded_step<Format, kRows, true>(y[i - 4], 4 * i, y_scales, qb + 4 * i * kRows, acc[1]);
      }
    }
  }
};

template <class Format, int kRows>
HWY_NOINLINE void coded_score_block(const UnitScoresArgs<float>& args, int unit_idx, int first,
                                    int first_row) {
  using Scores = CodedScores<Format, kRows>;
  const DecodeUnit& unit = args.units[unit_idx];
  Scores scores{.unit = unit,
                .first = first,
                .q = static_cast<const float*>(args.queries) + first_row * args.query_step,
                .ahead = {&args.ahead[unit_idx + 1], &args.ahead[unit_idx + kUnitsAhead]},
                .ahead_rows = HWY_MAX(1, 128 / args.dims)};
  if (first_row > 0 || first > 0) scores.ahead.next = kUnitKeys;  // once is enough
  const V scale = hn::Set(kF32, args.scale);
  float* const out = args.scores + first_row * kDecodeScoreStep + unit.place * kUnitKeys + first;
  const int chain = chain_dims(args.dims, false);
  for (int done = 0, next; done < args.dims; done = next) {
    next = done + (Scores::kInTurn ? 2 * chain : chain);
    const int end_a = HWY_MIN(done + chain, args.dims), end_b = HWY_MIN(next, args.dims);
    V acc[2][kRows];
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) acc[0][g] = acc[1][g] = hn::Zero(kF32);
    int a = done;
    if constexpr (Scores::kInTurn) {
      for (int b = a + chain; b < end_b; a += Scores::kPiece, b += Scores::kPiece)
        scores.template piece<true>(a, b, acc);
    }
    for (; a < end_a; a += Scores::kPiece) scores.template piece<false>(a, a, acc);
    const bool scaled = args.natural && next >= args.dims;
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
      float* const to = out + g * kDecodeScoreStep;
      V sum = done == 0 ? acc[0][g] : hn::Add(hn::LoadU(kF32, to), acc[0][g]);
      if (end_b > end_a) sum = hn::Add(sum, acc[1][g]);
      hn::StoreU(scaled ? hn::Mul(sum, scale) : sum, kF32, to);
    }
  }
}

template <class Format, int kRows>
HWY_INLINE void coded_score_rows(const UnitScoresArgs<float>& args, int first_row) {
  for (int unit = 0; unit < args.unit_count; ++unit)
    for (int first = 0; first < kUnitKeys; first += static_cast<int>(kLanes))
      coded_score_block<Format, kRows>(args, unit, first, first_row);
}

// with_format calls it.
struct CodedUnitScores {
  const UnitScoresArgs<float>& args;
  template <class Format>
  HWY_INLINE void operator()(Format) const {
    for (int row = 0; row < args.rows; row += kRowBlock[args.rows - row]) {
      switch (kRowBlock[args.rows - row]) {
        case 8:
          coded_score_rows<Format, 8>(args, row);
          break;
        case 4:
          coded_score_rows<Format, 4>(args, row);
          break;
        case 2:
          coded_score_rows<Format, 2>(args, row);
          break;
        default:
          coded_score_rows<Format, 1>(args, row);
      }
    }
  }
};

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

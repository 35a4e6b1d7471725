// Scores of the decode kernel over codes: as scores-inl.h, with numbers made of the codes on their
// way from memory: f32, or rounded to pairs of bf16. Where there are few rows, two chains of dims
// are worked on in turn: one alone would wait for its own last fma longer than it takes to decode
// the next numbers. Kernels layer.
#pragma once
#include "kernels/decode/coded_numbers-inl.h"
#include "kernels/fma-inl.h"
#include "kernels/pair_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET != HWY_SCALAR

// The scales of kLanes keys.
template <class Format>
struct KeyScales {
  V scale, other;

  HWY_INLINE KeyScales(const UnitScales<Format>& scales, int first, int group)
      : scale(hn::LoadU(kF32, scales.of(group, 0, first))),
        other(Format::kParts == 2 ? hn::LoadU(kF32, scales.of(group, 1, first)) : scale) {}
};

// What is multiplied: numbers, or pairs of them. Four of each key are a step.
struct CodedSingles {
  using Query = float;
  static constexpr bool kPairs = false;
  template <int kRows>
  static HWY_INLINE void step(const V (&x)[4], const float* q, V (&acc)[kRows]) {
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) QUIRE_UNROLL for (int g = 0; g < kRows; ++g) acc[g] =
        fma(x[i], hn::Set(kF32, q[i * kRows + g]), acc[g]);
  }
};
#if defined(QUIRE_BF16_DOT)
struct CodedPairs {
  using Query = uint32_t;
  static constexpr bool kPairs = true;
  template <int kRows>
  static HWY_INLINE void step(const V (&x)[4], const uint32_t* q, V (&acc)[kRows]) {
    QUIRE_UNROLL for (int i = 0; i < 2; ++i) {
      const VU pair = paired(x[2 * i], x[2 * i + 1]);
      QUIRE_UNROLL for (int g = 0; g < kRows; ++g) acc[g] =
          pair_dot(pair, hn::Set(kU32, q[i * kRows + g]), acc[g]);
    }
  }
};
#endif

// kLanes keys of a unit by kRows rows.
template <class Format, class Product, int kRows>
struct CodedScores {
  using Query = typename Product::Query;
  static constexpr bool kInTurn = kRows <= 4 && kLanes == 16 && !Product::kPairs;
  static constexpr int kNumbers = Product::kPairs ? 2 : 1;  // of a query element

  const UnitScales<Format>& scales;
  const char* const* rows;
  int first;
  const Query* q;
  AheadRows ahead;
  int ahead_rows;  // asked for at each step

  template <bool kHigh>
  HWY_INLINE void step(VU codes, int channel, const KeyScales<Format>& under, V (&acc)[kRows]) {
    V x[4];
    code_values<Format, kHigh>(codes, x);
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) x[i] =
        decoded<Format::kShift>(x[i], under.scale, under.other);
    Product::template step<kRows>(x, q + channel / kNumbers * kRows, acc);
  }

  // 16 bytes of one chain, and of another.
  template <bool kBoth>
  HWY_INLINE void piece(int a, int b, V (&acc)[2][kRows]) {
    VU x[4], y[4];
    load_piece({rows, Format::offset(a)}, x);
    if constexpr (kBoth) load_piece({rows, Format::offset(b)}, y);
    const KeyScales<Format> x_scales(scales, first, a / kCodeGroup);
    const KeyScales<Format> y_scales(scales, first, b / kCodeGroup);
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
      ahead.take(ahead_rows);
      step<false>(x[i], a + 4 * i, x_scales, acc[0]);
      if constexpr (kBoth) step<false>(y[i], b + 4 * i, y_scales, acc[1]);
    }
    if constexpr (Format::kIsU4) {
      QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
        ahead.take(ahead_rows);
        step<true>(x[i], a + 16 + 4 * i, x_scales, acc[0]);
        if constexpr (kBoth) step<true>(y[i], b + 16 + 4 * i, y_scales, acc[1]);
      }
    }
  }
};

template <class Format, class Product, int kRows>
HWY_NOINLINE void coded_score_block(const UnitScoresArgs<float>& args,
                                    const UnitScales<Format>& scales, int unit_idx, int first,
                                    int first_row) {
  using Scores = CodedScores<Format, Product, kRows>;
  const DecodeUnit& unit = args.units[unit_idx];
  Scores scores{
      .scales = scales,
      .rows = unit.rows + first,
      .first = first,
      .q = static_cast<const typename Product::Query*>(args.queries) + first_row * args.query_step,
      .ahead = {&args.ahead[unit_idx + 1], &args.ahead[unit_idx + kUnitsAhead]},
      .ahead_rows = HWY_MAX(1, 128 / args.dims)};
  if (first_row > 0 || first > 0) scores.ahead.next = kUnitKeys;  // once is enough
  const V scale = hn::Set(kF32, args.scale);
  float* const out = args.scores + first_row * kDecodeScoreStep + unit.place * kUnitKeys + first;
  const int chain = chain_dims(args.dims, Product::kPairs);
  for (int done = 0, next; done < args.dims; done = next) {
    next = done + (Scores::kInTurn ? 2 * chain : chain);
    const int end_a = HWY_MIN(done + chain, args.dims), end_b = HWY_MIN(next, args.dims);
    V acc[2][kRows];
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) acc[0][g] = acc[1][g] = hn::Zero(kF32);
    int a = done;
    if constexpr (Scores::kInTurn) {
      for (int b = a + chain; b < end_b; a += Format::kPiece, b += Format::kPiece)
        scores.template piece<true>(a, b, acc);
    }
    for (; a < end_a; a += Format::kPiece) scores.template piece<false>(a, a, acc);
    const bool scaled = args.natural && next >= args.dims;
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
      float* const to = out + g * kDecodeScoreStep;
      V sum = done == 0 ? acc[0][g] : hn::Add(hn::LoadU(kF32, to), acc[0][g]);
      if (end_b > end_a) sum = hn::Add(sum, acc[1][g]);
      hn::StoreU(scaled ? hn::Mul(sum, scale) : sum, kF32, to);
    }
  }
}

template <class Format, class Product, int kRows>
HWY_INLINE void coded_score_rows(const UnitScoresArgs<float>& args, int first_row) {
  for (int unit = 0; unit < args.unit_count; ++unit) {
    UnitScales<Format> scales;
    scales.collect(args.units[unit], args.scale_step, 0, kUnitKeys, args.dims);
    for (int first = 0; first < kUnitKeys; first += static_cast<int>(kLanes))
      coded_score_block<Format, Product, kRows>(args, scales, unit, first, first_row);
  }
}

// with_format calls it.
template <class Product>
struct CodedUnitScores {
  const UnitScoresArgs<float>& args;
  template <class Format>
  HWY_NOINLINE void operator()(Format) const {
    for (int row = 0; row < args.rows; row += kRowBlock[args.rows - row]) {
      switch (kRowBlock[args.rows - row]) {
        case 8:
          coded_score_rows<Format, Product, 8>(args, row);
          break;
        case 4:
          coded_score_rows<Format, Product, 4>(args, row);
          break;
        case 2:
          coded_score_rows<Format, Product, 2>(args, row);
          break;
        default:
          coded_score_rows<Format, Product, 1>(args, row);
      }
    }
  }
};

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

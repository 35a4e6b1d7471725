// Scores of keys that are rotated as they are read, without writing the rotated keys anywhere: as
// scores-inl.h, but each step loads the columns i and i + half of 16 keys, turns them by the angles
// of these keys, and multiplies them with both halves of the queries. The halves are a chain each
// (chain_dims), so that two sums grow side by side. The arithmetic is that of rope.h, to the bit.
// Only f32 on vectors, and what may_fuse_rope says. Kernels layer.
#pragma once
#include "kernels/decode/scores-inl.h"
#include "kernels/rope-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET != HWY_SCALAR

// The numbers of a 32-bit column of keys, widened.
template <class Keys>
struct ColumnNumbers;
template <>
struct ColumnNumbers<KeysF32> {
  static HWY_INLINE void of(VU x, V (&to)[1]) { to[0] = hn::BitCast(kF32, x); }
};
template <>
struct ColumnNumbers<KeysBf16> {
  static HWY_INLINE void of(VU x, V (&to)[2]) {
    to[0] = hn::BitCast(kF32, hn::ShiftLeft<16>(x));
    to[1] = hn::BitCast(kF32, hn::And(x, hn::Set(kU32, 0xffff0000u)));
  }
};
template <>
struct ColumnNumbers<KeysF16> {
  static HWY_INLINE void of(VU x, V (&to)[2]) {
    to[0] = KeysF16::widen(hn::And(x, hn::Set(kU32, 0xffffu)));
    to[1] = KeysF16::widen(hn::ShiftRight<16>(x));
  }
};

// Angles of the pairs of the 16 keys of a unit: what they share, and what each adds.
struct UnitAngles {
  const float* base;  // [2][half]
  const float* low;   // [half][2][16], from the first key of a vector on
  int half;
  HWY_INLINE Angle<float> of(int pair) const {
    const float* const at = low + pair * 2 * kRopeLow;
    return compose<float>({hn::Set(kF32, base[pair]), hn::Set(kF32, base[half + pair])},
                          {hn::LoadU(kF32, at), hn::LoadU(kF32, at + kRopeLow)});
  }
};

// Keys [first, first + kLanes) of a unit by kRows rows.
template <class Keys, int kRows, class Rows>
HWY_NOINLINE void rotated_block(const UnitScoresArgs<float>& args, int unit_idx, int first,
                                int first_row) {
  constexpr auto kN = static_cast<int>(kLanes);
  constexpr int kNumbers = Keys::kNumbers, kPairs = kChunk * kNumbers;  // of a step
  const DecodeUnit& unit = args.units[unit_idx];
  const int half = args.rope->half;
  HWY_ALIGN float base[2 * kMostFusedPairs];
  block_angles<float>(*args.rope, (args.position + unit.place * kUnitKeys) / kRopeLow, base);
  const UnitAngles angles{base, static_cast<const float*>(args.rope->low_columns) + first, half};
  Rows x_rows = Rows(unit, args.step).from(first), y_rows = x_rows;
  y_rows.advance(half * Keys::kBytes);
  typename Rows::NearCursor near;
  typename Rows::FarCursor far;
  if (first_row == 0) {  // once is enough
    near.start(args.ahead[unit_idx + 1], first);
    far.start(args.ahead[unit_idx + kUnitsAhead], first);
  }
  // As many lines ahead as a step reads of all keys, some between each two columns.
  constexpr int kAhead = 2 * kN * 4 * kChunk / 64, kBetween = HWY_MAX(1, kAhead / kChunk);
  const float* q = static_cast<const float*>(args.queries) + first_row * args.query_step;
  V x_sums[kRows], y_sums[kRows];
  QUIRE_UNROLL for (int g = 0; g < kRows; ++g) x_sums[g] = y_sums[g] = hn::Zero(kF32);
  for (int pair = 0; pair < half; pair += kPairs) {
    const char *near_line = nullptr, *far_line = nullptr;
    if constexpr (Rows::kIsList) {
      QUIRE_UNROLL for (int i = 0; i < 2; ++i) {  // as many as scores-inl.h, which suits rows
        near.template take<kAhead / 2>();
        far.template take<kAhead / 2>();
      }
    } else {
      near_line = near.take(kAhead, x_rows.row(0));
      far_line = far.take(kAhead, x_rows.row(0));
    }
    VU x[kChunk], y[kChunk];
    WholeChunk whole;
    load_columns(whole, x_rows, x);
    load_columns(whole, y_rows, y);
    QUIRE_UNROLL for (int j = 0; j < kChunk; ++j) {
      if constexpr (!Rows::kIsList) {
        QUIRE_UNROLL for (int i = 0; i < kBetween; ++i) if (j * kBetween + i < kAhead) {
          __builtin_prefetch(near_line, 0, 3);
          __builtin_prefetch(far_line, 0, 2);
          near_line += near.inner;
          far_line += far.inner;
        }
      }
      V xs[kNumbers], ys[kNumbers];
      ColumnNumbers<Keys>::of(x[j], xs);
      ColumnNumbers<Keys>::of(y[j], ys);
      QUIRE_UNROLL for (int n = 0; n < kNumbers; ++n) {
        const int at = pair + j * kNumbers + n;
        const Angle<float> angle = angles.of(at);
        const V to_x = fms(xs[n], angle.c, hn::Mul(ys[n], angle.s));
        const V to_y = fma(ys[n], angle.c, hn::Mul(xs[n], angle.s));
        QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
          x_sums[g] = fma(to_x, hn::Set(kF32, q[at * kRows + g]), x_sums[g]);
          y_sums[g] = fma(to_y, hn::Set(kF32, q[(half + at) * kRows + g]), y_sums[g]);
        }
      }
    }
    asm volatile("" ::: "memory");  // or g++ loads the next vectors early, and spills
    x_rows.advance(4 * kChunk);
    y_rows.advance(4 * kChunk);
  }
  float* const to = args.scores + first_row * kDecodeScoreStep + unit.place * kUnitKeys + first;
  const V scale = hn::Set(kF32, args.scale);
  QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
    const V sum = hn::Add(x_sums[g], y_sums[g]);
    hn::StoreU(args.natural ? hn::Mul(sum, scale) : sum, kF32, to + g * kDecodeScoreStep);
  }
}

template <class Keys, int kRows>
HWY_INLINE void rotated_rows(const UnitScoresArgs<float>& args, int first_row) {
  for (int unit = 0; unit < args.unit_count; ++unit) {
    const bool is_list = args.units[unit].rows != nullptr;
    if (first_row == 0) {
      prefetch_other<3>(args.ahead[unit + 1], is_list);
      prefetch_other<2>(args.ahead[unit + kUnitsAhead], is_list);
    }
    const auto block =
        is_list ? rotated_block<Keys, kRows, ListRows> : rotated_block<Keys, kRows, StepRows>;
    for (int first = 0; first < kUnitKeys; first += static_cast<int>(kLanes))
      block(args, unit, first, first_row);
  }
}

template <class Keys>
void rotated_unit_scores(const UnitScoresArgs<float>& args) {
  for (int row = 0; row < args.rows; row += kRowBlock[args.rows - row]) {
    switch (kRowBlock[args.rows - row]) {
      case 8:
        rotated_rows<Keys, 8>(args, row);
        break;
      case 4:
        rotated_rows<Keys, 4>(args, row);
        break;
      case 2:
        rotated_rows<Keys, 2>(args, row);
        break;
      default:
        rotated_rows<Keys, 1>(args, row);
    }
  }
}

// Of keys that may be rotated.
inline void any_scores_f32(const UnitScoresArgs<float>& args) noexcept {
  if (args.rope == nullptr) return scores_f32(args);
  if (args.kind == DecodeKind::kBf16) return rotated_unit_scores<KeysBf16>(args);
  if (args.kind == DecodeKind::kF16) return rotated_unit_scores<KeysF16>(args);
  rotated_unit_scores<KeysF32>(args);
}

#else

inline void any_scores_f32(const UnitScoresArgs<float>& args) noexcept { scores_f32(args); }

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

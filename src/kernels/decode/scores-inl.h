// Scores of the decode kernel: units of 16 keys, keys across the lanes, d ascending in fma chains
// of chain_dims, which are added up where the scores lie. A block is a few vectors of keys by 1, 2,
// 4 or 8 query rows; keys are transposed on their way from memory, queries broadcast. f32 on
// vectors; f64, and everything on one lane, in plain loops. Kernels layer.
#pragma once
#include <type_traits>

#include "kernels/coding/code_pairs-inl.h"
#include "kernels/decode/columns-inl.h"
#include "kernels/decode/integers-inl.h"
#include "kernels/float16-inl.h"
#include "kernels/fma-inl.h"
#include "kernels/pair_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

HWY_INLINE double fma_lane(double a, double b, double c) { return __builtin_fma(a, b, c); }

#if HWY_TARGET != HWY_SCALAR

HWY_INLINE float fma_lane(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// Keys that are numbers, which have no scales.
struct NoScales {
  HWY_INLINE NoScales(const DecodeUnit&, int) {}
};
// The scales of keys from `first` on.
struct LaneScales {
  V scale;
  HWY_INLINE LaneScales(const DecodeUnit& unit, int first)
      : scale(hn::LoadU(kF32, unit.scales + first)) {}
};

// One 32-bit number of each key: kNumbers query elements of `Query`.
struct KeysF32 {
  using Query = float;
  using Scales = NoScales;
  static constexpr int kNumbers = 1;
  static constexpr int kBytes = 4;  // of a dim
  template <int kRows>
  static HWY_INLINE void step(VU x, const float* q, V (&acc)[kRows], const NoScales&) {
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) acc[g] =
        fma(hn::BitCast(kF32, x), hn::Set(kF32, q[g]), acc[g]);
  }
};
struct KeysBf16 {
  using Query = float;
  using Scales = NoScales;
  static constexpr int kNumbers = 2;
  static constexpr int kBytes = 2;
  template <int kRows>
  static HWY_INLINE void step(VU x, const float* q, V (&acc)[kRows], const NoScales&) {
    const V even = hn::BitCast(kF32, hn::ShiftLeft<16>(x));
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) acc[g] = fma(even, hn::Set(kF32, q[g]), acc[g]);
    const V odd = hn::BitCast(kF32, hn::And(x, hn::Set(kU32, 0xffff0000u)));
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) acc[g] =
        fma(odd, hn::Set(kF32, q[kRows + g]), acc[g]);
  }
};
struct KeysF16 {
  using Query = float;
  using Scales = NoScales;
  static constexpr int kNumbers = 2;
  static constexpr int kBytes = 2;
  static HWY_INLINE V widen(VU x) {
    const hn::Rebind<uint16_t, F32> narrow;
    const hn::Rebind<hwy::float16_t, F32> half;
    return hn::PromoteTo(kF32, hn::BitCast(half, hn::TruncateTo(narrow, x)));
  }
  template <int kRows>
  static HWY_INLINE void step(VU x, const float* q, V (&acc)[kRows], const NoScales&) {
    const V even = widen(hn::And(x, hn::Set(kU32, 0xffffu)));
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) acc[g] = fma(even, hn::Set(kF32, q[g]), acc[g]);
    const V odd = widen(hn::ShiftRight<16>(x));
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) acc[g] =
        fma(odd, hn::Set(kF32, q[kRows + g]), acc[g]);
  }
};
// Four codes, decoded as decode-inl.h does.
struct KeysI8 {
  using Query = float;
  using Scales = LaneScales;
  static constexpr int kNumbers = 4;
  static constexpr int kBytes = 1;
  template <int kByte>
  static HWY_INLINE V number(VU x, const LaneScales& scales) {
    const VI code = hn::ShiftRight<24>(hn::BitCast(kI32, hn::ShiftLeft<24 - 8 * kByte>(x)));
    return hn::Mul(hn::ConvertTo(kF32, code), scales.scale);
  }
  template <int kRows>
  static HWY_INLINE void add(V key, const float* q, V (&acc)[kRows]) {
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) acc[g] = fma(key, hn::Set(kF32, q[g]), acc[g]);
  }
  template <int kRows>
  static HWY_INLINE void step(VU x, const float* q, V (&acc)[kRows], const LaneScales& scales) {
    add<kRows>(number<0>(x, scales), q, acc);
    add<kRows>(number<1>(x, scales), q + kRows, acc);
    add<kRows>(number<2>(x, scales), q + 2 * kRows, acc);
    add<kRows>(number<3>(x, scales), q + 3 * kRows, acc);
  }
};
#if defined(QUIRE_BF16_DOT)
struct KeysPairs {
  using Query = uint32_t;
  using Scales = NoScales;
  static constexpr int kNumbers = 1;  // a pair
  static constexpr int kBytes = 2;
  template <int kRows>
  static HWY_INLINE void step(VU x, const uint32_t* q, V (&acc)[kRows], const NoScales&) {
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) acc[g] = pair_dot_with(x, q + g, acc[g]);
  }
};
// Four codes are two pairs.
template <CodeType kType>
struct KeysCodePairs {
  using Query = uint32_t;
  using Scales = NoScales;
  static constexpr int kNumbers = 2;
  static constexpr int kBytes = 1;
  template <int kRows>
  static HWY_INLINE void step(VU x, const uint32_t* q, V (&acc)[kRows], const NoScales& none) {
    VU pairs[2];
    pairs_of_lane<kType>(x, pairs);
    KeysPairs::step(pairs[0], q, acc, none);
    KeysPairs::step(pairs[1], q + kRows, acc, none);
  }
};
#endif

// Whether the scales of the keys multiply their scores.
template <class Keys>
constexpr bool kScalesScores = false;
#if defined(QUIRE_BF16_DOT)
template <CodeType kType>
constexpr bool kScalesScores<KeysCodePairs<kType>> = true;
#endif

constexpr int kUnitVectors = kUnitKeys / static_cast<int>(kLanes);

// How Keys are summed up: dims per chain, sums per chain (acc[kRows * kSums]), and their total.
template <class Keys>
struct ScoreChain {
  static constexpr int kSums = 1;
  static HWY_INLINE int dims(int all) {
    return chain_dims(all, std::is_same_v<typename Keys::Query, uint32_t>);
  }
  template <int kRows>
  static HWY_INLINE V sum(const V (&acc)[kRows], int row, V before, bool is_first, int /*dims*/) {
    return is_first ? acc[row] : hn::Add(before, acc[row]);
  }
};

// Keys [first, first + kVectors * kLanes) of kUnits units, one after the other, by kRows rows. Few
// units at a time: with the next ones being prefetched, L1 holds twice as many, 16 KiB of f32 at
// 128 dims.
template <class Keys, int kRows, int kVectors, int kUnits, class Rows>
HWY_NOINLINE void score_block(const UnitScoresArgs<float>& args, int unit_idx, int first,
                              int first_row) {
  constexpr auto kN = static_cast<int>(kLanes);
  const DecodeUnit* const unit = args.units + unit_idx;
  Rows rows[kUnits];
  for (int u = 0; u < kUnits; ++u) rows[u] = Rows(unit[u], args.step).from(first);
  typename Rows::NearCursor near[kUnits];
  typename Rows::FarCursor far[kUnits];
  for (int u = 0; u < kUnits && first_row == 0; ++u) {  // once is enough
    near[u].start(args.ahead[unit_idx + u + kUnits], first);
    far[u].start(args.ahead[unit_idx + u + kUnitsAhead], first);
  }
  using Chain = ScoreChain<Keys>;
  constexpr int kAcc = kRows * Chain::kSums;
  V acc[kUnits][kVectors][kAcc];
  const auto* q = static_cast<const typename Keys::Query*>(args.queries);
  q += first_row * args.query_step;
  // As many lines ahead as a chunk of all keys has, one between each two columns: bursts would fill
  // the miss buffers.
  constexpr int kAhead = kVectors * kN * 4 * kChunk / 64;
  const V scale = hn::Set(kF32, args.scale);
  const int chain = Chain::dims(args.dims);
  int done = 0;
  do {
    QUIRE_UNROLL for (int u = 0; u < kUnits; ++u) QUIRE_UNROLL for (int v = 0; v < kVectors; ++v)
        QUIRE_UNROLL for (int g = 0; g < kAcc; ++g) acc[u][v][g] = hn::Zero(kF32);
    const int dims = HWY_MIN(chain, args.dims - done);
    int left = dims * Keys::kBytes;
    for (; left >= 4 * kChunk; left -= 4 * kChunk) {
      QUIRE_UNROLL for (int u = 0; u < kUnits; ++u) {
        const char *near_line = nullptr, *far_line = nullptr;
        if constexpr (Rows::kIsList) {
          near[u].template take<kAhead>();
          far[u].template take<kAhead>();
        } else {
          near_line = near[u].take(kAhead, rows[u].row(0));
          far_line = far[u].take(kAhead, rows[u].row(0));
        }
        QUIRE_UNROLL for (int v = 0; v < kVectors; ++v) {
          VU x[kChunk];
          WholeChunk whole;
          load_columns(whole, rows[u].from(v * kN), x);
          const typename Keys::Scales scales(unit[u], first + v * kN);
          QUIRE_UNROLL for (int j = 0; j < kChunk; ++j) {
            if constexpr (!Rows::kIsList) {
              if (v * kChunk + j < kAhead) {
                __builtin_prefetch(near_line, 0, 3);
                __builtin_prefetch(far_line, 0, 2);
                near_line += near[u].inner;
                far_line += far[u].inner;
              }
            }
            Keys::step(x[j], q + j * Keys::kNumbers * kRows, acc[u][v], scales);
          }
          asm volatile("" ::: "memory");  // or g++ loads the next vector early, and spills
        }
        rows[u].advance(4 * kChunk);
      }
      q += kChunk * Keys::kNumbers * kRows;
    }
    if (left > 0) {
      PartOfChunk part(left);
      QUIRE_UNROLL for (int u = 0; u < kUnits; ++u)
          QUIRE_UNROLL for (int v = 0; v < kVectors; ++v) {
        VU x[kChunk];
        load_columns(part, rows[u].from(v * kN), x);
        const typename Keys::Scales scales(unit[u], first + v * kN);
        QUIRE_UNROLL for (int j = 0; j < kChunk; ++j)
            Keys::step(x[j], q + j * Keys::kNumbers * kRows, acc[u][v], scales);
      }
    }
    const bool is_first = done == 0;
    done += chain;
    const bool is_last = done >= args.dims, scaled = args.natural && is_last;
    QUIRE_UNROLL for (int u = 0; u < kUnits; ++u) QUIRE_UNROLL for (int v = 0; v < kVectors; ++v) {
      float* const out = args.scores + first_row * kDecodeScoreStep + unit[u].place * kUnitKeys;
      QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
        float* const to = out + g * kDecodeScoreStep + first + v * kN;
        V sum = Chain::sum(acc[u][v], g, hn::LoadU(kF32, to), is_first, dims);
        if constexpr (kScalesScores<Keys>) {
          if (is_last) sum = hn::Mul(sum, LaneScales(unit[u], first + v * kN).scale);
        }
        hn::StoreU(scaled ? hn::Mul(sum, scale) : sum, kF32, to);
      }
    }
  } while (done < args.dims);
}

template <class Keys, int kRows, int kUnits>
HWY_INLINE void quiet_units(const UnitScoresArgs<float>& args, int unit, int first_row) {
  constexpr int kVectors = kRows <= 4 ? HWY_MIN(kUnitVectors, 2) : 1;
  for (int first = 0; first < kUnitKeys; first += kVectors * static_cast<int>(kLanes))
    score_block<Keys, kRows, kVectors, kUnits, QuietRows>(args, unit, first, first_row);
}

// Rows all of which have an address, and nothing to prefetch. A unit takes 16 cycles to transpose 8
// numbers of its keys, and as many products one after the other take 32: fewer than 8 rows have
// units side by side.
template <class Keys, int kRows>
HWY_INLINE void quiet_rows(const UnitScoresArgs<float>& args, int first_row) {
  constexpr int kSide = kUnitVectors > 1 || kRows == 8 ? 1 : kRows == 1 ? 4 : 2;
  int unit = 0;
  for (; unit + kSide <= args.unit_count; unit += kSide)
    quiet_units<Keys, kRows, kSide>(args, unit, first_row);
  for (; unit < args.unit_count; ++unit) quiet_units<Keys, kRows, 1>(args, unit, first_row);
}

template <class Keys, int kRows, int kUnits>
HWY_INLINE void score_units(const UnitScoresArgs<float>& args, int unit, int first_row) {
  constexpr int kVectors = kRows <= 4 ? HWY_MIN(kUnitVectors, 2) : 1;
  const bool is_list = args.units[unit].rows != nullptr;
  for (int u = unit; u < unit + kUnits && first_row == 0; ++u) {
    prefetch_other<3>(args.ahead[u + kUnits], is_list);
    prefetch_other<2>(args.ahead[u + kUnitsAhead], is_list);
  }
  const auto block = is_list ? score_block<Keys, kRows, kVectors, kUnits, ListRows>
                             : score_block<Keys, kRows, kVectors, kUnits, StepRows>;
  for (int first = 0; first < kUnitKeys; first += kVectors * static_cast<int>(kLanes))
    block(args, unit, first, first_row);
}

// Products of pairs take 6 cycles, so that a few rows of one vector would wait for each other: two
// units go side by side.
template <class Keys, int kRows>
HWY_INLINE void score_rows(const UnitScoresArgs<float>& args, int first_row) {
  constexpr bool kTwo =
      kUnitVectors == 1 && kRows <= 4 && std::is_same_v<typename Keys::Query, uint32_t>;
  if constexpr (std::is_same_v<typename Keys::Query, float>)  // pairs always prefetch
    if (!args.prefetches && args.units[0].rows != nullptr)
      return quiet_rows<Keys, kRows>(args, first_row);
  int unit = 0;
  if constexpr (kTwo) {
    for (; unit + 1 < args.unit_count; unit += 2) {
      const bool is_list = args.units[unit].rows != nullptr;
      if (is_list == (args.units[unit + 1].rows != nullptr)) {
        score_units<Keys, kRows, 2>(args, unit, first_row);
      } else {
        score_units<Keys, kRows, 1>(args, unit, first_row);
        score_units<Keys, kRows, 1>(args, unit + 1, first_row);
      }
    }
  }
  for (; unit < args.unit_count; ++unit) score_units<Keys, kRows, 1>(args, unit, first_row);
}

template <class Keys>
void unit_scores(const UnitScoresArgs<float>& args) {
  for (int row = 0; row < args.rows; row += kRowBlock[args.rows - row]) {
    switch (kRowBlock[args.rows - row]) {
      case 8:
        score_rows<Keys, 8>(args, row);
        break;
      case 4:
        score_rows<Keys, 4>(args, row);
        break;
      case 2:
        score_rows<Keys, 2>(args, row);
        break;
      default:
        score_rows<Keys, 1>(args, row);
    }
  }
}

inline void scores_f32(const UnitScoresArgs<float>& args) noexcept {
  switch (args.kind) {
    case DecodeKind::kOwn:
      return unit_scores<KeysF32>(args);
    case DecodeKind::kBf16:
      return unit_scores<KeysBf16>(args);
    case DecodeKind::kF16:
      return unit_scores<KeysF16>(args);
    case DecodeKind::kI8:
      return unit_scores<KeysI8>(args);
    case DecodeKind::kPairs:
#if defined(QUIRE_BF16_DOT)
      return unit_scores<KeysPairs>(args);
#endif
    case DecodeKind::kCodePairs:
#if defined(QUIRE_BF16_DOT)
      if (args.coding.codes == CodeType::kI8)
        return unit_scores<KeysCodePairs<CodeType::kI8>>(args);
      if (args.coding.codes == CodeType::kE4M3)
        return unit_scores<KeysCodePairs<CodeType::kE4M3>>(args);
      return unit_scores<KeysCodePairs<CodeType::kE5M2>>(args);
#endif
    case DecodeKind::kIntegers:
    case DecodeKind::kIntegerRows:
    case DecodeKind::kIntegerCodes:
      return integer_unit_scores(args);
    case DecodeKind::kTiles:  // amx/decode-inl.h
      return;
  }
}

#endif

// Sixteen chains side by side, number by number.
template <class T, class E>
void plain_scores(const UnitScoresArgs<T>& args) {
  const int chain = chain_dims(args.dims, false);
  for (int u = 0; u < args.unit_count; ++u) {
    const DecodeUnit& unit = args.units[u];
    for (int row = 0, first = 0; row < args.rows; ++row) {
      const int block = kRowBlock[args.rows - first];
      const T* q = static_cast<const T*>(args.queries) + first * args.query_step + row - first;
      T sums[kUnitKeys] = {}, acc[kUnitKeys] = {};
      for (int d = 0; d < args.dims; ++d) {
        for (int key = 0; key < kUnitKeys; ++key) {
          E number;
          const char* at = unit.rows == nullptr ? unit.at + key * args.step : unit.rows[key];
          std::memcpy(&number, at + d * static_cast<int>(sizeof(E)), sizeof(E));
          acc[key] = fma_lane(widened<T>(number), q[d * block], acc[key]);
        }
        if ((d + 1) % chain != 0 && d + 1 != args.dims) continue;
        for (int key = 0; key < kUnitKeys; ++key) {
          sums[key] = d < chain ? acc[key] : sums[key] + acc[key];
          acc[key] = 0;
        }
      }
      T* out = args.scores + row * kDecodeScoreStep + unit.place * kUnitKeys;
      for (int key = 0; key < kUnitKeys; ++key)
        out[key] = args.natural ? sums[key] * args.scale : sums[key];
      if (row + 1 == first + block) first = row + 1;
    }
  }
}

inline void scores_f64(const UnitScoresArgs<double>& args) noexcept {
  plain_scores<double, double>(args);
}

#if HWY_TARGET == HWY_SCALAR
inline void scores_f32(const UnitScoresArgs<float>& args) noexcept {
  if (args.kind == DecodeKind::kIntegers || args.kind == DecodeKind::kIntegerRows)
    return integer_unit_scores(args);
  if (args.kind == DecodeKind::kBf16) return plain_scores<float, Bf16Bits>(args);
  if (args.kind == DecodeKind::kF16) return plain_scores<float, F16Bits>(args);
  plain_scores<float, float>(args);
}
#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

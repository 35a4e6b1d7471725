// Decode over codes that are multiplied as integers: scores, weights and values of a few rows. A
// key's codes are widened in place, dims across the lanes, and the lanes of its sums added up in
// the end: sums of integers are exact in any order, so nothing must be transposed before. Kernels
// layer.
#pragma once
#include "kernels/decode/code_words-inl.h"
#include "kernels/decode/functions.h"
#include "kernels/integer_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Weights of one row of a tile, keys across the lanes, all under one power of two.
inline float code_weights(const CodeWeightsArgs& args) noexcept {
  constexpr int kN = static_cast<int>(kLanes);
  const hn::Rebind<int16_t, I32> narrow;
  const int begin = args.unit_begin * kUnitKeys, end = args.unit_end * kUnitKeys;
  const auto weight = [&](int i) HWY_ATTR {
    return weight_of_codes(hn::LoadU(kF32, args.weights + i),
                           hn::LoadU(kF32, args.value_scales + i));
  };
  VI largest = hn::Zero(kI32);
  for (int i = begin; i < end; i += kN) largest = hn::Max(largest, magnitude_bits(weight(i)));
  const IntegerCoding coding = coding_of(largest, args.shift);
  for (int i = begin; i < end; i += kN)
    hn::StoreU(hn::DemoteTo(narrow, coding.code(weight(i))), narrow, args.to + i);
  return hn::GetLane(coding.inverse);
}

HWY_INLINE const char* row_of(const DecodeUnit& unit, ptrdiff_t step, int key) {
  return unit.rows == nullptr ? unit.at + key * step : unit.rows[key];
}

// Rows of what comes later into L2: those of keys [begin, end). From there codes come in time: they
// are few for the work on each of them.
HWY_INLINE void prefetch_rows(const UnitAhead& unit, int begin, int end) {
  const int lines = unit.lines;
  for (int key = begin; key < end && lines > 0; ++key) {
    const char* row = unit.rows == nullptr ? unit.at + key * unit.step : unit.rows[key];
    __builtin_prefetch(row, 0, 2);
    if (HWY_LIKELY(lines == 2)) {  // 128 dims
      __builtin_prefetch(row + 64, 0, 2);
      continue;
    }
    for (int line = 1; line < lines; ++line) __builtin_prefetch(row + 64 * line, 0, 2);
  }
}

#if HWY_TARGET == HWY_SCALAR

template <class Code>
void integer_scores_of(const UnitScoresArgs<float>& args) {
  const auto* queries = static_cast<const int16_t*>(args.queries);
  for (int u = 0; u < args.unit_count; ++u) {
    const DecodeUnit& unit = args.units[u];
    for (int row = 0; row < args.rows; ++row) {
      float* out = args.scores + row * kDecodeScoreStep + unit.place * kUnitKeys;
      for (int key = 0; key < kUnitKeys; ++key) {
        const auto* codes = reinterpret_cast<const Code*>(row_of(unit, args.step, key));
        int32_t sum = 0;
        for (int d = 0; d < args.dims; ++d) sum += codes[d] * queries[row * args.query_step + d];
        const float score = static_cast<float>(sum) * unit.scales[key] * args.row_scales[row];
        out[key] = args.natural ? score * args.scale : score;
      }
    }
  }
}

template <class Code>
void integer_values_of(const UnitValuesArgs<float>& args) {
  for (int u = 0; u < args.unit_count; ++u) {
    const DecodeUnit& unit = args.units[u];
    for (int row = 0; row < args.rows; ++row) {
      const auto* weights = reinterpret_cast<const int16_t*>(args.pair_weights) +
                            row * kDecodeScoreStep + unit.place * kUnitKeys;
      auto* const chain = reinterpret_cast<int32_t*>(args.chain) + row * args.out_step;
      for (int c = 0; c < args.columns; ++c) {
        int32_t sum = unit.begins_chain ? 0 : chain[c];
        for (int key = unit.begin; key < unit.end; ++key)
          sum += weights[key] * reinterpret_cast<const Code*>(row_of(unit, args.step, key))[c];
        chain[c] = sum;
        if (unit.ends_chain)
          args.out[row * args.out_step + c] += static_cast<float>(sum) * args.row_scales[row];
      }
    }
  }
}

inline void integer_unit_scores(const UnitScoresArgs<float>& args) noexcept {
  if (args.kind == DecodeKind::kIntegers) return integer_scores_of<int8_t>(args);
  integer_scores_of<int16_t>(args);
}

inline void integer_unit_values(const UnitValuesArgs<float>& args) noexcept {
  if (args.kind == DecodeKind::kIntegers) return integer_values_of<int8_t>(args);
  integer_values_of<int16_t>(args);
}

#else

// Sums of two keys side by side: of each block of 128 bits, a's and b's in turn.
HWY_INLINE VI paired_sums(V a, V b) {
  const VI x = hn::BitCast(kI32, a), y = hn::BitCast(kI32, b);
  return hn::Add(hn::InterleaveLower(kI32, x, y), hn::InterleaveUpper(kI32, x, y));
}

// The same of four keys: a and b hold two each. Each block of 128 bits of the result holds one lane
// per key.
HWY_INLINE VI quartered_sums(VI a, VI b) {
  const hn::RepartitionToWide<I32> wide;
  const auto x = hn::BitCast(wide, a), y = hn::BitCast(wide, b);
  return hn::Add(hn::BitCast(kI32, hn::InterleaveLower(wide, x, y)),
                 hn::BitCast(kI32, hn::InterleaveUpper(wide, x, y)));
}

constexpr int kQuarters = static_cast<int>(kLanes) / 4;

// Lane i of the result: the sum of the lanes of key i; four keys in a row share a vector.
HWY_INLINE VI sums_of_lanes(const int32_t (&quarters)[kQuarters][kLanes]) {
  VI of[kQuarters];
  QUIRE_UNROLL for (int i = 0; i < kQuarters; ++i) of[i] = hn::Load(kI32, quarters[i]);
#if HWY_TARGET == HWY_NEON
  return of[0];
#elif HWY_TARGET == HWY_AVX2
  return hn::Add(hn::ConcatLowerLower(kI32, of[1], of[0]),
                 hn::ConcatUpperUpper(kI32, of[1], of[0]));
#else
  const auto halves_of = [](VI a, VI b) {
    return hn::Add(hn::ConcatLowerLower(kI32, b, a), hn::ConcatUpperUpper(kI32, b, a));
  };
  const VI low = halves_of(of[0], of[1]), high = halves_of(of[2], of[3]);
  return hn::Add(VI{_mm512_shuffle_i32x4(low.raw, high.raw, 0x88)},
                 VI{_mm512_shuffle_i32x4(low.raw, high.raw, 0xdd)});
#endif
}

// acc[key][row] += the products of some keys' codes with kWordLanes numbers of each query.
template <int kRows, int kKeys>
HWY_INLINE void add_products(const hn::Vec<Words> (&keys)[kKeys], const int16_t* queries,
                             ptrdiff_t query_step, V (&acc)[kKeys][kRows]) {
  QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
    VU query = hn::BitCast(kU32, hn::LoadU(kWords, queries + g * query_step));
    in_register(query);  // or g++ loads it for each key
    QUIRE_UNROLL for (int i = 0; i < kKeys; ++i) acc[i][g] =
        integer_dot(hn::BitCast(kU32, keys[i]), query, acc[i][g]);
  }
}

// Keys of a block of sums: as many as registers hold.
template <int kRows>
constexpr int kKeysAtOnce = kRows >= 4 && HWY_TARGET == HWY_AVX2 ? 2 : 4;

// sums[row]: lanes of a vector for each two of kKeysAtOnce keys, from the unit's key `first` on.
template <class Codes, int kRows>
HWY_INLINE void integer_sums(const Codes& codes, int first, const char* const* keys, int dims,
                             const int16_t* queries, ptrdiff_t query_step,
                             VI (&sums)[kKeysAtOnce<kRows> / 2][kRows]) {
  constexpr int kKeys = kKeysAtOnce<kRows>;
  V acc[kKeys][kRows];
  QUIRE_UNROLL for (int j = 0; j < kKeys; ++j) QUIRE_UNROLL for (int g = 0; g < kRows; ++g)
      acc[j][g] = hn::Zero(kF32);
  int d = 0;
  // Loads alone: 128 dims without a branch. With more to do to each the loop is faster.
  for (; Codes::kHasParts && dims - d >= 4 * kWordLanes; d += 4 * kWordLanes) {
    QUIRE_UNROLL for (int i = 0; i < 4; ++i) {
      hn::Vec<Words> words[kKeys];
      QUIRE_UNROLL for (int j = 0; j < kKeys; ++j) words[j] =
          codes.words(keys[j], first + j, d + i * kWordLanes);
      add_products(words, queries + d + i * kWordLanes, query_step, acc);
    }
  }
  for (; d < dims; d += kWordLanes) {
    hn::Vec<Words> words[kKeys];
    if (!Codes::kHasParts || HWY_LIKELY(dims - d >= kWordLanes)) {
      QUIRE_UNROLL for (int j = 0; j < kKeys; ++j) words[j] = codes.words(keys[j], first + j, d);
    } else if constexpr (Codes::kHasParts) {
      QUIRE_UNROLL for (int j = 0; j < kKeys; ++j) words[j] =
          codes.part(keys[j], first + j, d, dims - d);
    }
    add_products(words, queries + d, query_step, acc);
  }
  QUIRE_UNROLL for (int j = 0; j < kKeys / 2; ++j) QUIRE_UNROLL for (int g = 0; g < kRows; ++g)
      sums[j][g] = paired_sums(acc[2 * j][g], acc[2 * j + 1][g]);
}

// One unit by rows [first_row, first_row + kRows).
template <class Codes, int kRows>
HWY_NOINLINE void integer_score_block(const UnitScoresArgs<float>& args, int unit_idx,
                                      int first_row) {
  constexpr int kN = static_cast<int>(kLanes), kKeys = kKeysAtOnce<kRows>;
  const DecodeUnit& unit = args.units[unit_idx];
  const UnitAhead& far = args.ahead[unit_idx + kUnitsAhead];
  const ptrdiff_t query_step = args.query_step;
  const int16_t* const queries = static_cast<const int16_t*>(args.queries) + first_row * query_step;
  const V scale = hn::Set(kF32, args.natural ? args.scale : 1.0f);
  const Codes codes(args.by, unit);
  for (int first = 0; first < kUnitKeys; first += kN) {
    HWY_ALIGN int32_t quarters[kRows][kQuarters][kLanes];
    for (int i = 0; i < kN; i += 4) {
      const char* keys[4];
      for (int j = 0; j < 4; ++j) keys[j] = row_of(unit, args.step, first + i + j);
      if (first_row == 0) prefetch_rows(far, first + i, first + i + 4);
      VI pairs[2][kRows];
      if constexpr (kKeys == 4) {
        integer_sums<Codes, kRows>(codes, first + i, keys, args.dims, queries, query_step, pairs);
      } else {
        VI pair[1][kRows];
        QUIRE_UNROLL for (int j = 0; j < 2; ++j) {
          integer_sums<Codes, kRows>(codes, first + i + 2 * j, keys + 2 * j, args.dims, queries,
                                     query_step, pair);
          QUIRE_UNROLL for (int g = 0; g < kRows; ++g) pairs[j][g] = pair[0][g];
        }
      }
      QUIRE_UNROLL for (int g = 0; g < kRows; ++g)
          hn::Store(quartered_sums(pairs[0][g], pairs[1][g]), kI32, quarters[g][i / 4]);
    }
    const V scales = hn::LoadU(kF32, unit.scales + first);
    float* const out = args.scores + first_row * kDecodeScoreStep + unit.place * kUnitKeys + first;
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
      const V row_scale = hn::Set(kF32, args.row_scales[first_row + g]);
      const V score = hn::Mul(hn::ConvertTo(kF32, sums_of_lanes(quarters[g])), scales);
      hn::StoreU(hn::Mul(hn::Mul(score, row_scale), scale), kF32, out + g * kDecodeScoreStep);
    }
  }
}

template <class Codes>
void integer_scores_of(const UnitScoresArgs<float>& args) {
  for (int unit = 0; unit < args.unit_count; ++unit) {
    for (int row = 0; row < args.rows; row += kRowBlock[args.rows - row]) {
      switch (kRowBlock[args.rows - row]) {
        case 8:
          integer_score_block<Codes, 4>(args, unit, row);
          integer_score_block<Codes, 4>(args, unit, row + 4);
          break;
        case 4:
          integer_score_block<Codes, 4>(args, unit, row);
          break;
        case 2:
          integer_score_block<Codes, 2>(args, unit, row);
          break;
        default:
          integer_score_block<Codes, 1>(args, unit, row);
      }
    }
  }
}

// Columns [c, c + kWordLanes) of two keys, interleaved: of each 8 columns the first 4 in pairs[0],
// the other 4 in pairs[1].
HWY_INLINE void pairs_of_columns(hn::Vec<Words> even, hn::Vec<Words> odd, VU (&pairs)[2]) {
  pairs[0] = hn::BitCast(kU32, hn::InterleaveLower(kWords, even, odd));
  pairs[1] = hn::BitCast(kU32, hn::InterleaveUpper(kWords, even, odd));
}

// Some units of one chain, and what is prefetched meanwhile.
struct IntegerUnits {
  const DecodeUnit* units;
  int count;
  const UnitAhead* far = nullptr;  // one for each unit
};

// What a block of `kColumns` columns prefetches: the same columns of the rows of a unit that comes
// later, into L2. Where columns are not bytes of the same place, the first block prefetches all of
// a row.
template <class Codes, int kColumns>
class ColumnsAhead {
 public:
  HWY_INLINE ColumnsAhead(const UnitAhead& unit, int first, bool wanted)
      : unit_(unit), at_(unit.at + first), step_(unit.step), first_(first) {
    const bool is_here = Codes::kIsInPlace ? first % 64 < kColumns : first == 0;
    if (wanted && is_here && first / 64 < unit.lines)
      rows_ = unit.rows == nullptr ? kInPlace : unit.rows;
  }
  HWY_INLINE void fetch(int key) const {
    if constexpr (!Codes::kIsInPlace) {
      if (rows_ != nullptr) prefetch_rows(unit_, key, key + 1);
      return;
    }
    if (rows_ == nullptr) return;
    const char* row = rows_ == kInPlace ? at_ + key * step_ : rows_[key] + first_;
    QUIRE_UNROLL for (int byte = 0; byte < kColumns; byte += 64)
        __builtin_prefetch(row + byte, 0, 2);
  }

 private:
  static constexpr const char* kNoRows[1] = {};
  static constexpr const char* const* kInPlace = kNoRows;
  const UnitAhead& unit_;
  const char* at_;
  ptrdiff_t step_;
  int first_;
  const char* const* rows_ = nullptr;  // null: nothing to prefetch
};

// Rows [first_row, first_row + kRows), kLines times kWordLanes columns from `first` on; kPart: of
// one such line only `count` columns.
template <class Codes, int kRows, int kLines, bool kPart>
HWY_NOINLINE void integer_value_block(const UnitValuesArgs<float>& args, const IntegerUnits& of,
                                      int first_row, int first, int count) {
  constexpr int kN = static_cast<int>(kLanes), kVectors = 2 * kLines;
  const ptrdiff_t place = first_row * args.out_step + first;
  float* const chain = args.chain + place;
  V acc[kRows][kVectors];
  if (of.units[0].begins_chain) {
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) QUIRE_UNROLL for (int i = 0; i < kVectors; ++i)
        acc[g][i] = hn::Zero(kF32);
  } else {
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) QUIRE_UNROLL for (int i = 0; i < kVectors; ++i)
        acc[g][i] = hn::LoadU(kF32, chain + g * args.out_step + i * kN);
  }
  for (int u = 0; u < of.count; ++u) {
    const DecodeUnit& unit = of.units[u];
    const bool is_list = unit.rows != nullptr;
    const ColumnsAhead<Codes, kLines * kWordLanes> far(of.far[u], first, first_row == 0);
    const uint16_t* weights =
        args.pair_weights + first_row * kDecodeScoreStep + unit.place * kUnitKeys + unit.begin;
    const Codes codes(args.by, unit);
    const char* at = unit.at + unit.begin * args.step;
    for (int key = unit.begin; key < unit.end; key += 2, weights += 2, at += 2 * args.step) {
      const char* const even = is_list ? unit.rows[key] : at;
      const char* const odd = is_list ? unit.rows[key + 1] : at + args.step;
      far.fetch(key);
      far.fetch(key + 1);
      VU pairs[kLines][2];
      QUIRE_UNROLL for (int j = 0; j < kLines; ++j) {
        const int c = first + j * kWordLanes;
        if constexpr (kPart)
          pairs_of_columns(codes.part(even, key, c, count), codes.part(odd, key + 1, c, count),
                           pairs[j]);
        else
          pairs_of_columns(codes.words(even, key, c), codes.words(odd, key + 1, c), pairs[j]);
      }
      QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
        const VU weight = pair_in_all_lanes(weights + g * kDecodeScoreStep);
        QUIRE_UNROLL for (int i = 0; i < kVectors; ++i) acc[g][i] =
            integer_dot(pairs[i / 2][i % 2], weight, acc[g][i]);
      }
    }
  }
  const bool ends_chain = of.units[of.count - 1].ends_chain;
  QUIRE_UNROLL for (int g = 0; g < kRows; ++g) QUIRE_UNROLL for (int i = 0; i < kVectors; ++i) {
    const ptrdiff_t at = g * args.out_step + i * kN;
    if (!ends_chain) {
      hn::StoreU(acc[g][i], kF32, chain + at);
      continue;
    }
    const V total = hn::Mul(integer_sum(acc[g][i]), hn::Set(kF32, args.row_scales[first_row + g]));
    float* const out = args.out + place + at;
    hn::StoreU(hn::Add(hn::LoadU(kF32, out), total), kF32, out);
  }
}

// Vectors of sums: half of the registers.
constexpr int kMostValueSums = HWY_TARGET == HWY_AVX2 ? 8 : 16;

template <class Codes, int kRows>
HWY_INLINE void integer_value_rows(const UnitValuesArgs<float>& args, const IntegerUnits& of,
                                   int first_row) {
  constexpr int kLines = HWY_MIN(kMostValueSums / 2 / kRows, 4), kColumns = kLines * kWordLanes;
  int first = 0;
  for (; args.columns - first >= kColumns; first += kColumns)
    integer_value_block<Codes, kRows, kLines, false>(args, of, first_row, first, kColumns);
  for (; args.columns - first >= kWordLanes; first += kWordLanes)
    integer_value_block<Codes, kRows, 1, false>(args, of, first_row, first, kWordLanes);
  if constexpr (Codes::kHasParts) {
    if (first < args.columns)
      integer_value_block<Codes, kRows, 1, true>(args, of, first_row, first, args.columns - first);
  }
}

// Units that share one load and store of their sums: 8 KiB of codes of 128 dims.
constexpr int kMostIntegerUnits = 4;

template <class Codes>
void integer_values_of(const UnitValuesArgs<float>& args) {
  for (int unit = 0; unit < args.unit_count;) {
    IntegerUnits of{args.units + unit, 1, args.ahead + unit + kUnitsAhead};
    while (of.count < kMostIntegerUnits && unit + of.count < args.unit_count &&
           !of.units[of.count - 1].ends_chain)
      ++of.count;
    for (int row = 0; row < args.rows; row += kRowBlock[args.rows - row]) {
      switch (kRowBlock[args.rows - row]) {
        case 8:
          integer_value_rows<Codes, 4>(args, of, row);
          integer_value_rows<Codes, 4>(args, of, row + 4);
          break;
        case 4:
          integer_value_rows<Codes, 4>(args, of, row);
          break;
        case 2:
          integer_value_rows<Codes, 2>(args, of, row);
          break;
        default:
          integer_value_rows<Codes, 1>(args, of, row);
      }
    }
    unit += of.count;
  }
}

inline void integer_unit_scores(const UnitScoresArgs<float>& args) noexcept {
  if (args.kind == DecodeKind::kIntegers) return integer_scores_of<ByteWords>(args);
  if (args.kind == DecodeKind::kIntegerRows) return integer_scores_of<MadeWords>(args);
  with_ruled_words(args.coding, [&]<class Codes>() { integer_scores_of<Codes>(args); });
}

inline void integer_unit_values(const UnitValuesArgs<float>& args) noexcept {
  if (args.kind == DecodeKind::kIntegers) return integer_values_of<ByteWords>(args);
  if (args.kind == DecodeKind::kIntegerRows) return integer_values_of<MadeWords>(args);
  with_ruled_words(args.coding, [&]<class Codes>() { integer_values_of<Codes>(args); });
}

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

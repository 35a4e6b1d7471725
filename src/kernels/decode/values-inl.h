// Values of the decode kernel: O[row][column] += weight[row][key] * value[key][column], columns
// across the lanes, keys ascending in fma chains of chain_keys, each from 0. A value is loaded and
// widened once for all rows of a block; blocks of columns outside, the 16 keys of a unit inside.
// bf16 numbers are unpacked in memory order, so O holds its columns in another order until
// `reorder`. Kernels layer.
#pragma once
#include <cstring>

#include "kernels/coding/code_pairs-inl.h"
#include "kernels/decode/columns-inl.h"
#include "kernels/decode/integers-inl.h"
#include "kernels/float16-inl.h"
#include "kernels/fma-inl.h"
#include "kernels/pair_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// A copy of bytes [0, bytes) of a vector, then zeros, for a whole load: not all targets have masked
// loads of all types.
template <size_t kBytes>
struct PaddedBytes {
  HWY_ALIGN char bytes[kBytes] = {};
  HWY_INLINE const char* from(const char* at, int count) {
    std::memcpy(bytes, at, count);
    return bytes;
  }
};

// A "line" of values is what one load takes: kVectors vectors of kColumns columns altogether.
template <class D, class E>
struct PlainValues {
  using Tag = D;
  using Weight = hn::TFromD<D>;
  static constexpr int kKeys = 1;     // keys per step
  static constexpr int kVectors = 1;  // accumulators per line
  static constexpr int kBytes = static_cast<int>(hn::MaxLanes(D()) * sizeof(E));
  static constexpr int kColumnBytes = sizeof(E);
  using Vector = hn::Vec<D>;
  static HWY_INLINE void load(const char* at, ptrdiff_t, const DecodeUnit&, int, Vector (&x)[1]) {
    x[0] = load_widened(D(), reinterpret_cast<const E*>(at));
  }
  static HWY_INLINE void step(const Vector (&x)[1], const Weight* weight, hn::Vec<D> (&acc)[1]) {
    acc[0] = fma(x[0], hn::Set(D(), *weight), acc[0]);
  }
  static HWY_INLINE Vector broadcast(const Weight* weight) { return hn::Set(D(), *weight); }
  static HWY_INLINE hn::Vec<D> multiply_add(Vector x, Vector weight, hn::Vec<D> acc) {
    return fma_in_place(x, weight, acc);
  }
};

#if HWY_TARGET != HWY_SCALAR
// Codes, decoded as decode-inl.h does.
struct I8Values {
  using Tag = F32;
  using Weight = float;
  static constexpr int kKeys = 1;
  static constexpr int kVectors = 1;
  static constexpr int kBytes = kLanes;
  static constexpr int kColumnBytes = 1;
  using Vector = V;
  static HWY_INLINE void load(const char* at, ptrdiff_t, const DecodeUnit& unit, int key,
                              V (&x)[1]) {
    const V code = code_vector<CodeType::kI8>(reinterpret_cast<const uint8_t*>(at));
    x[0] = hn::Mul(code, hn::Set(kF32, unit.scales[key]));
  }
  static HWY_INLINE void step(const V (&x)[1], const float* weight, V (&acc)[1]) {
    acc[0] = fma(x[0], hn::Set(kF32, *weight), acc[0]);
  }
};

// Even columns, then odd ones.
struct Bf16Values {
  using Tag = F32;
  using Weight = float;
  static constexpr int kKeys = 1;
  static constexpr int kVectors = 2;
  static constexpr int kBytes = 4 * kLanes;
  static constexpr int kColumnBytes = 2;
  using Vector = V;
  static HWY_INLINE void load(const char* at, ptrdiff_t, const DecodeUnit&, int, V (&x)[2]) {
    const hn::Repartition<uint8_t, U32> bytes;
    const VU both = hn::BitCast(kU32, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(at)));
    x[0] = hn::BitCast(kF32, hn::ShiftLeft<16>(both));
    x[1] = hn::BitCast(kF32, hn::And(both, hn::Set(kU32, 0xffff0000u)));
  }
  static HWY_INLINE void step(const V (&x)[2], const float* weight, V (&acc)[2]) {
    const V w = hn::Set(kF32, *weight);
    acc[0] = fma(x[0], w, acc[0]);
    acc[1] = fma(x[1], w, acc[1]);
  }
  static HWY_INLINE V broadcast(const float* weight) { return hn::Set(kF32, *weight); }
  static HWY_INLINE V multiply_add(V x, V weight, V acc) { return fma_in_place(x, weight, acc); }
};
#endif

#if defined(QUIRE_BF16_DOT)
// Two keys a step, interleaved: of each 8 columns the first 4, then the other 4.
struct PairValues {
  using Tag = F32;
  using Weight = uint16_t;
  static constexpr int kKeys = 2;
  static constexpr int kVectors = 2;
  static constexpr int kBytes = 4 * kLanes;
  static constexpr int kColumnBytes = 2;
  using Vector = VU;
  static HWY_INLINE void load(const char* at, ptrdiff_t step, const DecodeUnit&, int, VU (&x)[2]) {
    const hn::Repartition<uint8_t, U32> bytes;
    const hn::Repartition<uint16_t, U32> words;
    const auto even = hn::BitCast(words, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(at)));
    const auto odd =
        hn::BitCast(words, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(at + step)));
    x[0] = hn::BitCast(kU32, hn::InterleaveLower(words, even, odd));
    x[1] = hn::BitCast(kU32, hn::InterleaveUpper(words, even, odd));
  }
  static HWY_INLINE void step(const VU (&x)[2], const uint16_t* weight, V (&acc)[2]) {
    acc[0] = pair_dot_with(x[0], weight, acc[0]);
    acc[1] = pair_dot_with(x[1], weight, acc[1]);
  }
  static HWY_INLINE VU broadcast(const uint16_t* weight) {
    uint32_t pair;
    std::memcpy(&pair, weight, 4);
    return hn::Set(kU32, pair);
  }
  static HWY_INLINE V multiply_add(VU x, VU weight, V acc) { return pair_dot(x, weight, acc); }
};

// Codes of two keys a step.
template <CodeType kType>
struct CodePairValues {
  using Tag = F32;
  using Weight = uint16_t;
  static constexpr int kKeys = 2;
  static constexpr int kVectors = kPairVectors;
  static constexpr int kBytes = kPairVectors * static_cast<int>(kLanes);
  static constexpr int kColumnBytes = 1;
  using Vector = VU;
  static HWY_INLINE void load(const char* at, ptrdiff_t step, const DecodeUnit&, int,
                              VU (&x)[kPairVectors]) {
    pairs_of_keys<kType>(at, at + step, x);
  }
  static HWY_INLINE void step(const VU (&x)[kPairVectors], const uint16_t* weight,
                              V (&acc)[kPairVectors]) {
    QUIRE_UNROLL for (int i = 0; i < kPairVectors; ++i) acc[i] =
        pair_dot_with(x[i], weight, acc[i]);
  }
};
#endif

// The line at `at`; kPart: of which only `part` bytes exist.
template <class Values, bool kPart>
HWY_INLINE void load_line(const char* at, ptrdiff_t step, int part, const DecodeUnit& unit, int key,
                          typename Values::Vector (&x)[Values::kVectors]) {
  if constexpr (kPart) {
    PaddedBytes<Values::kBytes> copy[2];
    copy[0].from(at, part);
    if constexpr (Values::kKeys == 2) copy[1].from(at + step, part);
    Values::load(copy[0].bytes, copy[1].bytes - copy[0].bytes, unit, key, x);
  } else {
    Values::load(at, step, unit, key, x);
  }
}

// Units that a block processes before its sums are written: 8 KiB of values, so that together with
// the next ones 16 KiB are in L1.
constexpr int kMostValueUnits = 4;
HWY_INLINE int value_units_at_once(int row_bytes) {
  return HWY_MAX(1, HWY_MIN(kMostValueUnits, 8192 / (kUnitKeys * row_bytes)));
}

// One block: units of one chain, rows [first_row, + kRows), lines [first_line, + kLines). kPart:
// the last line, of which only `part` bytes exist. As many lines as it reads are prefetched ahead.
template <class Rows>
struct ValueBlock {
  const DecodeUnit* units;
  int unit_count;
  int first_row, first_line;
  int part;
  typename Rows::NearCursor near[kMostValueUnits];
  typename Rows::FarCursor far[kMostValueUnits];
};

// What a block prefetches meanwhile: into L1 and L2, into L2 alone, or nothing.
enum class BlockAhead { kBoth, kFar, kNothing };

template <class Values, int kRows, int kLines, bool kPart, class Rows,
          BlockAhead kBlockAhead = BlockAhead::kBoth>
HWY_NOINLINE void value_block(const UnitValuesArgs<hn::TFromD<typename Values::Tag>>& args,
                              const typename Values::Weight* all_weights, ValueBlock<Rows>& block) {
  using D = typename Values::Tag;
  using T = hn::TFromD<D>;
  constexpr int kN = static_cast<int>(hn::MaxLanes(D()));
  hn::Vec<D> acc[kRows][kLines][Values::kVectors];
  const ptrdiff_t out_step = args.out_step,
                  first = block.first_row * out_step + block.first_line * Values::kVectors * kN;
  T* const chain = args.chain + first;
  if (block.units[0].begins_chain) {
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) QUIRE_UNROLL for (int j = 0; j < kLines; ++j)
        QUIRE_UNROLL for (int i = 0; i < Values::kVectors; ++i) acc[g][j][i] = hn::Zero(D());
  } else {
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) QUIRE_UNROLL for (int j = 0; j < kLines; ++j)
        QUIRE_UNROLL for (int i = 0; i < Values::kVectors; ++i) acc[g][j][i] =
            hn::LoadU(D(), chain + g * out_step + (j * Values::kVectors + i) * kN);
  }
  const ptrdiff_t offset = block.first_line * Values::kBytes;
  constexpr int kAhead = HWY_MAX(1, Values::kKeys * kLines * Values::kBytes / 64);
  constexpr bool kNear = kBlockAhead == BlockAhead::kBoth;
  constexpr bool kFar = kBlockAhead != BlockAhead::kNothing;
  for (int u = 0; u < block.unit_count; ++u) {
    const DecodeUnit& unit = block.units[u];
    ptrdiff_t step = args.step;
    const char* at = unit.at + unit.begin * step + offset;
    const auto* weights =
        all_weights + block.first_row * kDecodeScoreStep + unit.place * kUnitKeys + unit.begin;
    auto near = block.near[u];
    auto far = block.far[u];
    for (int key = unit.begin; key < unit.end; key += Values::kKeys) {
      const char *near_line = nullptr, *far_line = nullptr;
      if constexpr (Rows::kIsList) {
        at = unit.rows[key] + offset;
        if constexpr (Values::kKeys == 2) step = unit.rows[key + 1] - unit.rows[key];
        if constexpr (kNear) near.template take<kAhead>();
        if constexpr (kFar) far.template take<kAhead>();
      } else {
        if constexpr (kNear) near_line = near.take(kAhead, at);
        if constexpr (kFar) far_line = far.take(kAhead, at);
      }
      typename Values::Vector x[kLines][Values::kVectors];
      QUIRE_UNROLL for (int j = 0; j < kLines; ++j) {
        if constexpr (!Rows::kIsList) {
          QUIRE_UNROLL for (int i = j; i < kAhead; i += kLines) {
            if constexpr (kNear) {
              __builtin_prefetch(near_line, 0, 3);
              near_line += near.inner;
            }
            if constexpr (kFar) {
              __builtin_prefetch(far_line, 0, 2);
              far_line += far.inner;
            }
          }
        }
        load_line<Values, kPart>(at + j * Values::kBytes, step, block.part, unit, key, x[j]);
        if constexpr (kNear)
          QUIRE_UNROLL for (int g = 0; g < kRows; ++g)
              Values::step(x[j], weights + g * kDecodeScoreStep, acc[g][j]);
      }
      // A large block has registers for all lines: weights are loaded once.
      if constexpr (!kNear) {
        QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
          const auto weight = Values::broadcast(weights + g * kDecodeScoreStep);
          QUIRE_UNROLL for (int j = 0; j < kLines; ++j)
              QUIRE_UNROLL for (int i = 0; i < Values::kVectors; ++i) acc[g][j][i] =
                  Values::multiply_add(x[j][i], weight, acc[g][j][i]);
        }
      }
      at += Values::kKeys * step;
      weights += Values::kKeys;
    }
    block.near[u] = near;
    block.far[u] = far;
  }
  T* const out = args.out + first;
  if (block.units[block.unit_count - 1].ends_chain) {
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) QUIRE_UNROLL for (int j = 0; j < kLines; ++j)
        QUIRE_UNROLL for (int i = 0; i < Values::kVectors; ++i) {
      T* const to = out + g * out_step + (j * Values::kVectors + i) * kN;
      hn::StoreU(hn::Add(hn::LoadU(D(), to), acc[g][j][i]), D(), to);
    }
  } else {
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) QUIRE_UNROLL for (int j = 0; j < kLines; ++j)
        QUIRE_UNROLL for (int i = 0; i < Values::kVectors; ++i)
            hn::StoreU(acc[g][j][i], D(), chain + g * out_step + (j * Values::kVectors + i) * kN);
  }
}

// Accumulators of a block: 16 of 32 registers, 8 of 16.
#if HWY_TARGET == HWY_AVX2
constexpr int kValueAccumulators = 8;
#elif HWY_TARGET == HWY_SCALAR
constexpr int kValueAccumulators = 1;
#else
constexpr int kValueAccumulators = 16;
#endif

template <class Values, int kRows, class Rows>
struct ValueRows {
  using Args = UnitValuesArgs<hn::TFromD<typename Values::Tag>>;
  static constexpr int kMostLines =
      HWY_MIN(8, HWY_MAX(1, kValueAccumulators / (kRows * Values::kVectors)));

  const Args& args;
  const typename Values::Weight* weights;
  int lines, part;  // whole lines; bytes of the last one
  ValueBlock<Rows> block;

  template <int kLines>
  HWY_INLINE void whole_lines() {
    for (; block.first_line + kLines <= lines; block.first_line += kLines)
      value_block<Values, kRows, kLines, false, Rows>(args, weights, block);
    if constexpr (kLines > 1) whole_lines<kLines / 2>();
  }
  HWY_INLINE void run() {
    whole_lines<kMostLines>();
    if (part == 0) return;
    value_block<Values, kRows, 1, true, Rows>(args, weights, block);
  }
};

template <class Values, int kRows, class Rows>
HWY_INLINE void value_rows_of(const UnitValuesArgs<hn::TFromD<typename Values::Tag>>& args,
                              const typename Values::Weight* weights, int unit, int units,
                              int first_row) {
  const int bytes = args.columns * Values::kColumnBytes;
  ValueRows<Values, kRows, Rows> rows{.args = args,
                                      .weights = weights,
                                      .lines = bytes / Values::kBytes,
                                      .part = bytes % Values::kBytes,
                                      .block = {}};
  rows.block.units = &args.units[unit];
  rows.block.unit_count = units;
  rows.block.first_row = first_row;
  rows.block.part = rows.part;
  for (int u = 0; u < units && first_row == 0; ++u) {  // once is enough
    const UnitAhead &near = args.ahead[unit + u + units], &far = args.ahead[unit + u + kUnitsAhead];
    rows.block.near[u].start(near, 0);
    rows.block.far[u].start(far, 0);
    if (!args.prefetches) continue;
    prefetch_other<3>(near, Rows::kIsList);
    prefetch_other<2>(far, Rows::kIsList);
  }
  rows.run();
}

template <class Values, int kRows>
HWY_INLINE void value_rows(const UnitValuesArgs<hn::TFromD<typename Values::Tag>>& args,
                           const typename Values::Weight* weights, int unit, int units,
                           int first_row) {
  if (args.units[unit].rows != nullptr && Values::kKeys == 1 && !args.prefetches)
    value_rows_of<Values, kRows, QuietRows>(args, weights, unit, units, first_row);
  else if (args.units[unit].rows != nullptr)
    value_rows_of<Values, kRows, ListRows>(args, weights, unit, units, first_row);
  else
    value_rows_of<Values, kRows, StepRows>(args, weights, unit, units, first_row);
}

template <class Values>
void unit_values(const UnitValuesArgs<hn::TFromD<typename Values::Tag>>& args,
                 const typename Values::Weight* weights) {
  const int at_once = value_units_at_once(args.columns * Values::kColumnBytes);
  for (int unit = 0, units; unit < args.unit_count; unit += units) {
    // As many units as are addressed the same way, up to the end of a chain.
    const bool is_list = args.units[unit].rows != nullptr;
    for (units = 1; units < at_once && unit + units < args.unit_count; ++units)
      if (args.units[unit + units - 1].ends_chain ||
          (args.units[unit + units].rows != nullptr) != is_list)
        break;
    for (int row = 0; row < args.rows; row += kRowBlock[args.rows - row]) {
      switch (kRowBlock[args.rows - row]) {
        case 8:
          value_rows<Values, 8>(args, weights, unit, units, row);
          break;
        case 4:
          value_rows<Values, 4>(args, weights, unit, units, row);
          break;
        case 2:
          value_rows<Values, 2>(args, weights, unit, units, row);
          break;
        default:
          value_rows<Values, 1>(args, weights, unit, units, row);
      }
    }
  }
}

inline void values_f32(const UnitValuesArgs<float>& args) noexcept {
  switch (args.kind) {
    case DecodeKind::kOwn:
      return unit_values<PlainValues<F32, float>>(args, args.weights);
    case DecodeKind::kBf16:
#if HWY_TARGET == HWY_SCALAR
      return unit_values<PlainValues<F32, Bf16Bits>>(args, args.weights);
#else
      return unit_values<Bf16Values>(args, args.weights);
#endif
    case DecodeKind::kF16:
      return unit_values<PlainValues<F32, F16Bits>>(args, args.weights);
    case DecodeKind::kI8:
#if HWY_TARGET != HWY_SCALAR
      return unit_values<I8Values>(args, args.weights);
#endif
      return;
    case DecodeKind::kPairs:
#if defined(QUIRE_BF16_DOT)
      return unit_values<PairValues>(args, args.pair_weights);
#endif
    case DecodeKind::kCodePairs:
#if defined(QUIRE_BF16_DOT)
      if (args.coding.codes == CodeType::kI8)
        return unit_values<CodePairValues<CodeType::kI8>>(args, args.pair_weights);
      if (args.coding.codes == CodeType::kE4M3)
        return unit_values<CodePairValues<CodeType::kE4M3>>(args, args.pair_weights);
      return unit_values<CodePairValues<CodeType::kE5M2>>(args, args.pair_weights);
#endif
    case DecodeKind::kIntegers:
    case DecodeKind::kIntegerRows:
    case DecodeKind::kIntegerCodes:
      return integer_unit_values(args);
    case DecodeKind::kTiles:  // amx/decode-inl.h
      return;
  }
}

inline void values_f64(const UnitValuesArgs<double>& args) noexcept {
  unit_values<PlainValues<F64, double>>(args, args.weights);
}

// Where column `i` of a kDecodeColumns block lies.
HWY_INLINE int place_of_column([[maybe_unused]] DecodeKind kind, int i) {
#if HWY_TARGET != HWY_SCALAR
  constexpr int kN = static_cast<int>(kLanes);
  const int line = i / (2 * kN) * 2 * kN, at = i - line;
  if (kind == DecodeKind::kBf16 || kind == DecodeKind::kTiles) return line + (at & 1) * kN + at / 2;
  if (kind == DecodeKind::kPairs || kind == DecodeKind::kIntegers ||
      kind == DecodeKind::kIntegerRows || kind == DecodeKind::kIntegerCodes)
    return line + (at >> 2 & 1) * kN + at / 8 * 4 + (at & 3);
#endif
  return i;
}

template <class T>
void reorder(DecodeKind kind, const T* from, int count, T* to) noexcept {
  for (int block = 0; block < count; block += kDecodeColumns)
    for (int i = 0; i < kDecodeColumns; ++i) to[block + i] = from[block + place_of_column(kind, i)];
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

// Prefill over codes of int8, as they are, multiplied as integers, on tile registers:
// prefill/integers-inl.h with the same bits. An integer of 16 bits is 256 * high + low, two signed
// bytes, and a code is one; so two products of bytes, 64 dims or keys per step, give the sums,
// exact as all sums of integers are. Bytes of four dims, or of four keys, are a quad. Kernels
// layer.
#pragma once
#include <cstring>

#include "kernels/amx/tiles-inl.h"
#include "kernels/prefill/integers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

constexpr int kStepQuads = 16;
constexpr int kStepCodes = 4 * kStepQuads;
constexpr int kTileSize = kTileRows * kPanel;  // 32-bit elements

// Codes stay bytes: a row fills half of what is there for it, with zeros up to that.
inline void tile_copy_codes(const DecodeRowsArgs<uint16_t>& args) noexcept {
  const auto columns = static_cast<size_t>(args.columns);
  const auto zeros = static_cast<size_t>(args.out_columns) - columns;
  const char* from = args.codes;
  uint16_t* out = args.out;
  for (int row = 0; row < args.rows; ++row, from += args.code_step, out += args.out_step) {
    auto* const to = reinterpret_cast<char*>(out);
    std::memcpy(to, from, columns);
    std::memset(to + columns, 0, zeros);
  }
}

// Four integers of each lane to their high and low bytes.
struct ByteQuads {
  VU high, low;

  HWY_INLINE ByteQuads(const IntegerCoding& coding, V a, V b, V c, V d) {
    const hn::Repartition<uint16_t, U32> words;
    const auto even = hn::BitCast(words, coding.pair(a, c));
    const auto odd = hn::BitCast(words, coding.pair(b, d));
    // What is above a low byte of -128 to 127, times 256.
    const auto half = hn::Set(words, uint16_t{0x80}), byte = hn::Set(words, uint16_t{0xff});
    low = hn::BitCast(kU32, hn::Or(hn::And(even, byte), hn::ShiftLeft<8>(odd)));
    high = hn::BitCast(
        kU32, hn::Or(hn::ShiftRight<8>(hn::Add(even, half)), hn::AndNot(byte, hn::Add(odd, half))));
  }
};

// pairs[quad][high, low][64], zeros up to a whole step.
inline void tile_code_queries(const CodeQueriesArgs& args) noexcept {
  const int dims = (args.dims + kStepCodes - 1) / kStepCodes * kStepCodes;
  for (int lane = 0; lane < args.panels * kPanel; lane += kPanel) {
    const float* const from = args.queries + lane;
    const auto number = [&](int d) HWY_ATTR {
      return d < args.dims ? hn::LoadU(kF32, from + d * kQueryTile) : hn::Zero(kF32);
    };
    VI largest = hn::Zero(kI32);
    for (int d = 0; d < args.dims; ++d) largest = hn::Max(largest, magnitude_bits(number(d)));
    const IntegerCoding coding(largest, args.shift);
    hn::StoreU(coding.inverse, kF32, args.scales + lane);
    for (int d = 0; d < dims; d += 4) {
      const ByteQuads quads(coding, number(d), number(d + 1), number(d + 2), number(d + 3));
      uint32_t* const to = args.pairs + d / 2 * kQueryTile + lane;
      hn::StoreU(quads.high, kU32, to);
      hn::StoreU(quads.low, kU32, to + kQueryTile);
    }
  }
}

// Sums of `groups` times 16 rows of codes, 1 or 2, by both bytes of 16 integers: tiles 0 and 2 of
// the high bytes, 1 and 3 of the low ones. Rows are `row_step` bytes apart, quads `quad_step`.
template <int kGroups>
HWY_INLINE void code_steps(const void* codes, ptrdiff_t row_step, const uint32_t* quads,
                           ptrdiff_t quad_step, uint32_t steps) {
  const char* const rows = static_cast<const char*>(codes);
  clear_tile<0>();
  clear_tile<1>();
  if constexpr (kGroups == 2) clear_tile<2>();
  if constexpr (kGroups == 2) clear_tile<3>();
  for (uint32_t left = steps; left != 0; left &= left - 1) {
    const int step = __builtin_ctz(left);
    const char* const row = rows + step * kTileBytes;
    const uint32_t* const quad = quads + step * kStepQuads * quad_step;
    load_tile<4>(row, row_step);
    load_tile<6>(quad, quad_step * 4);
    multiply_codes<0, 4, 6>();
    load_tile<7>(quad + quad_step / 2, quad_step * 4);
    multiply_codes<1, 4, 7>();
    if constexpr (kGroups == 2) {
      load_tile<5>(row + kTileRows * row_step, row_step);
      multiply_codes<2, 5, 6>();
      multiply_codes<3, 5, 7>();
    }
  }
}

// The sums of a group, [row][16], in memory.
struct CodeSums {
  HWY_ALIGN int32_t high[kTileSize], low[kTileSize];

  template <int kGroup>
  HWY_INLINE void store() {
    store_tile<2 * kGroup>(high, kTileBytes);
    store_tile<2 * kGroup + 1>(low, kTileBytes);
  }
  HWY_INLINE V row(int r) const {
    const VI upper = hn::ShiftLeft<8>(hn::Load(kI32, high + r * kPanel));
    return hn::ConvertTo(kF32, hn::Add(upper, hn::Load(kI32, low + r * kPanel)));
  }
};

// Turns sums into scores, and finds the maxima.
HWY_INLINE void finish_code_scores(const ScoresArgs<float, uint32_t>& args, const CodeSums& sums,
                                   int row, int rows, int panel) {
  const V query_scale = hn::LoadU(kF32, args.lane_scales + panel * kPanel);
  const V scale = hn::Set(kF32, args.scaled ? args.scale : 1.0f);
  float* const to = args.scores + panel * kScorePanelStep + row * kPanel;
  float* const max = args.max == nullptr ? nullptr : args.max + panel * kPanel;
  V m = max == nullptr ? query_scale : hn::LoadU(kF32, max);
  for (int r = 0; r < rows; ++r) {
    const V of_key = hn::Mul(sums.row(r), hn::Set(kF32, args.row_scales[row + r]));
    const V score = hn::Mul(hn::Mul(of_key, query_scale), scale);
    hn::StoreU(score, kF32, to + r * kPanel);
    m = max_step(score, m);
  }
  if (max != nullptr) hn::StoreU(m, kF32, max);
}

template <int kGroups>
HWY_INLINE void code_scores(const ScoresArgs<float, uint32_t>& args, const uint32_t* keys,
                            ptrdiff_t key_step, int row, int rows) {
  const uint32_t steps = (uint32_t{1} << args.dims / (kStepCodes / 2)) - 1;
  CodeSums sums;
  for (int panel = 0; panel < args.panels; ++panel) {
    code_steps<kGroups>(keys, key_step * 4, args.queries + panel * kPanel, 2 * kQueryTile, steps);
    sums.store<0>();
    finish_code_scores(args, sums, row, HWY_MIN(rows, kTileRows), panel);
    if constexpr (kGroups == 2) {
      sums.store<1>();
      finish_code_scores(args, sums, row + kTileRows, kTileRows, panel);
    }
  }
}

// Fewer than 16 keys: copied, because a tile always has all 16 rows. What the others hold does not
// matter.
HWY_NOINLINE void code_scores_rest(const ScoresArgs<float, uint32_t>& args, int row) {
  constexpr int kMost = (kMostIntegerDims + kStepCodes - 1) / kStepCodes * kStepQuads;
  HWY_ALIGN uint32_t keys[kTileRows * kMost];
  const ptrdiff_t step = args.dims / 2;  // codes take half of a row
  for (int r = 0; r < args.rows - row; ++r)
    std::memcpy(keys + r * step, args.keys + (row + r) * args.key_step,
                static_cast<size_t>(step) * 4);
  code_scores<1>(args, keys, step, row, args.rows - row);
}

inline void tile_integer_scores(const ScoresArgs<float, uint32_t>& args) noexcept {
  int row = 0;
  for (; row + 2 * kTileRows <= args.rows; row += 2 * kTileRows)
    code_scores<2>(args, args.keys + row * args.key_step, args.key_step, row, 2 * kTileRows);
  if (row + kTileRows <= args.rows) {
    code_scores<1>(args, args.keys + row * args.key_step, args.key_step, row, kTileRows);
    row += kTileRows;
  }
  if (row < args.rows) code_scores_rest(args, row);
}

// out[column] = the bytes of four rows; rows that are not there are 0.
HWY_INLINE void interleave_codes(const uint8_t* from, ptrdiff_t row_step, int rows, int columns,
                                 uint32_t* HWY_RESTRICT out) {
  constexpr int kN = static_cast<int>(kLanes);
  const hn::Rebind<uint8_t, U32> narrow;
  int c = 0;
  for (; rows >= 4 && c + kN <= columns; c += kN) {
    const auto row = [&](int r) HWY_ATTR {
      return hn::PromoteTo(kU32, hn::LoadU(narrow, from + r * row_step + c));
    };
    const VU lower = hn::Or(row(0), hn::ShiftLeft<8>(row(1)));
    const VU upper = hn::Or(row(2), hn::ShiftLeft<8>(row(3)));
    hn::StoreU(hn::Or(lower, hn::ShiftLeft<16>(upper)), kU32, out + c);
  }
  for (; c < columns; ++c) {
    out[c] = 0;
    for (int r = 0; r < HWY_MIN(rows, 4); ++r)
      out[c] |= static_cast<uint32_t>(from[r * row_step + c]) << 8 * r;
  }
}

// out[column][key / 4] for 64 keys at a time: interleaved to quads, then transposed. Values come as
// tile_copy_codes leaves them.
inline void tile_quad_values(const RowsView& view, uint32_t* out, ptrdiff_t out_step,
                             int out_columns) noexcept {
  HWY_ALIGN uint32_t quads[kStepQuads * kMostHeadDim];
  const ptrdiff_t row_step = view.row_step * 2;
  for (int first = 0; first < view.rows; first += kStepCodes, out += kStepQuads) {
    for (int q = 0; q < kStepQuads; ++q) {
      uint32_t* const to = quads + q * out_columns;
      const int row = first + 4 * q, columns = row < view.rows ? view.columns : 0;
      const auto* const from = static_cast<const uint8_t*>(view.data) + row * row_step;
      interleave_codes(from, row_step, view.rows - row, columns, to);
      for (int c = columns; c < out_columns; ++c) to[c] = 0;
    }
    transpose_columns(reinterpret_cast<const float*>(quads), out_columns, out_columns,
                      reinterpret_cast<char*>(out), out_step * 4);
  }
}

// Bit s: step s of a tile of keys has weights. Runs are whole groups of 16 keys, as far as keys go.
HWY_INLINE uint32_t steps_of_keys(int first, int keys) {
  uint32_t steps = 0;
  for (int s = first / kStepCodes; s * kStepCodes < first + keys; ++s) steps |= uint32_t{1} << s;
  return steps;
}

// The weights of a panel with their values' scales to [quad][high, low][16], in place: a quad is
// written when all weights up to its last one have been read. Keys that no run has are 0 in steps
// that some run has.
inline void tile_integer_weights(const PairWeightsArgs& args) noexcept {
  static_assert(kLanes == kPanel);
  const IntegerCoding coding = scale_weights(args, 0);
  hn::StoreU(coding.inverse, kF32, args.scales);
  uint32_t steps = 0;
  for (const ChainRun *run = args.runs, *end = run + args.run_count; run != end; ++run)
    steps |= steps_of_keys(run->weight_row, run->rows);
  const ChainRun* run = args.runs;
  const ChainRun* const end = run + args.run_count;
  for (; steps != 0; steps &= steps - 1) {
    const int first = __builtin_ctz(steps) * kStepCodes;
    for (int key = first; key < first + kStepCodes; key += 4) {
      while (run != end && run->weight_row + run->rows <= key) ++run;
      const auto weight = [&](int k) HWY_ATTR {
        const bool exists = run != end && run->weight_row <= k && k < run->weight_row + run->rows;
        return exists ? hn::LoadU(kF32, args.weights + k * kPanel) : hn::Zero(kF32);
      };
      const ByteQuads quads(coding, weight(key), weight(key + 1), weight(key + 2), weight(key + 3));
      auto* const to = reinterpret_cast<uint32_t*>(args.weights) + key / 2 * kPanel;
      hn::StoreU(quads.high, kU32, to);
      hn::StoreU(quads.low, kU32, to + kPanel);
    }
  }
}

// Sums come as [column][query] and are transposed on the way to O.
HWY_INLINE void add_code_outputs(const AccumulateArgs<float, uint32_t>& args, const CodeSums& sums,
                                 int column) {
  HWY_ALIGN float turned[kTileSize], rows[kTileSize];
  const V scale = hn::LoadU(kF32, args.weight_scales);
  for (int c = 0; c < kPanel; ++c)
    hn::Store(hn::Mul(sums.row(c), scale), kF32, turned + c * kPanel);
  transpose_block(turned, kPanel, reinterpret_cast<char*>(rows), kTileBytes);
  for (int query = 0; query < args.queries; ++query) {
    float* const to = args.out + query * args.out_step + column;
    V out = hn::Load(kF32, rows + query * kPanel);
    if (args.factor != nullptr)
      out = hn::Add(hn::Mul(hn::LoadU(kF32, to), hn::Set(kF32, args.factor[query])), out);
    hn::StoreU(out, kF32, to);
  }
}

inline void tile_integer_accumulate(const AccumulateArgs<float, uint32_t>& args) noexcept {
  uint32_t steps = 0;
  for (const ChainRun *run = args.runs, *end = run + args.run_count; run != end; ++run)
    steps |= steps_of_keys(2 * run->value_row, 2 * run->rows);
  const ptrdiff_t value_bytes = args.value_step * 4;
  CodeSums sums;
  int column = 0;
  for (; column + 2 * kTileRows <= args.columns; column += 2 * kTileRows) {
    code_steps<2>(args.values + column * args.value_step, value_bytes, args.weights, 2 * kPanel,
                  steps);
    sums.store<0>();
    add_code_outputs(args, sums, column);
    sums.store<1>();
    add_code_outputs(args, sums, column + kTileRows);
  }
  if (column < args.columns) {
    code_steps<1>(args.values + column * args.value_step, value_bytes, args.weights, 2 * kPanel,
                  steps);
    sums.store<0>();
    add_code_outputs(args, sums, column);
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

// Prefill over codes that are multiplied as integers: queries and weights become integers of 16
// bits, scores and outputs are sums of pairs, exact whatever their order; scales are applied to the
// sums (attention_order.h). Keys and values come as rows of integers of 16 bits. Kernels layer.
#pragma once
#include "kernels/coding/decode-inl.h"
#include "kernels/integer_dot-inl.h"
#include "kernels/math/minmax-inl.h"
#include "kernels/pairs-inl.h"
#include "kernels/prefill/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Codes of i8 as integers of 16 bits.
inline void widen_rows_i16(const DecodeRowsArgs<uint16_t>& args) noexcept {
  constexpr int kN = static_cast<int>(kLanes);
  const hn::Rebind<int8_t, F32> narrow;
  const hn::Rebind<int16_t, F32> wide;
  const char* from = args.codes;
  uint16_t* out = args.out;
  for (int row = 0; row < args.rows; ++row, from += args.code_step, out += args.out_step) {
    const auto* codes = reinterpret_cast<const int8_t*>(from);
    auto* const to = reinterpret_cast<int16_t*>(out);
    int c = 0;
    for (; c + kN <= args.columns; c += kN)
      hn::StoreU(hn::PromoteTo(wide, hn::LoadU(narrow, codes + c)), wide, to + c);
    for (; c < args.columns; ++c) to[c] = codes[c];
    for (; c < args.out_columns; ++c) to[c] = 0;
  }
}

inline void code_queries(const CodeQueriesArgs& args) noexcept {
  for (int lane = 0; lane < args.panels * kPanel; lane += static_cast<int>(kLanes)) {
    const float* const from = args.queries + lane;
    VI largest = hn::Zero(kI32);
    for (int d = 0; d < args.dims; ++d)
      largest = hn::Max(largest, magnitude_bits(hn::LoadU(kF32, from + d * kQueryTile)));
    const IntegerCoding coding(largest, args.shift);
    hn::StoreU(coding.inverse, kF32, args.scales + lane);
    for (int d = 0; d < args.dims; d += 2) {
      const V even = hn::LoadU(kF32, from + d * kQueryTile);
      const V odd = hn::LoadU(kF32, from + (d + 1) * kQueryTile);
      hn::StoreU(coding.pair(even, odd), kU32, args.pairs + d / 2 * kQueryTile + lane);
    }
  }
}

// Multiplies weights by their values' scales, in place. Returns how those of these lanes are coded.
HWY_INLINE IntegerCoding scale_weights(const PairWeightsArgs& args, int lane) {
  VI largest = hn::Zero(kI32);
  for (const ChainRun *run = args.runs, *end = run + args.run_count; run != end; ++run) {
    float* const weights = args.weights + run->weight_row * kPanel + lane;
    for (int key = 0; key < run->rows; ++key) {
      const V scale = hn::Set(kF32, args.value_scales[run->value_row + key]);
      const V weight = weight_of_codes(hn::LoadU(kF32, weights + key * kPanel), scale);
      hn::StoreU(weight, kF32, weights + key * kPanel);
      largest = hn::Max(largest, magnitude_bits(weight));
    }
  }
  return IntegerCoding(largest, args.shift);
}

// The weights of a panel with their values' scales, in place: all of a query under one power of
// two.
inline void integer_weights(const PairWeightsArgs& args) noexcept {
  for (int lane = 0; lane < kPanel; lane += static_cast<int>(kLanes)) {
    const IntegerCoding coding = scale_weights(args, lane);
    hn::StoreU(coding.inverse, kF32, args.scales + lane);
    for (const ChainRun *run = args.runs, *end = run + args.run_count; run != end; ++run) {
      float* const weights = args.weights + run->weight_row * kPanel + lane;
      auto* const to = reinterpret_cast<uint32_t*>(weights);
      for (int key = 0; key < run->rows; key += 2) {
        const V even = hn::LoadU(kF32, weights + key * kPanel);
        const V odd =
            key + 1 < run->rows ? hn::LoadU(kF32, weights + (key + 1) * kPanel) : hn::Zero(kF32);
        hn::StoreU(coding.pair(even, odd), kU32, to + key / 2 * kPanel);
      }
    }
  }
}

// The work of product_blocks (product-inl.h): rows are keys, vectors are queries.
struct IntegerScoreBlocks {
  using T = float;
  using Args = ScoresArgs<float, uint32_t>;
  struct Place {
    const uint32_t* keys;
    float* scores;
  };

  static constexpr size_t most_rows(size_t vectors) { return block_rows(vectors); }
  static HWY_INLINE Place place(const Args& args, size_t vector) {
    return {args.keys, args.scores + score_offset<float>(vector)};
  }
  static HWY_INLINE void advance(const Args& args, Place& at, int rows) {
    at.keys += rows * args.key_step;
    at.scores += rows * kPanel;
  }

  template <size_t R, size_t C>
  static HWY_NOINLINE void block(const Args& args, size_t vector, const Place at) {
    V acc[R][C];
    clear_block<float>(acc);
    const uint32_t* keys = at.keys;
    const uint32_t* queries = args.queries + vector * kLanes;
    product_chain<IntegerProduct>(acc, keys, args.key_step, 1, queries, kQueryTile, args.dims);
    const float* const key_scales =
        args.row_scales + (at.scores - place(args, vector).scores) / kPanel;
    QUIRE_UNROLL for (size_t c = 0; c < C; ++c) {
      const size_t lane = (vector + c) * kLanes;
      const V query_scale = hn::LoadU(kF32, args.lane_scales + lane);
      QUIRE_UNROLL for (size_t r = 0; r < R; ++r) {
        const V score = hn::Mul(integer_sum(acc[r][c]), hn::Set(kF32, key_scales[r]));
        acc[r][c] = hn::Mul(score, query_scale);
      }
      if (args.scaled)
        QUIRE_UNROLL for (size_t r = 0; r < R; ++r) acc[r][c] =
            hn::Mul(acc[r][c], hn::Set(kF32, args.scale));
      QUIRE_UNROLL for (size_t r = 0; r < R; ++r)
          hn::StoreU(acc[r][c], kF32, at.scores + r * kPanel + score_offset<float>(c));
      if (args.max == nullptr) continue;
      V m = hn::LoadU(kF32, args.max + lane);
      QUIRE_UNROLL for (size_t r = 0; r < R; ++r) m = max_step(acc[r][c], m);
      hn::StoreU(m, kF32, args.max + lane);
    }
  }
};

inline void integer_scores(const ScoresArgs<float, uint32_t>& args) noexcept {
  product_blocks<IntegerScoreBlocks>(args, args.rows, args.panels);
}

// Rows are queries, vectors are columns. All runs of a tile are one chain.
struct IntegerOutputBlocks {
  using T = float;
  using Args = AccumulateArgs<float, uint32_t>;
  struct Place {
    ptrdiff_t query;
    float* out;
  };

  static constexpr size_t most_rows(size_t vectors) { return HWY_MIN(block_rows(vectors), 8); }
  static HWY_INLINE Place place(const Args& args, size_t vector) {
    return {0, args.out + vector * kLanes};
  }
  static HWY_INLINE void advance(const Args& args, Place& at, int rows) {
    at.query += rows;
    at.out += rows * args.out_step;
  }

  template <size_t R, size_t C>
  static HWY_NOINLINE void block(const Args& args, size_t vector, const Place at) {
    V acc[R][C];
    clear_block<float>(acc);
    for (const ChainRun *run = args.runs, *end = run + args.run_count; run != end; ++run) {
      const uint32_t* weights = args.weights + at.query + ptrdiff_t{run->weight_row} * kPanel;
      const uint32_t* values = args.values + vector * kLanes + run->value_row * args.value_step;
      product_chain<IntegerProduct>(acc, weights, 1, kPanel, values, args.value_step, run->rows);
    }
    QUIRE_UNROLL for (size_t r = 0; r < R; ++r) {
      float* const to = at.out + static_cast<ptrdiff_t>(r) * args.out_step;
      const V scale = hn::Set(kF32, args.weight_scales[at.query + static_cast<ptrdiff_t>(r)]);
      QUIRE_UNROLL for (size_t c = 0; c < C; ++c) {
        V out = hn::Mul(integer_sum(acc[r][c]), scale);
        if (args.factor != nullptr) {
          const V factor = hn::Set(kF32, args.factor[at.query + static_cast<ptrdiff_t>(r)]);
          out = hn::Add(hn::Mul(hn::LoadU(kF32, to + c * kLanes), factor), out);
        }
        hn::StoreU(out, kF32, to + c * kLanes);
      }
    }
  }
};

inline void integer_accumulate(const AccumulateArgs<float, uint32_t>& args) noexcept {
  product_blocks<IntegerOutputBlocks>(args, args.queries, args.columns / kPanel);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

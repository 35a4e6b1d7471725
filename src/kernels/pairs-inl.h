// Converts queries, keys, values and weights to the 32-bit pairs that products of pairs take:
// values of 16 bits of any kind, the rest bf16, only where the ISA multiplies that. Kernels layer.
#pragma once
#include "kernels/coding/decode-inl.h"
#include "kernels/pair_dot-inl.h"
#include "kernels/prefill/load_queries-inl.h"
#include "kernels/prefill/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// out[column] = (even[column], odd[column]); null: 0.
HWY_INLINE void interleave_rows(const uint16_t* even, const uint16_t* odd, ptrdiff_t step,
                                int columns, uint32_t* HWY_RESTRICT out) {
  constexpr int kN = static_cast<int>(kLanes);
  const hn::Rebind<uint16_t, U32> narrow;
  int c = 0;
  if (step == 1 && odd != nullptr) {
    for (; c + kN <= columns; c += kN) {
      const VU low = hn::PromoteTo(kU32, hn::LoadU(narrow, even + c));
      const VU high = hn::PromoteTo(kU32, hn::LoadU(narrow, odd + c));
      hn::StoreU(hn::Or(low, hn::ShiftLeft<16>(high)), kU32, out + c);
    }
  }
  for (; c < columns; ++c)
    out[c] = even[c * step] | (odd == nullptr ? 0u : static_cast<uint32_t>(odd[c * step]) << 16);
}

inline void pair_values(const RowsView& view, uint32_t* out, ptrdiff_t out_step,
                        int out_columns) noexcept {
  const auto* from = static_cast<const uint16_t*>(view.data);
  for (int r = 0; r < view.rows; r += 2, from += 2 * view.row_step, out += out_step) {
    const uint16_t* odd = r + 1 < view.rows ? from + view.row_step : nullptr;
    interleave_rows(from, odd, view.column_step, view.columns, out);
    for (int c = view.columns; c < out_columns; ++c) out[c] = 0;
  }
}

#if defined(QUIRE_BF16_DOT)

// One row: columns 2i and 2i + 1 to out[i].
HWY_INLINE void pair_row(const uint16_t* from, ptrdiff_t step, int columns, uint32_t* out) {
  const int pairs = columns / 2;
  if (step == 1) {
    std::memcpy(out, from, pairs * sizeof(uint32_t));
  } else {
    for (int i = 0; i < pairs; ++i)
      out[i] = from[2 * i * step] | static_cast<uint32_t>(from[(2 * i + 1) * step]) << 16;
  }
  if (columns % 2 != 0) out[pairs] = from[(columns - 1) * step];
}

inline void pair_copy_rows(const RowsView& view, uint32_t* out, ptrdiff_t out_step) noexcept {
  const auto* from = static_cast<const uint16_t*>(view.data);
  for (int r = 0; r < view.rows; ++r, from += view.row_step, out += out_step)
    pair_row(from, view.column_step, view.columns, out);
}

// Whether whole panels are transposed where they lie: pairs side by side, in whole blocks.
HWY_INLINE bool pairs_lie_well(const RowsView& view) {
  return view.column_step == 1 && view.row_step % 2 == 0 &&
         view.columns % (2 * kTransposeColumns) == 0;
}

inline void pair_load_queries(const RowsView& view, int panels, uint32_t* out) noexcept {
  HWY_ALIGN float buffer[kPanel][kQueryChunk];  // moved as bits, never computed with
  constexpr int kColumns = 2 * kQueryChunk;
  for (int panel = 0; panel < panels; ++panel) {
    if (pairs_lie_well(view) && (panel + 1) * kPanel <= view.rows) {
      const auto* const rows =
          static_cast<const uint16_t*>(view.data) + panel * kPanel * view.row_step;
      transpose_columns(reinterpret_cast<const float*>(rows), view.row_step / 2, view.columns / 2,
                        reinterpret_cast<char*>(out + panel * kPanel), kQueryTile * sizeof(float));
      continue;
    }
    for (int first = 0; first < view.columns; first += kColumns) {
      const int columns = HWY_MIN(kColumns, view.columns - first), pairs = (columns + 1) / 2;
      for (int lane = 0; lane < kPanel; ++lane) {
        const int row = panel * kPanel + lane;
        uint32_t words[kQueryChunk] = {};
        if (row < view.rows)
          pair_row(static_cast<const uint16_t*>(view.data) + row * view.row_step +
                       first * view.column_step,
                   view.column_step, columns, words);
        std::memcpy(buffer[lane], words, pairs * sizeof(uint32_t));
      }
      transpose_panel(buffer[0], kQueryChunk, pairs,
                      reinterpret_cast<float*>(out + first / 2 * kQueryTile + panel * kPanel));
    }
  }
}

// The instructions take subnormals for 0; weights are 0 or at least 2^-64.
HWY_INLINE void pair_run(float* weights, int keys, const float* scales) {
  for (int key = 0; key < keys; key += 2) {
    QUIRE_UNROLL for (int lane = 0; lane < kPanel; lane += static_cast<int>(kLanes)) {
      const float* from = weights + key * kPanel + lane;
      V even = hn::LoadU(kF32, from);
      V odd = key + 1 < keys ? hn::LoadU(kF32, from + kPanel) : hn::Zero(kF32);
      if (scales != nullptr) {
        even = weight_of_codes(even, hn::Set(kF32, scales[key]));
        if (key + 1 < keys) odd = weight_of_codes(odd, hn::Set(kF32, scales[key + 1]));
      }
      hn::StoreU(hn::BitCast(kF32, paired(even, odd)), kF32, weights + key / 2 * kPanel + lane);
    }
  }
}

// Where weights go: to pairs of keys.
struct WeightsToPairs {
  uint32_t* pairs;  // of key 0 and these lanes
  HWY_INLINE void two(V even, V odd, const float* /*at*/, int key) const {
    hn::StoreU(paired(even, odd), kU32, pairs + key / 2 * kPanel);
  }
  HWY_INLINE void one(V p, const float* at, int key) const { two(p, hn::Zero(kF32), at, key); }
};

inline void pair_softmax(const SoftmaxArgs<float>& args, uint32_t* pairs) noexcept {
  for (size_t lane = 0; lane < kPanel; lane += kLanes)
    softmax_vector<float>(args, lane, WeightsToPairs{pairs + lane});
}

inline void pair_weights(const PairWeightsArgs& args) noexcept {
  for (const ChainRun *run = args.runs, *end = run + args.run_count; run != end; ++run)
    pair_run(args.weights + run->weight_row * kPanel, run->rows,
             args.value_scales == nullptr ? nullptr : args.value_scales + run->value_row);
}

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

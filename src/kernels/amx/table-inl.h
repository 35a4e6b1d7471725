// The kernels of AMX: those of AVX-512 with bf16 products, but with these products on tile
// registers, and those of int8 in prefill. Included by isa/amx.cc alone. Kernels layer.
#pragma once
#include "kernels/amx/decode-inl.h"
#include "kernels/amx/integers-inl.h"
#include "kernels/amx/outputs-inl.h"
#include "kernels/amx/peaks-inl.h"
#include "kernels/amx/products-inl.h"
#include "kernels/amx/scores-inl.h"
#include "kernels/kernel_table.h"

namespace quire::kernels::avx512_bf16 {
const KernelTable& table() noexcept;
}

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Rows of pairs are filled up with zeros to whole steps.
inline void tile_load_queries(const RowsView& view, int panels, uint32_t* out) noexcept {
  pair_load_queries(view, panels, out);
  const int pairs = (view.columns + 1) / 2;
  for (int p = pairs; p % kStepPairs != 0; ++p)
    std::memset(out + ptrdiff_t{p} * kQueryTile, 0, static_cast<size_t>(panels) * kTileBytes);
}

inline void tile_copy_rows(const RowsView& view, uint32_t* out, ptrdiff_t out_step) noexcept {
  pair_copy_rows(view, out, out_step);
  const int pairs = (view.columns + 1) / 2;
  for (int r = 0; r < view.rows; ++r, out += out_step)
    for (int p = pairs; p % kStepPairs != 0; ++p) out[p] = 0;
}

inline void decode_scores(const UnitScoresArgs<float>& args) noexcept {
  if (args.kind == DecodeKind::kTiles) return tile_unit_scores(args);
  avx512_bf16::table().decode_f32->scores(args);
}

inline void decode_values(const UnitValuesArgs<float>& args) noexcept {
  if (args.kind == DecodeKind::kTiles) return tile_unit_values(args);
  avx512_bf16::table().decode_f32->values(args);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

// Outside HWY_BEFORE_NAMESPACE: baseline instructions only, callable before the CPU has been
// checked.
namespace quire::kernels::QUIRE_ISA_NS {

constexpr PairTiles kPairTiles{.run = &run_products,
                               .finish_scores = &tile_finish_scores,
                               .softmax = &tile_softmax,
                               .add_sums = &tile_add_sums,
                               .fold = &tile_fold,
                               .rows = &tile_rows};

constexpr PairFunctions kTilePairs{.load_queries = &tile_load_queries,
                                   .copy_rows = &tile_copy_rows,
                                   .scores = &tile_scores,
                                   .pair_values = &tile_pair_values,
                                   .pair_weights = &pair_weights,
                                   .accumulate = nullptr,
                                   .step = kStepPairs,
                                   .turned_step = kTileKeys / 2,
                                   .begin = &begin_tiles,
                                   .end = &end_tiles,
                                   .tiles = &kPairTiles};

constexpr PairFunctions kByteFunctions{.code_queries = &tile_code_queries,
                                       .widen_codes = &tile_copy_codes,
                                       .scores = &tile_integer_scores,
                                       .pair_values = &tile_quad_values,
                                       .pair_weights = &tile_integer_weights,
                                       .accumulate = &tile_integer_accumulate,
                                       .step = kStepCodes / 2,
                                       .turned_step = kTileKeys / 4,
                                       .begin = &begin_tiles,
                                       .end = &end_tiles};

// The tables that differ from those of avx512_bf16.
struct AmxTables {
  DecodeFunctions<float> decode;
  PeakFunctions peaks;
  KernelTable table;

  AmxTables() noexcept
      : decode(*avx512_bf16::table().decode_f32),
        peaks(*avx512_bf16::table().peaks),
        table(avx512_bf16::table()) {
    decode.scores = &decode_scores;
    decode.values = &decode_values;
    decode.reorder = &reorder<float>;
    peaks.pairs_bf16 = &peak_tiles_bf16;
    table.isa = Isa::QUIRE_ISA_NS;
    table.name = HWY_STR(QUIRE_ISA_NS);
    table.pairs = &kTilePairs;
    table.bytes = &kByteFunctions;
    table.decode_f32 = &decode;
    table.peaks = &peaks;
  }
};

const KernelTable& table() noexcept;

const KernelTable& table() noexcept {
  static const AmxTables tables;
  return tables.table;
}

}  // namespace quire::kernels::QUIRE_ISA_NS

// Values of the decode kernel for more than kFewDecodeRows rows: the blocks of values-inl.h, as
// large as registers allow, with the rows inside: what a block of columns reads of some units, 16
// KiB, stays in L1 for all rows. f32 on vectors. Kernels layer.
#pragma once
#include "kernels/decode/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET != HWY_SCALAR

// Vectors of columns in a block, beside 6 rows: 24 accumulators of 32 registers, 12 of 16.
#if HWY_TARGET == HWY_AVX2
constexpr int kManyVectors = 2;
#else
constexpr int kManyVectors = 4;
#endif

// kLines lines of all rows, in blocks of 6 and 5. Only the first block prefetches.
template <class Values, int kLines, bool kPart, class Rows>
HWY_INLINE void many_lines(const UnitValuesArgs<float>& args,
                           const typename Values::Weight* weights, ValueBlock<Rows>& block) {
  const int line = block.first_line, rows = many_rows(args.rows);
  const int blocks = (rows + 5) / 6, larger = rows - 5 * blocks;
  block.first_row = 0;
  for (int i = 0; i < blocks; ++i) {
    block.first_line = line;
    const bool six = i < larger;
    if (six && i == 0)
      value_block<Values, 6, kLines, kPart, Rows, BlockAhead::kFar>(args, weights, block);
    else if (six)
      value_block<Values, 6, kLines, kPart, Rows, BlockAhead::kNothing>(args, weights, block);
    else if (i == 0)
      value_block<Values, 5, kLines, kPart, Rows, BlockAhead::kFar>(args, weights, block);
    else
      value_block<Values, 5, kLines, kPart, Rows, BlockAhead::kNothing>(args, weights, block);
    block.first_row += six ? 6 : 5;
  }
}

template <class Values, class Rows>
void many_value_units(const UnitValuesArgs<float>& args, const typename Values::Weight* weights,
                      int unit, int units) {
  constexpr int kLines = kManyVectors / Values::kVectors;
  const int bytes = args.columns * Values::kColumnBytes, lines = bytes / Values::kBytes;
  ValueBlock<Rows> block{};
  block.units = &args.units[unit];
  block.unit_count = units;
  block.part = bytes % Values::kBytes;
  for (int u = 0; u < units; ++u) {
    const UnitAhead& far = args.ahead[unit + u + kUnitsAhead];
    block.far[u].start(far, 0);
    prefetch_other<2>(far, Rows::kIsList);
  }
  for (; block.first_line + kLines <= lines; block.first_line += kLines)
    many_lines<Values, kLines, false>(args, weights, block);
  if constexpr (kLines > 1)
    for (; block.first_line < lines; ++block.first_line)
      many_lines<Values, 1, false>(args, weights, block);
  if (block.part != 0) many_lines<Values, 1, true>(args, weights, block);
}

template <class Values>
void many_values_of(const UnitValuesArgs<float>& args, const typename Values::Weight* weights) {
  for (int unit = 0, units; unit < args.unit_count; unit += units) {
    const bool is_list = args.units[unit].rows != nullptr;
    for (units = 1; units < kMostValueUnits && unit + units < args.unit_count; ++units)
      if (args.units[unit + units - 1].ends_chain ||
          (args.units[unit + units].rows != nullptr) != is_list)
        break;
    if (is_list)
      many_value_units<Values, ListRows>(args, weights, unit, units);
    else
      many_value_units<Values, StepRows>(args, weights, unit, units);
  }
}

inline void many_values(const UnitValuesArgs<float>& args) noexcept {
  switch (args.kind) {
    case DecodeKind::kOwn:
      return many_values_of<PlainValues<F32, float>>(args, args.weights);
    case DecodeKind::kBf16:
      return many_values_of<Bf16Values>(args, args.weights);
    case DecodeKind::kF16:
      return many_values_of<PlainValues<F32, F16Bits>>(args, args.weights);
#if defined(QUIRE_BF16_DOT)
    case DecodeKind::kPairs:
      return many_values_of<PairValues>(args, args.pair_weights);
#endif
    default:  // most_decode_rows (decode.h)
      return;
  }
}

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

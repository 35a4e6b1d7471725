// Outputs of one tile: O[query][column] = O * factor + weights x values. Values are read as vectors
// from their own layout, weights are broadcast; chains of keys ascending, each from 0, are added to
// O one after the other, whatever the lane count and the register block. Kernels layer.
#pragma once
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Adds to the existing sums.
template <class T>
struct AddOutputs {
  T* out;
  ptrdiff_t step;
  template <size_t C>
  HWY_INLINE void row(size_t r, const VecOf<T> (&vectors)[C]) const {
    constexpr hn::ScalableTag<T> d;
    T* to = out + static_cast<ptrdiff_t>(r) * step;
    QUIRE_UNROLL for (size_t c = 0; c < C; ++c) hn::StoreU(
        hn::Add(hn::LoadU(d, to + c * kLanesOf<T>), vectors[c]), d, to + c * kLanesOf<T>);
  }
};

// Adds the chains of a tile to O; before the first one, O is multiplied by its factors or does not
// exist.
template <class T>
struct AddChain {
  AddOutputs<T> outputs;
  bool is_first;
  const T* factors;  // of the block's rows; null: there is no O yet
  template <size_t C>
  HWY_INLINE void row(size_t r, const VecOf<T> (&vectors)[C]) const {
    constexpr hn::ScalableTag<T> d;
    if (HWY_LIKELY(!is_first)) return outputs.row(r, vectors);
    T* to = outputs.out + static_cast<ptrdiff_t>(r) * outputs.step;
    if (factors == nullptr) {
      QUIRE_UNROLL for (size_t c = 0; c < C; ++c) hn::StoreU(vectors[c], d, to + c * kLanesOf<T>);
      return;
    }
    const VecOf<T> factor = hn::Set(d, factors[r]);
    QUIRE_UNROLL for (size_t c = 0; c < C; ++c)
        hn::StoreU(hn::Add(hn::Mul(hn::LoadU(d, to + c * kLanesOf<T>), factor), vectors[c]), d,
                   to + c * kLanesOf<T>);
  }
};

// The work of product_blocks (product-inl.h): rows are queries, vectors are columns.
template <class Product>
struct OutputBlocks {
  using T = typename Product::Sum;
  using E = typename Product::Element;
  using Args = AccumulateArgs<T, E>;
  struct Place {
    ptrdiff_t query;
    T* out;
  };

  // 16 queries are 8 + 8 where the vectors are few: more rows gain nothing.
  static constexpr size_t most_rows(size_t vectors) {
    return block_rows(vectors) < 8 ? block_rows(vectors) : 8;
  }
  static HWY_INLINE Place place(const Args& args, size_t vector) {
    return {0, args.out + vector * kLanesOf<T>};
  }
  static HWY_INLINE void advance(const Args& args, Place& at, int rows) {
    at.query += rows;
    at.out += rows * args.out_step;
  }

  template <size_t R, size_t C>
  static HWY_NOINLINE void block(const Args& args, size_t vector, const Place at) {
    VecOf<T> acc[R][C];
    const E* const weights = args.weights + at.query;
    const E* const values = args.values + vector * kLanesOf<T>;
    AddChain<T> store{
        {at.out, args.out_step}, true, args.factor == nullptr ? nullptr : args.factor + at.query};
    bool begins = true;
    for (const ChainRun *run = args.runs, *end = run + args.run_count; run != end; ++run) {
      if (begins) clear_block<T>(acc);
      begins = run->ends_chain;
      chain_stretch<Product>(acc, weights + ptrdiff_t{run->weight_row} * kPanel, 1, kPanel,
                             values + run->value_row * args.value_step, args.value_step, run->rows,
                             begins, store);
      if (begins) store.is_first = false;
    }
  }
};

template <class Product>
void accumulate(
    const AccumulateArgs<typename Product::Sum, typename Product::Element>& args) noexcept {
  product_blocks<OutputBlocks<Product>>(args, args.queries, args.columns / kPanel);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

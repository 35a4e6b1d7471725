// Outputs of one tile: O[query][column] = O * factor + weights x values. Values are read as vectors
// from their own layout, weights are broadcast; one chain per element, keys ascending, whatever the
// lane count and the register block. Kernels layer.
#pragma once
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

template <class T>
struct StoreOutputs {
  T* out;
  ptrdiff_t step;
  template <size_t C>
  HWY_INLINE void row(size_t r, const VecOf<T> (&vectors)[C]) const {
    T* to = out + static_cast<ptrdiff_t>(r) * step;
    QUIRE_UNROLL for (size_t c = 0; c < C; ++c)
        hn::StoreU(vectors[c], hn::ScalableTag<T>(), to + c * kLanesOf<T>);
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

  // 16 queries are 8 + 8 where the vectors are few: more rows bring nothing.
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

  // O times its factors, or 0.
  template <size_t R, size_t C>
  static HWY_INLINE void start(const Args& args, const Place at, VecOf<T> (&acc)[R][C]) {
    constexpr hn::ScalableTag<T> d;
    if (args.factor == nullptr) {
      QUIRE_UNROLL for (size_t r = 0; r < R; ++r) QUIRE_UNROLL for (size_t c = 0; c < C; ++c)
          acc[r][c] = hn::Zero(d);
      return;
    }
    const T* factors = args.factor + at.query;
    QUIRE_UNROLL for (size_t r = 0; r < R; ++r) {
      const VecOf<T> factor = hn::Set(d, factors[r]);
      const T* row = at.out + static_cast<ptrdiff_t>(r) * args.out_step;
      QUIRE_UNROLL for (size_t c = 0; c < C; ++c) acc[r][c] =
          hn::Mul(hn::LoadU(d, row + c * kLanesOf<T>), factor);
    }
  }

  template <size_t R, size_t C>
  static HWY_NOINLINE void block(const Args& args, size_t vector, const Place at) {
    VecOf<T> acc[R][C];
    start(args, at, acc);
    const E* weights = args.weights + at.query;
    const E* values = args.values + vector * kLanesOf<T>;
    const StoreOutputs<T> store{at.out, args.out_step};
    if (HWY_LIKELY(args.keys >= 2)) {
      product_chain<Product>(acc, weights, 1, kPanel, values, args.value_step, args.keys - 2);
      last_two_steps<Product>(acc, weights, 1, kPanel, values, args.value_step, store);
    } else {
      product_chain<Product>(acc, weights, 1, kPanel, values, args.value_step, args.keys);
      QUIRE_UNROLL for (size_t r = 0; r < R; ++r) store.row(r, acc[r]);
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

// The three sums of the backward pass: dK and dV (rows are keys; the chain of a query tile is added
// to what is there) and dQ (rows are queries; the chain of a chunk goes on). Weights are broadcast
// from [panel][key][16 queries], rows of Q, dO and K are vectors; one chain per element whatever
// the lane count and the register block. Kernels layer.
#pragma once
#include "kernels/backward/functions.h"
#include "kernels/prefill/accumulate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

template <class T, size_t R, size_t C>
HWY_INLINE void load_block(const T* from, ptrdiff_t step, VecOf<T> (&acc)[R][C]) {
  constexpr hn::ScalableTag<T> d;
  QUIRE_UNROLL for (size_t r = 0; r < R; ++r) QUIRE_UNROLL for (size_t c = 0; c < C; ++c)
      acc[r][c] = hn::LoadU(d, from + static_cast<ptrdiff_t>(r) * step + c * kLanesOf<T>);
}

// Added to what is there.
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

// The work of product_blocks (product-inl.h): rows are keys, steps are queries.
template <class Element>
struct AddToKeys {
  using T = Element;
  using Product = FmaProduct<T>;
  using Args = AddToKeysArgs<T>;
  struct Place {
    const T* weights;
    T* out;
  };

  static constexpr size_t most_rows(size_t vectors) {
    return block_rows(vectors) < 8 ? block_rows(vectors) : 8;
  }
  static HWY_INLINE Place place(const Args& args, size_t vector) {
    return {args.weights, args.out + vector * kLanesOf<T>};
  }
  static HWY_INLINE void advance(const Args& args, Place& at, int rows) {
    at.weights += rows * kPanel;
    at.out += rows * args.out_step;
  }

  template <size_t R, size_t C>
  static HWY_NOINLINE void block(const Args& args, size_t vector, const Place at) {
    constexpr hn::ScalableTag<T> d;
    VecOf<T> acc[R][C];
    QUIRE_UNROLL for (size_t r = 0; r < R; ++r) QUIRE_UNROLL for (size_t c = 0; c < C; ++c)
        acc[r][c] = hn::Zero(d);
    const T* rows = args.rows + vector * kLanesOf<T>;
    const T* panel = at.weights;
    for (int left = args.panels; left > 1; --left, panel += kScorePanelStep) {
      const T* weights = panel;
      product_chain<Product>(acc, weights, kPanel, 1, rows, args.row_step, kPanel);
    }
    product_chain<Product>(acc, panel, kPanel, 1, rows, args.row_step, kPanel - 2);
    last_two_steps<Product>(acc, panel, kPanel, 1, rows, args.row_step,
                            AddOutputs<T>{at.out, args.out_step});
  }
};

// Rows are queries, steps are keys.
template <class Element>
struct AddToQueries {
  using T = Element;
  using Product = FmaProduct<T>;
  using Args = AddToQueriesArgs<T>;
  struct Place {
    const T* weights;
    T* out;
  };

  static constexpr size_t most_rows(size_t vectors) { return AddToKeys<T>::most_rows(vectors); }
  static HWY_INLINE Place place(const Args& args, size_t vector) {
    return {args.weights, args.out + vector * kLanesOf<T>};
  }
  static HWY_INLINE void advance(const Args& args, Place& at, int rows) {
    at.weights += rows;
    at.out += rows * args.out_step;
  }

  template <size_t R, size_t C>
  static HWY_NOINLINE void block(const Args& args, size_t vector, const Place at) {
    VecOf<T> acc[R][C];
    load_block(at.out, args.out_step, acc);
    const T* weights = at.weights;
    const T* rows = args.rows + vector * kLanesOf<T>;
    const StoreOutputs<T> store{at.out, args.out_step};
    if (HWY_LIKELY(args.keys >= 2)) {
      product_chain<Product>(acc, weights, 1, kPanel, rows, args.row_step, args.keys - 2);
      last_two_steps<Product>(acc, weights, 1, kPanel, rows, args.row_step, store);
    } else {
      product_chain<Product>(acc, weights, 1, kPanel, rows, args.row_step, args.keys);
      QUIRE_UNROLL for (size_t r = 0; r < R; ++r) store.row(r, acc[r]);
    }
  }
};

template <class T>
void add_to_keys(const AddToKeysArgs<T>& args) noexcept {
  product_blocks<AddToKeys<T>>(args, args.keys, args.columns / kPanel);
}

template <class T>
void add_to_queries(const AddToQueriesArgs<T>& args) noexcept {
  product_blocks<AddToQueries<T>>(args, args.queries, args.columns / kPanel);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

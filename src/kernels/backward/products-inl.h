// The three sums of the backward pass: dK and dV (rows are keys, a chain is half a query tile) and
// dQ (rows are queries, a chain is a key tile). A chain starts from 0 and is added to what is
// there. Weights are broadcast from [panel][key][16 queries], rows of Q, dO and K are vectors,
// whatever the lane count and the register block. Kernels layer.
#pragma once
#include "kernels/backward/functions.h"
#include "kernels/prefill/accumulate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

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
    VecOf<T> acc[R][C];
    clear_block<T>(acc);
    const T* rows = args.rows + vector * kLanesOf<T>;
    const T* panel = at.weights;
    const int last = args.first_panel + args.panels - 1;
    for (int i = args.first_panel;; ++i, panel += kScorePanelStep) {
      const bool ends = i == last || (i + 1) % (kChainQueries / kPanel) == 0;
      chain_stretch<Product>(acc, panel, kPanel, 1, rows, args.row_step, kPanel, ends,
                             AddOutputs<T>{at.out, args.out_step});
      if (i == last) return;
      rows += kPanel * args.row_step;
      if (ends) clear_block<T>(acc);
    }
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
    clear_block<T>(acc);
    const T* const rows = args.rows + vector * kLanesOf<T>;
    for (const ChainRun *run = args.runs, *end = run + args.run_count; run != end; ++run)
      chain_stretch<Product>(acc, at.weights + ptrdiff_t{run->weight_row} * kPanel, 1, kPanel,
                             rows + run->value_row * args.row_step, args.row_step, run->rows,
                             run + 1 == end, AddOutputs<T>{at.out, args.out_step});
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

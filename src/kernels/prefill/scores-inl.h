// Scores of one tile: [key][query] = keys x queries. Keys are broadcast from their own layout,
// queries lie across the lanes; d ascending in chains of chain_dims, each from 0, which are added
// up where the scores lie, whatever the lane count and the register block. Kernels layer.
#pragma once
#include "kernels/math/minmax-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Where vector c lies, counted from a vector that begins a panel or shares its panel.
template <class T>
constexpr ptrdiff_t score_offset(size_t c) {
  return static_cast<ptrdiff_t>(c / kVectorsOf<T>) * kScorePanelStep +
         static_cast<ptrdiff_t>(c % kVectorsOf<T> * kLanesOf<T>);
}

// Stores the sum of a chain: the first is stored, the others are added to it, and the last turns
// the total into scores.
template <class T>
struct StoreScores {
  T* scores;
  bool is_first;
  bool ends;            // the last chain, with something to multiply by
  const T* row_scales;  // or null
  T scale;              // natural form, else 1
  template <size_t C>
  HWY_INLINE void row(size_t r, VecOf<T> (&vectors)[C]) const {
    constexpr hn::ScalableTag<T> d;
    T* const to = scores + r * kPanel;
    if (HWY_LIKELY(!is_first)) {
      QUIRE_UNROLL for (size_t c = 0; c < C; ++c) vectors[c] =
          hn::Add(hn::LoadU(d, to + score_offset<T>(c)), vectors[c]);
    }
    if (HWY_UNLIKELY(ends)) {
      if (row_scales != nullptr)
        QUIRE_UNROLL for (size_t c = 0; c < C; ++c) vectors[c] =
            hn::Mul(vectors[c], hn::Set(d, row_scales[r]));
      QUIRE_UNROLL for (size_t c = 0; c < C; ++c)
          hn::StoreU(hn::Mul(vectors[c], hn::Set(d, scale)), d, to + score_offset<T>(c));
    } else {
      QUIRE_UNROLL for (size_t c = 0; c < C; ++c)
          hn::StoreU(vectors[c], d, to + score_offset<T>(c));
    }
  }
};

// Two (C vectors each) or four steps of more than 8 rows, row by row: the address of a row is
// computed once for all of them, and there are no registers to keep 16 addresses.
template <class Product, int kSteps, size_t R, size_t C, class E>
HWY_INLINE void steps_by_rows(VecOf<typename Product::Sum> (&acc)[R][C], const E* keys,
                              ptrdiff_t key_step, const E* queries) {
  constexpr size_t kN = kLanesOf<typename Product::Sum>;
  typename Product::Operand vectors[kSteps][C];
  QUIRE_UNROLL for (int u = 0; u < kSteps; ++u) QUIRE_UNROLL for (size_t c = 0; c < C; ++c)
      vectors[u][c] = Product::load(queries + u * kQueryTile + c * kN);
  QUIRE_UNROLL for (size_t r = 0; r < R; ++r) {
    QUIRE_UNROLL for (int u = 0; u < kSteps; ++u) {
      const auto x = Product::broadcast(keys + static_cast<ptrdiff_t>(r) * key_step + u);
      QUIRE_UNROLL for (size_t c = 0; c < C; ++c) acc[r][c] =
          Product::multiply_add(x, vectors[u][c], acc[r][c]);
    }
  }
}

// `steps` steps along the dims, eight per iteration where the stores come last. Both pointers are
// advanced.
template <class Product, size_t R, size_t C, class E>
HWY_INLINE void keys_chain(VecOf<typename Product::Sum> (&acc)[R][C], const E*& keys,
                           ptrdiff_t key_step, const E*& queries, int steps) {
  constexpr int kUnroll = kStoresBetweenSteps ? 4 : 8;
  for (; steps >= kUnroll; steps -= kUnroll, keys += kUnroll, queries += kUnroll * kQueryTile) {
    // Otherwise g++ keeps an offset in memory for each of the R x kUnroll elements.
    asm("" : "+r"(key_step));
    if constexpr (R <= 8) {
      QUIRE_UNROLL for (int u = 0; u < kUnroll; ++u)
          product_step<Product>(acc, keys + u, key_step, queries + u * kQueryTile);
    } else if constexpr (C == 1) {
      steps_by_rows<Product, 4>(acc, keys, key_step, queries);
    } else {
      steps_by_rows<Product, 2>(acc, keys, key_step, queries);
      steps_by_rows<Product, 2>(acc, keys + 2, key_step, queries + 2 * kQueryTile);
    }
  }
  for (; steps > 0; --steps, ++keys, queries += kQueryTile)
    product_step<Product>(acc, keys, key_step, queries);
}

// One chain from 0, stored row by row, where registers allow it while its last steps are computed.
// Both pointers are advanced.
template <class Product, size_t R, size_t C, class E>
HWY_INLINE void scores_chain(VecOf<typename Product::Sum> (&acc)[R][C], const E*& keys,
                             ptrdiff_t key_step, const E*& queries, int steps,
                             const StoreScores<typename Product::Sum>& store) {
  clear_block<typename Product::Sum>(acc);
  if (kStoresBetweenSteps && HWY_LIKELY(steps >= 2)) {
    keys_chain<Product>(acc, keys, key_step, queries, steps - 2);
    last_two_steps<Product>(acc, keys, key_step, 1, queries, kQueryTile, store);
    keys += 2;
    queries += 2 * kQueryTile;
  } else {
    keys_chain<Product>(acc, keys, key_step, queries, steps);
    QUIRE_UNROLL for (size_t r = 0; r < R; ++r) store.row(r, acc[r]);
  }
}

// The work of product_blocks (product-inl.h): rows are keys, vectors are queries.
template <class Product>
struct ScoreBlocks {
  using T = typename Product::Sum;
  using E = typename Product::Element;
  using Args = ScoresArgs<T, E>;
  // What changes from block to block. Two pointers: a third would be passed in memory, which costs
  // 1 % of prefill, and a copy of the arguments would be read as vectors right after scalar stores.
  struct Place {
    const E* keys;
    T* scores;
  };

  static constexpr size_t most_rows(size_t vectors) { return block_rows(vectors); }
  static HWY_INLINE Place place(const Args& args, size_t vector) {
    return {args.keys, args.scores + score_offset<T>(vector)};
  }
  static HWY_INLINE void advance(const Args& args, Place& at, int rows) {
    at.keys += rows * args.key_step;
    at.scores += rows * kPanel;
  }
  // Of the block's keys, or null.
  static HWY_INLINE const T* row_scales(const Args& args, size_t vector, const Place& at) {
    if (HWY_LIKELY(args.row_scales == nullptr)) return nullptr;
    return args.row_scales + (at.scores - place(args, vector).scores) / kPanel;
  }

  template <size_t R, size_t C>
  static HWY_NOINLINE void block(const Args& args, size_t vector, const Place at) {
    constexpr hn::ScalableTag<T> d;
    constexpr int kNumbers = Product::kNumbers;
    const int chain = chain_dims(args.dims * kNumbers, kNumbers == 2) / kNumbers;
    VecOf<T> acc[R][C];
    const E* keys = at.keys;
    const E* queries = args.queries + vector * kLanesOf<T>;
    const T* const scales = row_scales(args, vector, at);
    const bool multiplies = args.scaled || scales != nullptr;
    const T scale = args.scaled ? args.scale : T{1};
    StoreScores<T> store{at.scores, true, false, scales, scale};
    // One loop for all chains: with two, g++ gives one of them too few registers on AVX2 and
    // spills.
    int left = args.dims;
    do {
      store.ends = multiplies && left <= chain;
      scores_chain<Product>(acc, keys, args.key_step, queries, HWY_MIN(left, chain), store);
      store.is_first = false;
      left -= chain;
    } while (left > 0);
    if (args.max == nullptr) return;
    T* max = args.max + vector * kLanesOf<T>;
    QUIRE_UNROLL for (size_t c = 0; c < C; ++c) {
      VecOf<T> m = hn::LoadU(d, max + c * kLanesOf<T>);
      QUIRE_UNROLL for (size_t r = 0; r < R; ++r) m = max_step(acc[r][c], m);
      hn::StoreU(m, d, max + c * kLanesOf<T>);
    }
  }
};

template <class Product>
void scores(const ScoresArgs<typename Product::Sum, typename Product::Element>& args) noexcept {
  product_blocks<ScoreBlocks<Product>>(args, args.rows, args.panels);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

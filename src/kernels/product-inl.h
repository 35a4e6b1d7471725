// The register-blocked core of every product: acc[R][C] += a (broadcast) x b (vectors), one chain
// of fused multiply-adds per accumulator, steps ascending. What a step multiplies is a Product:
// f32, f64, or pairs of bf16. Block sizes are chosen here; callers decide what rows and columns
// mean. Kernels layer.
#pragma once
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/fma-inl.h"
#include "kernels/pair_dot-inl.h"
#include "kernels/prefill/forward_functions.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

template <class T>
using VecOf = hn::Vec<hn::ScalableTag<T>>;
template <class T>
constexpr size_t kLanesOf = hn::MaxLanes(hn::ScalableTag<T>());
// How many vectors make a panel of 16 lanes.
template <class T>
constexpr size_t kVectorsOf = kPanel / kLanesOf<T>;

template <class T>
struct FmaProduct {
  using Element = T;
  using Sum = T;
  using Operand = VecOf<T>;
  static constexpr int kNumbers = 1;  // numbers of each factor per step
  static HWY_INLINE Operand load(const T* p) { return hn::LoadU(hn::ScalableTag<T>(), p); }
  static HWY_INLINE Operand broadcast(const T* p) { return hn::Set(hn::ScalableTag<T>(), *p); }
  static HWY_INLINE VecOf<T> multiply_add(Operand a, Operand b, VecOf<T> acc) {
    return fma_in_place(a, b, acc);
  }
};

#if defined(QUIRE_BF16_DOT)
// Two steps of f32 in one.
struct PairProduct {
  using Element = uint32_t;
  using Sum = float;
  using Operand = VU;
  static constexpr int kNumbers = 2;
  static HWY_INLINE VU load(const uint32_t* p) { return hn::LoadU(kU32, p); }
  // Keys are read in place and may be aligned to 2 bytes only.
  static HWY_INLINE VU broadcast(const uint32_t* p) {
    uint32_t pair;
    std::memcpy(&pair, p, sizeof(pair));
    return hn::Set(kU32, pair);
  }
  static HWY_INLINE V multiply_add(VU a, VU b, V acc) { return pair_dot(a, b, acc); }
};
#endif

// The most vectors of a register block, and the most rows for a number of vectors. 32 registers: 24
// accumulators, the vectors of a step and a broadcast. 16 registers: 6 x 2 + 2 + 1.
#if HWY_TARGET == HWY_SCALAR
constexpr size_t kBlockVectors = 1;
constexpr size_t block_rows(size_t /*vectors*/) { return 4; }
#elif HWY_TARGET == HWY_AVX2
constexpr size_t kBlockVectors = 2;
constexpr size_t block_rows(size_t /*vectors*/) { return 6; }
#else
constexpr size_t kBlockVectors = 4;
constexpr size_t block_rows(size_t vectors) {
  constexpr size_t kRows[] = {16, 12, 8, 6};
  return kRows[vectors - 1];
}
#endif

// One step: a[r * a_row] times the C vectors at b.
template <class Product, size_t R, size_t C>
HWY_INLINE void product_step(VecOf<typename Product::Sum> (&acc)[R][C],
                             const typename Product::Element* a, ptrdiff_t a_row,
                             const typename Product::Element* b) {
  constexpr size_t kN = kLanesOf<typename Product::Sum>;
  typename Product::Operand vectors[C];
  QUIRE_UNROLL for (size_t c = 0; c < C; ++c) vectors[c] = Product::load(b + c * kN);
  QUIRE_UNROLL for (size_t r = 0; r < R; ++r) {
    const auto x = Product::broadcast(a + static_cast<ptrdiff_t>(r) * a_row);
    QUIRE_UNROLL for (size_t c = 0; c < C; ++c) acc[r][c] =
        Product::multiply_add(x, vectors[c], acc[r][c]);
  }
}

// `steps` steps, a_step and b_step elements apart. Both pointers are advanced.
template <class Product, size_t R, size_t C, class E>
HWY_INLINE void product_chain(VecOf<typename Product::Sum> (&acc)[R][C], const E*& a,
                              ptrdiff_t a_row, ptrdiff_t a_step, const E*& b, ptrdiff_t b_step,
                              int steps) {
  constexpr ptrdiff_t kUnroll = 4;
  for (; steps >= kUnroll; steps -= kUnroll, a += kUnroll * a_step, b += kUnroll * b_step) {
    QUIRE_UNROLL for (ptrdiff_t u = 0; u < kUnroll; ++u)
        product_step<Product>(acc, a + u * a_step, a_row, b + u * b_step);
  }
  for (; steps > 0; --steps, a += a_step, b += b_step) product_step<Product>(acc, a, a_row, b);
}

// Whether the sums of a chain are stored between its last two steps. With 32 registers that hides
// the stores. With 16 it makes g++ spill and copy some of the 6 x 2 sums, in the loop before it
// too, which costs scores 5 to 9 % (Zen 3) and the sums of keys' gradients 8 % (Zen 4): there the
// stores come last.
constexpr bool kStoresBetweenSteps = HWY_TARGET != HWY_AVX2;

// The last two steps, row by row, and each row is stored (store.row(r, vectors), which may change
// them) while the next ones are computed.
template <class Product, size_t R, size_t C, class E, class Store>
HWY_INLINE void last_two_steps(VecOf<typename Product::Sum> (&acc)[R][C], const E* a,
                               ptrdiff_t a_row, ptrdiff_t a_step, const E* b, ptrdiff_t b_step,
                               const Store& store) {
  constexpr size_t kN = kLanesOf<typename Product::Sum>;
  typename Product::Operand vectors[C];
  QUIRE_UNROLL for (size_t c = 0; c < C; ++c) vectors[c] = Product::load(b + c * kN);
  QUIRE_UNROLL for (size_t r = 0; r < R; ++r) {
    const E* row = a + static_cast<ptrdiff_t>(r) * a_row;
    const auto x = Product::broadcast(row), y = Product::broadcast(row + a_step);
    QUIRE_UNROLL for (size_t c = 0; c < C; ++c) acc[r][c] =
        Product::multiply_add(x, vectors[c], acc[r][c]);
    // The vectors of the second step are loaded again for each row: there are no registers for
    // them.
    QUIRE_UNROLL for (size_t c = 0; c < C; ++c) acc[r][c] =
        Product::multiply_add(y, Product::load(b + b_step + c * kN), acc[r][c]);
    store.row(r, acc[r]);
    asm volatile("" ::: "memory");  // keeps g++ from moving the stores together
  }
}

template <class T, size_t R, size_t C>
HWY_INLINE void clear_block(VecOf<T> (&acc)[R][C]) {
  QUIRE_UNROLL for (size_t r = 0; r < R; ++r) QUIRE_UNROLL for (size_t c = 0; c < C; ++c)
      acc[r][c] = hn::Zero(hn::ScalableTag<T>());
}

// Part of a chain: `steps` steps, and if the chain ends there, each row is stored, where registers
// allow it while the last steps are computed.
template <class Product, size_t R, size_t C, class E, class Store>
HWY_INLINE void chain_stretch(VecOf<typename Product::Sum> (&acc)[R][C], const E* a,
                              ptrdiff_t a_row, ptrdiff_t a_step, const E* b, ptrdiff_t b_step,
                              int steps, bool ends, const Store& store) {
  const int last = kStoresBetweenSteps && ends && steps >= 2 ? 2 : 0;
  product_chain<Product>(acc, a, a_row, a_step, b, b_step, steps - last);
  if (HWY_UNLIKELY(!ends)) return;
  if (HWY_LIKELY(last != 0))
    return last_two_steps<Product>(acc, a, a_row, a_step, b, b_step, store);
  QUIRE_UNROLL for (size_t r = 0; r < R; ++r) store.row(r, acc[r]);
}

// The block functions for C vectors, indexed by rows - 1.
template <class Work, size_t C, size_t... R>
constexpr auto make_row_blocks(std::index_sequence<R...>) {
  struct Blocks {
    void (*of[sizeof...(R)])(const typename Work::Args&, size_t, typename Work::Place);
  };
  return Blocks{{&Work::template block<R + 1, C>...}};
}
template <class Work, size_t C>
constexpr auto kRowBlocks =
    make_row_blocks<Work, C>(std::make_index_sequence<Work::most_rows(C)>());

// All rows of C vectors. Blocks differ by at most one row: 16 rows are 6 + 5 + 5, not 6 + 6 + 4,
// because small blocks leave the multipliers waiting.
template <class Work, size_t C>
HWY_INLINE void product_rows(const typename Work::Args& args, int rows, size_t vector) {
  constexpr int kMost = static_cast<int>(Work::most_rows(C));
  const int blocks = (rows + kMost - 1) / kMost;
  if (blocks == 0) return;
  const int size = rows / blocks, larger = rows - blocks * size;
  typename Work::Place at = Work::place(args, vector);
  for (int i = 0; i < blocks; ++i) {
    const int n = i < larger ? size + 1 : size;
    kRowBlocks<Work, C>.of[n - 1](args, vector, at);
    Work::advance(args, at, n);
  }
}

// All rows and all vectors, register block by register block. Work has: T, Args, Place (of a
// block), most_rows(vectors), place, advance, and block<R, C>.
template <class Work>
HWY_INLINE void product_blocks(const typename Work::Args& args, int rows, int panels) {
  constexpr size_t kPer = kVectorsOf<typename Work::T>;
  const size_t vectors = static_cast<size_t>(panels) * kPer;
  size_t v = 0;
  for (; v + kBlockVectors <= vectors; v += kBlockVectors)
    product_rows<Work, kBlockVectors>(args, rows, v);
  // The last panels, if they do not fill a block; only where a block holds several panels.
  if constexpr (kPer < kBlockVectors) {
    if constexpr (kPer * 3 < kBlockVectors)
      if (vectors - v == kPer * 3) return product_rows<Work, kPer * 3>(args, rows, v);
    if constexpr (kPer * 2 < kBlockVectors)
      if (vectors - v == kPer * 2) return product_rows<Work, kPer * 2>(args, rows, v);
    if (vectors - v == kPer) product_rows<Work, kPer>(args, rows, v);
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

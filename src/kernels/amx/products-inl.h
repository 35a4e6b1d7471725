// Tile-register products that advance while vectors are computed on: a step is four loads and four
// products, which take 64 cycles but few of the instruction slots that vectors need. The softmax of
// one query tile thus hides the scores of the next and the outputs of the previous one. Kernels
// layer.
//
// Steps come in bursts. On Emerald Rapids a step took 77 cycles right after other steps and some
// 200 right after stores of weights; in a burst only the first step follows such stores, and
// products still run while the next weights are computed. (Bursts themselves have not been timed.)
#pragma once
#include "kernels/amx/tiles-inl.h"
#include "kernels/pairs-inl.h"
#include "kernels/prefill/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// One step, if there is one. Sums are tiles 0 to 3, rows 4 and 5, columns 6 and 7.
HWY_INLINE void advance(TileProducts& products) {
  if (products.at == products.count) return;
  const TileProduct& product = products.list[products.at];
  const int step = products.step;
  const char* const a = product.a + ptrdiff_t{step} * kTileBytes;
  const char* const b = product.b + step * kTileRows * product.b_row;
  if (step == 0) {
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<2>();
    clear_tile<3>();
  }
  load_tile<4>(a, product.a_row);
  load_tile<6>(b, product.b_row);
  multiply_tiles<0, 4, 6>();
  load_tile<7>(b + product.b_next, product.b_row);
  multiply_tiles<1, 4, 7>();
  load_tile<5>(a + product.a_next, product.a_row);
  multiply_tiles<2, 5, 6>();
  multiply_tiles<3, 5, 7>();
  products.step = step + 1;
  if (step + 1 < product.steps) return;
  store_tile<0>(product.out, kTileBytes);
  store_tile<1>(product.out + product.b_out, kTileBytes);
  store_tile<2>(product.out + product.a_out, kTileBytes);
  store_tile<3>(product.out + product.a_out + product.b_out, kTileBytes);
  products.step = 0;
  ++products.at;
}

constexpr int kBurst = 4;  // 16 products, 256 cycles

HWY_INLINE void advance_burst(TileProducts& products) {
  for (int i = 0; i < kBurst; ++i) advance(products);
}

inline void run_products(TileProducts& products) noexcept {
  while (products.at < products.count) advance(products);
  products.count = products.at = 0;
}

constexpr int kWeightBatch = 8;  // scores for a step: some 64 cycles

inline void tile_softmax(const SoftmaxArgs<float>& args, uint32_t* pairs,
                         TileProducts& products) noexcept {
  static_assert(kLanes == kPanel && kSums == kWeightBatch);
  const V c = hn::Set(kF32, args.exponent_factor);
  const V old_max = hn::LoadU(kF32, args.m);
  const V m = max_step(hn::LoadU(kF32, args.max), old_max);
  const V factor = move_factor<float>(c, old_max, m);
  // While nothing is visible 0 is subtracted: -inf - -inf would be NaN.
  const V none = hn::Set(kF32, -__builtin_inff());
  const V subtracted = hn::IfThenElse(hn::Eq(m, none), hn::Zero(kF32), m);
  V sums[kPartialSums];
  int batches = 0;
  for (int first = 0; first < kPartialSums; first += kWeightBatch) {
    V acc[kWeightBatch];
    QUIRE_UNROLL for (int i = 0; i < kWeightBatch; ++i) acc[i] = hn::Zero(kF32);
    for (uint32_t left = args.groups; left != 0; left &= left - 1) {
      const int key = __builtin_ctz(left) * kPanel + first;
      float* const at = args.scores + key * kPanel;
      // Keys that do not exist have weight 0.
      for (int i = args.rows - key; HWY_UNLIKELY(i < kWeightBatch); ++i)
        if (i >= 0) hn::StoreU(none, kF32, at + i * kPanel);
      QUIRE_UNROLL for (int i = 0; i < kWeightBatch; i += 2) {
        const V even = exp2_softmax(hn::Sub(hn::LoadU(kF32, at + i * kPanel), subtracted), c);
        const V odd = exp2_softmax(hn::Sub(hn::LoadU(kF32, at + (i + 1) * kPanel), subtracted), c);
        acc[i] = hn::Add(acc[i], even);
        acc[i + 1] = hn::Add(acc[i + 1], odd);
        hn::StoreU(paired(even, odd), kU32, pairs + (key + i) / 2 * kPanel);
      }
      if (++batches % kBurst == 0) advance_burst(products);
    }
    QUIRE_UNROLL for (int i = 0; i < kWeightBatch; ++i) sums[first + i] = acc[i];
  }
  QUIRE_UNROLL for (int half = kPartialSums / 2; half != 0; half /= 2)
      QUIRE_UNROLL for (int i = 0; i < half; ++i) sums[i] = hn::Add(sums[i], sums[i + half]);
  hn::StoreU(m, kF32, args.m);
  hn::StoreU(fma(hn::LoadU(kF32, args.l), factor, sums[0]), kF32, args.l);
  hn::StoreU(factor, kF32, args.factor);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

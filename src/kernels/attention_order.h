// The order of arithmetic of attention: the constants every kernel shares, whatever its shape or
// ISA. One query row has one defined result; these numbers are part of its definition and never
// change. Kernels layer.
//
// For one row, computed in f32 (f64 for f64 inputs):
//  - Score: one fma chain over d ascending, from 0, of q[d] * k[d]. Without a score mod and with
//    scale > 0 ("scaled" form): m = max(m, max * c), p = exp2(fms(s, c, m)), c = scale * log2e, one
//    product. Else ("natural" form): t = s * scale, then the mod, m = max of t, p = exp2((t - m) *
//    log2e). While m is -inf, 0 is subtracted instead, so p = 0.
//  - Keys come in tiles of kTileKeys counted from key 0, in order. A hidden key has p = 0.
//  - When m moves, l and O are multiplied by exp2(old - new), in natural form exp2((old - new) *
//    log2e); when not, by exactly 1.
//  - The sum of a tile: 16 partial sums from +0, by key mod 16, then a tree +8 +4 +2 +1; l = fma(l,
//    factor, sum).
//  - O[d]: one fma chain over the keys of a tile, ascending, from the rescaled O.
//  - Dropout (dropout.h) changes the weights of a tile between the two: after its sum, before O.
//  - Splits of kSplitTiles tiles from key 0 have a state (m, l, O) of their own, folded left in
//    order: m' = max, a and b the factors of both sides, l' = fma(l, a, l2 * b), O' = fma(O, a, O2
//    * b). A split with m = -inf is skipped, the first live one is taken as it is.
//  - Output: fma(O, 1 / l, +0), rounded to the output's type. A row without a visible key: 0, lse
//    -inf.
//  - bf16 products (all of q, k, v bf16, a CPU with the instruction): pairs (d, d + 1) in scores,
//    pairs of keys (2i, 2i + 1) in O, p rounded to bf16 there, an odd end pairs with 0.
//  - A row whose O is not finite is computed again by the row kernel, which skips values with
//  weight
//    0; so is, in natural form, a row with a split that ends with 2^24 <= |m| < inf in scaled form
//    (f64: 2^53).
#pragma once
#include <cstddef>

namespace quire::kernels {

inline constexpr int kTileKeys = 256;
inline constexpr int kSplitTiles = 4;
inline constexpr int kSplitKeys = kSplitTiles * kTileKeys;
inline constexpr int kPartialSums = 16;
inline constexpr double kLog2e = 1.4426950408889634;  // rounded to the compute type
inline constexpr double kLn2 = 0.6931471805599453;
/// Numbers a row of queries, keys or values has at most.
inline constexpr int kMostHeadDim = 1024;
/// |m| from here on is too coarse for the scaled form in f32.
inline constexpr double kCoarseMax = 16777216.0;  // 2^24

}  // namespace quire::kernels

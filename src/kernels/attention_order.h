// The order of arithmetic of attention: the constants every kernel shares, whatever its shape or
// ISA. One query row has one defined result; these numbers are part of its definition and never
// change. Kernels layer.
//
// For one row, computed in f32 (f64 for f64 inputs):
//  - Score: fma chains over d ascending of q[d] * k[d], chain_dims long, each from 0; the first is
//    the sum, the others are added to it in order. Without a score mod and with scale > 0
//    ("scaled" form) that is the score, and c = scale * log2e, one product. Else ("natural" form):
//    t = s * scale, then the mod, and c = log2e. (exponent_factor below.)
//  - m = max of the scores. p = 2^((s - m) * c) as in math/exp2_softmax-inl.h: 1 at the maximum,
//  and
//    nothing but the difference is rounded. While m is -inf, 0 is subtracted instead, so p = 0.
//  - Keys come in tiles of kTileKeys counted from key 0, in order. A hidden key has p = 0.
//  - When m moves, l and O are multiplied by 2^((old - new) * c); when not, by exactly 1.
//  - The sum of a tile: 16 partial sums from +0, by key mod 16, then a tree +8 +4 +2 +1; l = fma(l,
//    factor, sum).
//  - O[d]: O * factor, rounded; then the tile's fma chains over keys ascending, chain_keys long,
//    each from 0, are added one after the other. A chain without a visible key adds nothing.
//  - Dropout (dropout.h) changes the weights of a tile between the two: after its sum, before O.
//  - Splits of kSplitTiles tiles from key 0 have a state (m, l, O) of their own, folded left in
//    order: m' = max, a and b the factors of both sides, l' = fma(l, a, l2 * b), O' = fma(O, a, O2
//    * b). A split with m = -inf is skipped, the first live one is taken as it is.
//  - Output: fma(O, 1 / l, +0), rounded to the output's type. A row without a visible key: 0, lse
//    -inf. lse: m + log(l), scaled form fma(m, scale, log(l)).
//  - bf16 products (all of q, k, v bf16, a CPU with the instruction): pairs (d, d + 1) in scores,
//    pairs of keys (2i, 2i + 1) in O, p rounded to bf16 there, an odd end pairs with 0.
//  - A row whose O is not finite is computed again by the row kernel, which skips values with
//    weight 0.
//
// Why these lengths. Error of a long sum grows with its chains. Relative to torch's SDPA (f32,
// random normal, S = 2,048, D = 64), chains of 1,024 keys have 1.7 times its error, of 256
// keys 1.1, of 128 keys 0.95, of 64 keys 0.90; with chains of 32 dims instead of 64, 128 keys have
// 0.75. At D = 256 one chain over all dims alone has 1.3 times torch's error, chains of 64 half of
// it. Every chain costs a read, an addition and a write.
#pragma once
#include <cstddef>

namespace quire::kernels {

inline constexpr int kTileKeys = 256;
inline constexpr int kSplitTiles = 4;
inline constexpr int kSplitKeys = kSplitTiles * kTileKeys;
inline constexpr int kPartialSums = 16;
inline constexpr double kLog2e = 1.4426950408889634;  // rounded to the compute type

/// Keys of a chain of O. `pairs`: bf16 products, whose sums lose nothing that the roundings to bf16
/// around them would leave.
constexpr int chain_keys(bool pairs) { return pairs ? kTileKeys : 128; }

/// Dims of a chain of a score, given all dims: 64 are 2 chains, 128 too, 256 are 4.
constexpr int chain_dims(int dims, bool pairs) { return pairs ? 128 : dims <= 64 ? 32 : 64; }

/// By what a difference of scores is multiplied to become an exponent of 2: of scores as they are,
/// or as `scale` and a score mod have left them.
template <class T>
constexpr T exponent_factor(bool natural, double scale) {
  const T log2e = static_cast<T>(kLog2e);
  return natural ? log2e : static_cast<T>(scale) * log2e;
}

}  // namespace quire::kernels

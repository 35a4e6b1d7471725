// The order of arithmetic of attention: the constants every kernel shares, whatever its shape or
// ISA. One query row has one defined result; these numbers are part of its definition and never
// change. Kernels layer.
//
// For one row, computed in f32 (f64 for f64 inputs):
//  - Score: fma chains over d ascending of q[d] * k[d], chain_dims long, each from 0; the first is
//    the sum, the others are added to it in order. Without a score mod and with a scale of which
//    is_scaled() is true ("scaled" form) that is the score, and c = scale * log2e, one product.
//    Else ("natural" form): t = s * scale, then the mod, and c = log2e. (exponent_factor below.)
//  - m = max of the scores. p = 2^((s - m) * c): the difference is rounded, the product is not
//    (exp2_softmax-inl.h), so p is 1 at the maximum. While m is -inf, 0 is subtracted instead, so p
//    = 0.
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
//  - Sinks (row_end.h): folded last, in natural units (t = m, scaled form m * scale). A sink s of
//    at most t adds exp2((s - t) * log2e) to l. One above t: f = exp2((t - s) * log2e),
//    l' = fma(l, f, 1), and the output is fma(O, f / l', +0). Equal ones weigh exactly 1.
//    With lse_with_sinks, lse is max(s, t) + log(l'), where l' is the sum with the sink, whichever
//    of the two is larger.
//  - Weights by a formula: the score program's result is p, hidden and -inf ones are 0; m is 0 once
//    something was seen, so no factor is other than 1, and sums, chains, splits and folds are as
//    above. Output: fma(O, 1, +0), or divided by l as above.
//  - Rope (rope.h): queries and keys are rotated in compute type before their score is taken. They
//    are not rounded again to the type of the tensor; since they are no longer bf16, there are no
//    bf16 products then.
//  - bf16 products (all of q, k, v bf16, a CPU with the instruction): pairs (d, d + 1) in scores,
//    pairs of keys (2i, 2i + 1) in O, p rounded to bf16 there, an odd end pairs with 0. A step of a
//    chain, with a and b the pairs, is
//      avx512_bf16  acc' = fma(a1, b1, acc), then fma(a0, b0, acc'), each to nearest;
//      neon_bf16    acc + (a0 * b0 + a1 * b1), both sums rounded to odd: cut off, and the last bit
//                   set where that lost something (BFDOT with FPCR.EBF = 0, which FloatEnv sets);
//    subnormals are 0 in all of them, before and after (tests/support/pair_product.cc).
//    By tile registers (amx) 32 numbers are a step, counted from dim 0 or from the tile's first
//    key, zeros after the last: a chain over the even ones and one over the odd ones, from 0, are
//    added, and that is added to the sum of the steps before, from 0; subnormals are 0 in all of
//    it. A score is one such sum, and so is what a tile of keys adds to O.
//  - Quantised keys and values are decoded to f32 first, a rounding for each of zero point, scale
//    and minimum (coding/row_coding.h), and then are f32 like any others. With a rotation, q is
//    multiplied by Hadamard's matrix before the scores and O before the division
//    (coding/rotate.h): additions over pairs 1, 2, 4, .. apart, then one product with 1 /
//    sqrt(block). There are three exceptions, for queries of 16 bits without rope.
//  - Keys and values of int8, both, queries of bf16 or f16 (an even number of dims, up to
//    kMostIntegerDims): a query becomes integers of 16 bits, its numbers (rotated, if the format
//    says so) times the largest power of two that leaves them within 32,639 = 127 * 257, rounded
//    to the nearest, ties to even. (So an integer is two signed bytes.) Its sum with a key's codes
//    is exact. The score is that sum, rounded to f32, times the key's scale, times the query's
//    power of two taken back, a rounding each. Weights of a row's tile, after dropout, times their
//    values' scales (0 if the weight is) become integers in the same way, by their largest; what
//    the tile adds to O is the exact sum with the codes, rounded to f32, times the power of two
//    taken back. Where a number is not finite, that power is NaN. (Exponents of the largest number
//    are taken to be at least -112.)
//  - Keys and values of int8_channel, u8, int4, q8_0 or q4_0, or int8 beside them, with queries of
//    bf16 (an even number of dims, up to kMostRowDims): rows of those codes become integers first.
//    With codes of n bits counted from the middle, c, a number of a group is c * s + a, where a is
//    0, (middle - zero) * s or middle * s + minimum, each operation rounded. r = s * 2^(n-1). Of
//    all groups of a row the largest |r| + |a|, rounded, decides about its power of two, which is
//    kRowShift bits less than that of queries above. By it 16 * r and a are rounded to integers R
//    and A, ties to even; R is made odd, so that no c * R lies half way. The row's integers are
//    ((c * R + 2^(n+2)) >> (n+3)) + A. From there they are codes of int8 with the power of two
//    taken back as their scale. Queries over such keys are row_query_shift bits shorter, weights of
//    such values kRowWeightShift. Where a scale is not finite, the power taken back is NaN.
//  - Other codes of one byte under one scale for their row (fp8, or int8 beside them;
//    are_bf16_codes), with queries of bf16 that nothing rotates, where the ISA multiplies pairs and
//    has no tile registers: they are bf16 numbers as they are, and products are those of bf16; a
//    score is the sum of its chains times the key's scale, rounded, before anything else; the
//    weight of a value is rounded to bf16 after the product with its scale, rounded (0 if the
//    weight is). l is the sum of the weights alone.
//  - A row whose O is not finite is computed again by the row kernel, which skips values with
//    weight 0.
//
// Why these chain lengths. The rounding error of a sum grows with the length of its chains. Error
// of the outputs (f32, random normal, D = 64) relative to torch's SDPA at S = 128 / 512 / 2,048:
// chains of 1,024 keys 1.00 / 1.33 / 1.65, of 256 keys 1.00 / 1.09 / 1.06, of 128 keys 1.00 / 0.95
// / 0.94, of 64 keys 0.89 / 0.86 / 0.88. Halving the dims of a score chain takes another 0.15 off
// these and as much off the error of the gradients, which recompute their weights from scores;
// beyond 128 dims a single chain has more error than torch (1.4 at D = 256). Each chain costs a
// read, an addition and a write of its sum.
#pragma once
#include <cstddef>

namespace quire::kernels {

inline constexpr int kTileKeys = 256;
inline constexpr int kSplitTiles = 4;
inline constexpr int kSplitKeys = kSplitTiles * kTileKeys;
inline constexpr int kPartialSums = 16;
inline constexpr double kLog2e = 1.4426950408889634;  // rounded to the compute type
/// The largest head dim of queries, keys and values.
inline constexpr int kMostHeadDim = 1024;
/// The most dims of keys that are multiplied as integers: sums of 512 products of -128 and 32,639
/// still fit into 32 bits, and so do those of the 256 keys of a tile.
inline constexpr int kMostIntegerDims = 512;

/// Rows of codes that become integers have this many bits less than the 16 of a query; their
/// factors are shorter, too, so that sums still fit into 32 bits: queries by the number of dims,
/// and weights for the 256 keys of a tile. (2,041 * 8,160 * 128 and 2,041 * 4,080 * 256
/// are 2.13e9.)
inline constexpr int kRowShift = 4;
inline constexpr int kMostRowDims = 256;
constexpr int row_query_shift(int dims) { return dims <= 128 ? 2 : 3; }
inline constexpr int kRowWeightShift = 3;

/// Keys per chain of O. `pairs`: bf16 products; shorter chains would gain nothing there, because
/// rounding to bf16 outweighs the error of the sums.
constexpr int chain_keys(bool pairs) { return pairs ? kTileKeys : 128; }

/// Dims per chain of a score: half of all dims, in whole panels of 16, from 16 to 64. (32 are 2
/// chains of 16, 64 2 of 32, 80 48 + 32, 256 4 of 64.)
constexpr int chain_dims(int dims, bool pairs) {
  if (pairs) return 128;
  const int half = (dims + 31) / 32 * 16;
  return half < 64 ? half : 64;
}

/// Queries per chain of the gradients of keys and values, counted from the first query of a tile.
inline constexpr int kChainQueries = 32;

/// Whether c may hold the scale and scores may stay unscaled: no product with c, not even that of a
/// score a mask hides, overflows or vanishes.
constexpr bool is_scaled(double scale) { return scale >= 0x1p-100 && scale <= 0x1p100; }

/// The factor c that turns a difference of scores into an exponent of 2. It includes `scale` unless
/// scores are natural: already scaled and changed by the score mod.
template <class T>
constexpr T exponent_factor(bool natural, double scale) {
  const T log2e = static_cast<T>(kLog2e);
  return natural ? log2e : static_cast<T>(scale) * log2e;
}

}  // namespace quire::kernels

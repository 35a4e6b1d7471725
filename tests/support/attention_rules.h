// The order of arithmetic of attention (kernels/attention_order.h), one number at a time and
// straight from its words: what the vector kernels are compared with by their bits. Shares no code
// with them.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace quire::rules {

template <class T>
inline constexpr T kNone = -std::numeric_limits<T>::infinity();

/// log2(e), rounded to T.
template <class T>
inline constexpr T kLog2E = static_cast<T>(1.442695040888963407359924681001892137L);

/// 2^(x c) of the softmax; the product is not rounded.
template <class T>
T exp2(T x, T c) {
  constexpr bool kFloat = std::is_same_v<T, float>;
  if (x != x) return x;
  if (x * c < -1e6) return 0;
  constexpr T kInteger = kFloat ? T(0x1.8p23) : T(0x1.8p52);  // has no digits behind the point
  const T n = std::fma(x, c, kInteger) - kInteger, f = std::fma(x, c, -n);
  if (n < (kFloat ? T{-64} : T{-960})) return 0;
  constexpr float kFloats[] = {0x1.5b9bacp-10f, 0x1.3ceca8p-7f, 0x1.c6b744p-5f,
                               0x1.ebf9b4p-3f,  0x1.62e42ap-1f, 1.f};
  constexpr double kDoubles[] = {
      0x1.e9d3fe3952179p-32, 0x1.e6063f7217bc6p-28, 0x1.b524fae627834p-24, 0x1.62bfd47773353p-20,
      0x1.ffcbfc670dcd4p-17, 0x1.430913096fd9fp-13, 0x1.5d87fe78a5276p-10, 0x1.3b2ab6fba1ddap-7,
      0x1.c6b08d704a0c2p-5,  0x1.ebfbdff82c598p-3,  0x1.62e42fefa39efp-1,  1.0};
  T p = 0;
  if constexpr (kFloat)
    for (const float one : kFloats) p = std::fma(p, f, one);
  else
    for (const double one : kDoubles) p = std::fma(p, f, one);
  return std::ldexp(p, static_cast<int>(n));
}

/// What a sum is multiplied by when its maximum moves.
template <class T>
T factor(T from, T to, T c) {
  return from == to ? T{1} : exp2(from - to, c);
}

/// The larger one; a NaN x is swallowed.
template <class T>
T raise(T max, T x) {
  return x > max ? x : max;
}

/// The sum of a score: chains of half the dims in whole 16s, at most 64 (of pairs: 128), each from
/// 0, added up in order. step(i, acc) adds the i-th product, or pair of products.
template <class T, class Step>
T dot(int steps, int numbers_per_step, const Step& step) {
  const int length = numbers_per_step == 2 ? 64 : std::min(64, (steps + 31) / 32 * 16);
  T sum = 0;
  for (int begin = 0; begin < steps; begin += length) {
    T chain = 0;
    for (int i = begin; i < std::min(steps, begin + length); ++i) chain = step(i, chain);
    sum = begin == 0 ? chain : sum + chain;
  }
  return sum;
}

template <class T>
bool same_bits(const T* a, const T* b, std::size_t n) {
  return n == 0 || std::memcmp(a, b, n * sizeof(T)) == 0;
}

}  // namespace quire::rules

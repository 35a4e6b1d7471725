// The rules. Tests only.
#include "tests/support/row_rules.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "kernels/attention_order.h"
#include "kernels/dispatch.h"
#include "kernels/math/math_table.h"
#include "quire/float16.h"

namespace quire::testing {
namespace {

using kernels::kLn2;
using kernels::kLog2e;
using kernels::kPartialSums;
using kernels::kSplitKeys;
using kernels::kTileKeys;

template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();

// Rule 4. Coefficients of the polynomial, highest first; exactly 0 below `zero`.
template <class T, std::size_t kCount>
T exp2_by(const T (&coefficients)[kCount], T zero, T x) {
  if (std::isnan(x)) return x;
  if (x < zero) return 0;
  const T n = std::nearbyint(x), f = x - n;
  T p = coefficients[0];
  for (std::size_t i = 1; i < kCount; ++i) p = std::fma(p, f, coefficients[i]);
  return std::ldexp(p, static_cast<int>(n));
}
float exp2_of(float x) {
  static constexpr float kC[] = {0x1.5b9bacp-10f, 0x1.3ceca8p-7f, 0x1.c6b744p-5f,
                                 0x1.ebf9b4p-3f,  0x1.62e42ap-1f, 1.f};
  return exp2_by(kC, -64.f, x);
}
double exp2_of(double x) {
  static constexpr double kC[] = {
      0x1.e9d3fe3952179p-32, 0x1.e6063f7217bc6p-28, 0x1.b524fae627834p-24, 0x1.62bfd47773353p-20,
      0x1.ffcbfc670dcd4p-17, 0x1.430913096fd9fp-13, 0x1.5d87fe78a5276p-10, 0x1.3b2ab6fba1ddap-7,
      0x1.c6b08d704a0c2p-5,  0x1.ebfbdff82c598p-3,  0x1.62e42fefa39efp-1,  1.0};
  return exp2_by(kC, -960.0, x);
}

float log_of(float x) {
  const kernels::MathTable& math = *kernels::table_for(Isa::scalar).math;
  float y = 0;
  for (std::size_t i = 0; i < math.unary_count; ++i)
    if (std::string_view(math.unary[i].name) == "log") math.unary[i].apply(&x, &y, 1);
  return y;
}
double log_of(double x) { return std::log(x); }

float without_subnormals(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x;
}

template <class T>
struct State {
  T m = -kInf<T>, l = 0, raw = -kInf<T>;
  std::vector<T> o;
};

template <class T>
class Row {
 public:
  Row(const RowInput<T>& input, bool natural)
      : in_(input),
        natural_(natural),
        scale_(static_cast<T>(input.scale)),
        c_(scale_ * static_cast<T>(kLog2e)) {
    score_all();
  }

  State<T> run(bool& coarse) {
    State<T> total;
    for (std::int64_t begin = 0; begin < in_.keys; begin += kSplitKeys) {
      State<T> split;
      split.o.assign(static_cast<std::size_t>(in_.value_dims), 0);
      for (std::int64_t t = begin; t < std::min(begin + kSplitKeys, in_.keys); t += kTileKeys)
        add_tile(t, std::min<std::int64_t>(t + kTileKeys, in_.keys), split);
      const T coarse_from = sizeof(T) == 4 ? T{0x1p24} : T{0x1p53};
      if (!natural_ && std::fabs(split.m) >= coarse_from && std::fabs(split.m) < kInf<T>)
        coarse = true;
      fold(total, split);
    }
    return total;
  }
  bool has_nan() const { return has_nan_; }

 private:
  bool visible(std::int64_t key) const { return !in_.visible || in_.visible(key); }

  T dot(const T* k) const {
    const std::size_t dims = in_.q.size();
    T acc = 0;
    if constexpr (std::is_same_v<T, float>) {
      if (in_.pairs) {
        for (std::size_t d = 0; d < dims; d += 2) {
          const bool whole = d + 1 < dims;
          acc = bf16_pair_product(acc, k[d], whole ? k[d + 1] : 0, in_.q[d],
                                  whole ? in_.q[d + 1] : 0);
        }
        return acc;
      }
    }
    for (std::size_t d = 0; d < dims; ++d) acc = std::fma(k[d], in_.q[d], acc);
    return acc;
  }

  void score_all() {
    s_.assign(static_cast<std::size_t>(in_.keys), 0);
    for (std::int64_t i = 0; i < in_.keys; ++i) {
      if (!visible(i)) continue;
      const T raw = dot(in_.key(i));
      at(i) = natural_ ? raw * scale_ : raw;
    }
    if (in_.mod) in_.mod(s_);
    for (std::int64_t i = 0; i < in_.keys; ++i)
      if (visible(i)) has_nan_ |= std::isnan(at(i));
  }

  T& at(std::int64_t key) { return s_[static_cast<std::size_t>(key)]; }

  T factor(T from, T to) const {
    if (from == to) return 1;
    return exp2_of(natural_ ? (from - to) * static_cast<T>(kLog2e) : from - to);
  }

  void add_tile(std::int64_t begin, std::int64_t end, State<T>& split) {
    T max = -kInf<T>;
    for (std::int64_t i = begin; i < end; ++i)
      if (visible(i) && at(i) > max) max = at(i);
    if (max > split.raw) split.raw = max;
    const T candidate = natural_ ? max : max * c_, m = candidate > split.m ? candidate : split.m;
    const T moved = factor(split.m, m), subtracted = m == -kInf<T> ? 0 : m;
    std::vector<T> p(static_cast<std::size_t>(end - begin), 0);
    T sums[kPartialSums] = {};
    for (std::int64_t i = begin; i < end; ++i) {
      if (!visible(i)) continue;
      const T x = natural_ ? (at(i) - subtracted) * static_cast<T>(kLog2e)
                           : std::fma(at(i), c_, -subtracted);
      p[static_cast<std::size_t>(i - begin)] = exp2_of(x);
      sums[(i - begin) % kPartialSums] += exp2_of(x);
    }
    for (int w = kPartialSums / 2; w > 0; w /= 2)
      for (int i = 0; i < w; ++i) sums[i] += sums[i + w];
    split.l = std::fma(split.l, moved, sums[0]);
    split.m = m;
    if (moved != 1)
      for (T& x : split.o) x *= moved;
    if (in_.kept)
      for (std::int64_t i = begin; i < end; ++i)
        p[static_cast<std::size_t>(i - begin)] *= in_.kept(i);
    add_values(begin, p, split);
  }

  // Keys with weight 0 contribute nothing.
  void add_values(std::int64_t begin, const std::vector<T>& p, State<T>& split) {
    const std::size_t columns = split.o.size();
    if constexpr (std::is_same_v<T, float>) {
      if (in_.pairs) {
        const std::vector<float> zeros(columns, 0);
        for (std::size_t i = 0; i < p.size(); i += 2) {
          const float p0 = p[i], p1 = i + 1 < p.size() ? p[i + 1] : 0;
          if (p0 == 0 && p1 == 0) continue;
          const auto key = begin + static_cast<std::int64_t>(i);
          const float* v0 = p0 == 0 ? zeros.data() : in_.value(key);
          const std::vector<float> even(v0, v0 + columns);
          const float* v1 = p1 == 0 ? zeros.data() : in_.value(key + 1);
          for (std::size_t d = 0; d < columns; ++d)
            split.o[d] = bf16_pair_product(split.o[d], even[d], v1[d], BFloat16(p0), BFloat16(p1));
        }
        return;
      }
    }
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (p[i] == 0) continue;
      const T* v = in_.value(begin + static_cast<std::int64_t>(i));
      for (std::size_t d = 0; d < columns; ++d) split.o[d] = std::fma(v[d], p[i], split.o[d]);
    }
  }

  void fold(State<T>& total, const State<T>& split) const {
    if (split.m == -kInf<T>) return;
    if (total.m == -kInf<T>) {
      total = split;
      return;
    }
    const T m = std::max(total.m, split.m), a = factor(total.m, m), b = factor(split.m, m);
    total.l = std::fma(total.l, a, split.l * b);
    total.m = m;
    total.raw = std::max(total.raw, split.raw);
    for (std::size_t d = 0; d < total.o.size(); ++d)
      total.o[d] = std::fma(total.o[d], a, split.o[d] * b);
  }

  const RowInput<T>& in_;
  bool natural_;
  T scale_, c_;
  std::vector<T> s_;  // scores of all keys
  bool has_nan_ = false;
};

template <class T>
RowOutput<T> finish(const RowInput<T>& input, const State<T>& total, bool natural) {
  RowOutput<T> result;
  result.out.assign(static_cast<std::size_t>(input.value_dims), 0);
  result.lse = result.max_score = -kInf<T>;
  if (total.m == -kInf<T>) return result;
  for (std::size_t d = 0; d < result.out.size(); ++d)
    result.out[d] = std::fma(total.o[d], T{1} / total.l, T{0});
  const T log_l = log_of(total.l);
  result.lse = natural ? total.m + log_l : std::fma(total.m, static_cast<T>(kLn2), log_l);
  result.max_score = (natural ? total.m : total.raw * static_cast<T>(input.scale)) + T{0};
  return result;
}

}  // namespace

float bf16_pair_product(float acc, float a0, float a1, float b0, float b1) {
  const auto z = without_subnormals;
  acc = z(std::fma(z(a1), z(b1), z(acc)));
  return z(std::fma(z(a0), z(b0), acc));
}

template <class T>
RowOutput<T> row_by_rules(const RowInput<T>& input) {
  const bool natural = input.mod != nullptr || !(static_cast<T>(input.scale) > 0);
  Row<T> row(input, natural);
  if (row.has_nan()) {
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    return {std::vector<T>(static_cast<std::size_t>(input.value_dims), kNan), kNan, kNan, false};
  }
  bool coarse = false;
  const State<T> total = row.run(coarse);
  if (!coarse) return finish(input, total, natural);
  RowOutput<T> result = finish(input, Row<T>(input, true).run(coarse), true);
  result.coarse = true;
  return result;
}

template RowOutput<float> row_by_rules(const RowInput<float>&);
template RowOutput<double> row_by_rules(const RowInput<double>&);

}  // namespace quire::testing

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
#include "tests/support/attention_rules.h"
#include "tests/support/pair_product.h"

namespace quire::testing {
namespace {

using kernels::kLog2e;
using kernels::kPartialSums;
using kernels::kSplitKeys;
using kernels::kTileKeys;

template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();

float log_of(float x) {
  const kernels::MathTable& math = *kernels::table_for(Isa::scalar).math;
  float y = 0;
  for (std::size_t i = 0; i < math.unary_count; ++i)
    if (std::string_view(math.unary[i].name) == "log") math.unary[i].apply(&x, &y, 1);
  return y;
}
double log_of(double x) { return std::log(x); }

template <class T>
struct State {
  T m = -kInf<T>, l = 0;
  std::vector<T> o;
};

template <class T>
class Row {
 public:
  Row(const RowInput<T>& input, bool natural)
      : in_(input),
        natural_(natural),
        scale_(static_cast<T>(input.scale)),
        c_(natural ? static_cast<T>(kLog2e) : scale_ * static_cast<T>(kLog2e)) {
    score_all();
  }

  State<T> run() {
    State<T> total;
    for (std::int64_t begin = 0; begin < in_.keys; begin += kSplitKeys) {
      State<T> split;
      split.o.assign(static_cast<std::size_t>(in_.value_dims), 0);
      for (std::int64_t t = begin; t < std::min(begin + kSplitKeys, in_.keys); t += kTileKeys)
        add_tile(t, std::min<std::int64_t>(t + kTileKeys, in_.keys), split);
      fold(total, split);
    }
    return total;
  }
  bool has_nan() const { return has_nan_; }

 private:
  bool visible(std::int64_t key) const { return !in_.visible || in_.visible(key); }

  // Chains of dims, each from 0, added up in order.
  T dot(const T* k) const {
    if constexpr (std::is_same_v<T, float>)
      if (in_.tiles) return tile_dot(k);
    const std::size_t length =
        in_.pairs ? 128 : std::min<std::size_t>(64, (in_.q.size() + 31) / 32 * 16);
    T sum = 0;
    for (std::size_t d = 0; d < in_.q.size(); d += length) {
      const T chain = chain_of(k, d, std::min(in_.q.size(), d + length));
      sum = d == 0 ? chain : sum + chain;
    }
    return sum;
  }

  T integer_score(std::int64_t key) const {
    const Integers q(std::vector<float>(in_.q.begin(), in_.q.end()), in_.query_shift);
    const T* const codes = in_.key(key);
    std::int64_t sum = 0;
    for (std::size_t d = 0; d < in_.q.size(); ++d)
      sum += q.numbers[d] * static_cast<std::int64_t>(codes[d]);
    return static_cast<T>(sum) * in_.key_scale(key) * q.inverse;
  }

  void add_integer_values(std::int64_t begin, const std::vector<T>& p, std::vector<T>& o) const {
    std::vector<float> weights(p.size(), 0);
    for (std::size_t i = 0; i < p.size(); ++i)
      if (p[i] != 0)
        weights[i] =
            static_cast<float>(p[i] * in_.value_scale(begin + static_cast<std::int64_t>(i)));
    const Integers integers(weights, in_.weight_shift);
    std::vector<std::int64_t> sums(o.size(), 0);
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (integers.numbers[i] == 0) continue;
      const T* const codes = in_.value(begin + static_cast<std::int64_t>(i));
      for (std::size_t d = 0; d < o.size(); ++d)
        sums[d] += integers.numbers[i] * static_cast<std::int64_t>(codes[d]);
    }
    for (std::size_t d = 0; d < o.size(); ++d) o[d] += static_cast<T>(sums[d]) * integers.inverse;
  }

  // 32 dims a step, zeros behind the last.
  float tile_dot(const float* k) const {
    float sum = 0;
    for (std::size_t d = 0; d < in_.q.size(); d += 32) {
      float a[32] = {}, b[32] = {};
      for (std::size_t i = 0; i < std::min<std::size_t>(32, in_.q.size() - d); ++i) {
        a[i] = k[d + i];
        b[i] = in_.q[d + i];
      }
      sum = bf16_tile_product(sum, a, b);
    }
    return sum;
  }

  T chain_of(const T* k, std::size_t begin, std::size_t end) const {
    T acc = 0;
    if constexpr (std::is_same_v<T, float>) {
      if (in_.pairs) {
        for (std::size_t d = begin; d < end; d += 2) {
          const bool whole = d + 1 < end;
          acc = bf16_pair_product(isa_, acc, k[d], whole ? k[d + 1] : 0, in_.q[d],
                                  whole ? in_.q[d + 1] : 0);
        }
        return acc;
      }
    }
    for (std::size_t d = begin; d < end; ++d) acc = std::fma(k[d], in_.q[d], acc);
    return acc;
  }

  void score_all() {
    s_.assign(static_cast<std::size_t>(in_.keys), 0);
    for (std::int64_t i = 0; i < in_.keys; ++i) {
      if (!visible(i)) continue;
      const T raw = in_.key_scale ? integer_score(i) : dot(in_.key(i));
      at(i) = natural_ ? raw * scale_ : raw;
    }
    if (in_.mod) in_.mod(s_);
    for (std::int64_t i = 0; i < in_.keys; ++i)
      if (visible(i)) has_nan_ |= std::isnan(at(i));
  }

  T& at(std::int64_t key) { return s_[static_cast<std::size_t>(key)]; }

  T factor(T from, T to) const { return rules::factor(from, to, c_); }

  void add_tile(std::int64_t begin, std::int64_t end, State<T>& split) {
    T max = -kInf<T>;
    for (std::int64_t i = begin; i < end; ++i)
      if (visible(i) && at(i) > max) max = at(i);
    const T m = max > split.m ? max : split.m;
    const T moved = factor(split.m, m), subtracted = m == -kInf<T> ? 0 : m;
    std::vector<T> p(static_cast<std::size_t>(end - begin), 0);
    T sums[kPartialSums] = {};
    for (std::int64_t i = begin; i < end; ++i) {
      if (!visible(i)) continue;
      const T weight = rules::exp2(at(i) - subtracted, c_);
      p[static_cast<std::size_t>(i - begin)] = weight;
      sums[(i - begin) % kPartialSums] += weight;
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
    if (in_.value_scale) return add_integer_values(begin, p, split.o);
    const std::size_t length = in_.pairs ? 256 : 128;
    for (std::size_t first = 0; first < p.size(); first += length) {
      std::vector<T> chain(split.o.size(), 0);
      add_values(begin, p, first, std::min(p.size(), first + length), chain);
      for (std::size_t d = 0; d < chain.size(); ++d) split.o[d] += chain[d];
    }
  }

  // Weights [first, last) of a tile. Keys with weight 0 contribute nothing.
  void add_values(std::int64_t begin, const std::vector<T>& p, std::size_t first, std::size_t last,
                  std::vector<T>& chain) {
    const std::size_t columns = chain.size();
    if constexpr (std::is_same_v<T, float>) {
      if (in_.tiles) return add_tile_values(begin, p, chain);
      if (in_.pairs) {
        const std::vector<float> zeros(columns, 0);
        for (std::size_t i = first; i < last; i += 2) {
          const float p0 = p[i], p1 = i + 1 < last ? p[i + 1] : 0;
          if (p0 == 0 && p1 == 0) continue;
          const auto key = begin + static_cast<std::int64_t>(i);
          const float* v0 = p0 == 0 ? zeros.data() : in_.value(key);
          const std::vector<float> even(v0, v0 + columns);
          const float* v1 = p1 == 0 ? zeros.data() : in_.value(key + 1);
          for (std::size_t d = 0; d < columns; ++d)
            chain[d] =
                bf16_pair_product(isa_, chain[d], even[d], v1[d], BFloat16(p0), BFloat16(p1));
        }
        return;
      }
    }
    for (std::size_t i = first; i < last; ++i) {
      if (p[i] == 0) continue;
      const T* v = in_.value(begin + static_cast<std::int64_t>(i));
      for (std::size_t d = 0; d < columns; ++d) chain[d] = std::fma(v[d], p[i], chain[d]);
    }
  }

  // 32 keys a step.
  void add_tile_values(std::int64_t begin, const std::vector<float>& p, std::vector<float>& chain) {
    for (std::size_t first = 0; first < p.size(); first += 32) {
      std::vector<std::vector<float>> values;
      float weights[32] = {};
      for (std::size_t i = 0; i < 32; ++i) {
        const float weight = first + i < p.size() ? p[first + i] : 0;
        weights[i] = BFloat16(weight);
        values.emplace_back(chain.size(), 0.f);
        if (weight == 0) continue;
        const float* const value = in_.value(begin + static_cast<std::int64_t>(first + i));
        values.back().assign(value, value + chain.size());
      }
      for (std::size_t d = 0; d < chain.size(); ++d) {
        float column[32];
        for (std::size_t i = 0; i < 32; ++i) column[i] = values[i][d];
        chain[d] = bf16_tile_product(chain[d], column, weights);
      }
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
    for (std::size_t d = 0; d < total.o.size(); ++d)
      total.o[d] = std::fma(total.o[d], a, split.o[d] * b);
  }

  const RowInput<T>& in_;
  const Isa isa_ = current_isa();  // whose pairs
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
  const T scale = static_cast<T>(input.scale);
  result.lse = natural ? total.m + log_l : std::fma(total.m, scale, log_l);
  result.max_score = (natural ? total.m : total.m * scale) + T{0};
  return result;
}

}  // namespace

Integers::Integers(const std::vector<float>& from, int shift) : numbers(from.size()) {
  float largest = 0;
  bool is_finite = true;
  for (const float x : from) {
    largest = std::max(largest, std::abs(x));
    is_finite &= std::isfinite(x);
  }
  int exponent = largest == 0 ? -112 : std::max(std::ilogb(largest), -112);
  // 127 * 257: as two signed bytes
  if (largest > std::ldexp(32639.0f, exponent - 14)) ++exponent;
  const int bits = 14 - shift;
  inverse = is_finite ? std::ldexp(1.0f, exponent - bits) : std::numeric_limits<float>::quiet_NaN();
  for (std::size_t i = 0; is_finite && i < from.size(); ++i)
    numbers[i] = static_cast<std::int64_t>(std::nearbyint(std::ldexp(from[i], bits - exponent)));
}

template <class T>
RowOutput<T> row_by_rules(const RowInput<T>& input) {
  const bool natural = input.mod != nullptr || !(input.scale >= 0x1p-100 && input.scale <= 0x1p100);
  Row<T> row(input, natural);
  if (row.has_nan()) {
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    return {std::vector<T>(static_cast<std::size_t>(input.value_dims), kNan), kNan, kNan};
  }
  return finish(input, row.run(), natural);
}

template RowOutput<float> row_by_rules(const RowInput<float>&);
template RowOutput<double> row_by_rules(const RowInput<double>&);

}  // namespace quire::testing

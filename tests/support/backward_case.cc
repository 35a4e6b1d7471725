// Random gradients, the f64 reference and a naive f32 backward. Tests only.
#include "tests/support/backward_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "quire/evaluate.h"
#include "reference/attention.h"
#include "tests/support/attention_backward.h"
#include "tests/support/random_tensor.h"

namespace quire::testing {
namespace {

Tensor doubles(const std::vector<float>& values, const Shape& shape) {
  return Tensor::from(values, shape).to(DType::f64);
}

// Everything a row needs, as floats.
class NaiveBackward {
 public:
  NaiveBackward(const AttentionCase& c, const BackwardTensors& t)
      : c_(c),
        q_(floats(t.forward.q)),
        k_(floats(t.forward.k)),
        v_(floats(t.forward.v)),
        out_(floats(t.out)),
        d_q_(q_.size()),
        d_k_(k_.size()),
        d_v_(v_.size()),
        kv_batch_(t.forward.k.dim(0)),
        scale_(
            static_cast<float>(c.scale.value_or(1 / std::sqrt(static_cast<double>(c.head_dim))))) {
    d_out_ = t.d_out ? floats(*t.d_out) : std::vector<float>(out_.size());
    d_lse_ = t.d_lse ? floats(*t.d_lse) : std::vector<float>(static_cast<std::size_t>(rows()));
    if (c.mask_mod)
      mask_ = evaluate(*c.mask_mod, Shape{c.batch, c.q_heads, c.q_len, c.kv_len},
                       {.q_begin = c.q_begin});
  }

  GradientValues run(const BackwardTensors& t) {
    for (std::int64_t row = 0; row < rows(); ++row) add_row(row);
    return {doubles(d_q_, t.forward.q.shape()), doubles(d_k_, t.forward.k.shape()),
            doubles(d_v_, t.forward.v.shape())};
  }

 private:
  std::int64_t rows() const { return c_.batch * c_.q_heads * c_.q_len; }
  static float dot(const float* a, const float* b, std::int64_t n) {
    float sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  }
  static void add(float* to, float factor, const float* from, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
  }

  void add_row(std::int64_t row) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const std::int64_t b = row / c_.q_len / c_.q_heads, h = row / c_.q_len % c_.q_heads;
    const std::int64_t first =
        ((kv_batch_ == 1 ? 0 : b) * c_.kv_heads + h / (c_.q_heads / c_.kv_heads)) * c_.kv_len;
    const float* q = q_.data() + row * c_.head_dim;
    const float* d_out = d_out_.data() + row * c_.v_head_dim;
    std::vector<float> p(static_cast<std::size_t>(c_.kv_len));
    float most = -kInf, sum = 0;
    for (std::int64_t key = 0; key < c_.kv_len; ++key) {
      float& s = p[static_cast<std::size_t>(key)];
      const bool hidden = mask_ && !mask_->data_as<bool>()[row * c_.kv_len + key];
      s = hidden ? -kInf : dot(q, k_.data() + (first + key) * c_.head_dim, c_.head_dim) * scale_;
      most = std::max(most, s);
    }
    if (most == -kInf) return;
    for (float& s : p) sum += s = std::exp(s - most);
    const float delta = dot(out_.data() + row * c_.v_head_dim, d_out, c_.v_head_dim);
    for (std::int64_t key = 0; key < c_.kv_len; ++key) {
      const float weight = p[static_cast<std::size_t>(key)] / sum;
      if (weight == 0) continue;
      const std::int64_t at = first + key;
      add(d_v_.data() + at * c_.v_head_dim, weight, d_out, c_.v_head_dim);
      const float d_p = dot(d_out, v_.data() + at * c_.v_head_dim, c_.v_head_dim);
      const float d_s = weight * (d_p - delta + d_lse_[static_cast<std::size_t>(row)]) * scale_;
      add(d_q_.data() + row * c_.head_dim, d_s, k_.data() + at * c_.head_dim, c_.head_dim);
      add(d_k_.data() + at * c_.head_dim, d_s, q, c_.head_dim);
    }
  }

  const AttentionCase& c_;
  std::vector<float> q_, k_, v_, out_, d_out_, d_lse_, d_q_, d_k_, d_v_;
  std::int64_t kv_batch_;
  float scale_;
  std::optional<Tensor> mask_;
};

}  // namespace

BackwardTensors::BackwardTensors(const AttentionCase& c, std::uint64_t seed, bool with_d_out,
                                 bool with_d_lse)
    : forward(c, seed) {
  FlexAttentionOptions options = c.options();
  AuxOutput aux;
  options.return_aux = {.lse = true};
  options.aux = &aux;
  out = flex_attention(forward.q, forward.k, forward.v, options);
  lse = *aux.lse;
  std::mt19937_64 random(seed ^ 77);
  const Tensor of_out = random_tensor(out.shape(), c.q_dtype, random);
  const Tensor of_lse = random_tensor(lse.shape(), lse.dtype(), random);
  if (with_d_out) d_out = in_order(of_out, c.order, d_out_memory);
  if (!with_d_lse) return;
  d_lse_memory = of_lse;
  d_lse = d_lse_memory;
}

BackwardInputs BackwardTensors::inputs() const {
  return {.q = forward.q,
          .k = forward.k,
          .v = forward.v,
          .out = out,
          .lse = lse,
          .d_out = d_out,
          .d_lse = d_lse};
}

GradientValues in_f64(const AttentionGradients& d) {
  return {d.q->to(DType::f64), d.k->to(DType::f64), d.v->to(DType::f64)};
}

GradientValues ours(const AttentionCase& c, const BackwardTensors& t) {
  return in_f64(flex_attention_backward(t.inputs(), {.forward = c.options()}));
}

namespace {

reference::AttentionGradients reference_gradients(const AttentionCase& c,
                                                  const BackwardTensors& t) {
  const Tensor none(t.out.shape(), DType::f64);
  return reference::attention_backward(
      {t.forward.q, t.forward.k, t.forward.v},
      {.score_mod = c.score_mod, .mask_mod = c.mask_mod, .scale = c.scale, .q_begin = {c.q_begin}},
      {.out = t.d_out ? *t.d_out : ConstTensorView(none), .lse = t.d_lse});
}

}  // namespace

GradientValues exact(const AttentionCase& c, const BackwardTensors& t) {
  const reference::AttentionGradients r = reference_gradients(c, t);
  return {r.q, r.k, r.v};
}

Tensor exact_buffer(const AttentionCase& c, const BackwardTensors& t, const std::string& buffer) {
  return reference_gradients(c, t).of(buffer);
}

GradientValues naive(const AttentionCase& c, const BackwardTensors& t) {
  return NaiveBackward(c, t).run(t);
}

double largest(const Tensor& values) {
  double most = 0;
  for (std::int64_t i = 0; i < values.numel(); ++i)
    most = std::max(most, std::abs(values.data_as<double>()[i]));
  return most;
}

}  // namespace quire::testing

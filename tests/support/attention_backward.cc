// With S = mod(scale * q k^T), P = softmax(S), out = (P * F) v, F the factors of dropout,
// lse = log sum exp(S), and d X for the derivative of the loss by X:
//
//   d v   = (P * F)^T d out
//   d P   = F * (d out v^T)
//   delta = sum of P * d P over keys = out . d out
//   d S   = P * (d P - delta + d lse)
//
// With a sink s of a head, whose weight is P_s: P = exp(S - lse_with_sinks), and
//
//   d S   = P * (d P - delta) + exp(S - lse) * d lse     (d lse_with_sinks: P * d lse_with_sinks)
//   d s   = P_s * (d lse_with_sinks - delta)
//
// and from there through the mod to its buffers and to scale * q k^T. Test support.
#include "tests/support/attention_backward.h"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "quire/error.h"
#include "reference/scores.h"
#include "runtime/fail.h"
#include "tests/support/point_gradient.h"

namespace quire::reference {
namespace {

double dot(const double* a, const double* b, std::int64_t n) {
  return std::inner_product(a, a + n, b, 0.0);
}

void add_scaled(double* to, double factor, const double* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

bool contains(const std::vector<BufferGradient>& gradients, const Buffer& buffer) {
  for (const BufferGradient& known : gradients)
    if (known.buffer.is_same(buffer)) return true;
  return false;
}

std::vector<BufferGradient> named_gradients(const AttentionOptions& options,
                                            const BufferGradients& of_score_mod) {
  std::vector<BufferGradient> result;
  if (options.score_mod) {
    const std::vector<Buffer> buffers = options.score_mod->formula().buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i].wants_gradient())
        result.push_back({buffers[i], Tensor::from(of_score_mod[i], buffers[i].shape())});
  }
  if (options.mask_mod) {
    for (const Buffer& buffer : options.mask_mod->formula().buffers())
      if (buffer.wants_gradient() && !contains(result, buffer))
        result.push_back({buffer, Tensor(buffer.shape(), DType::f64)});
  }
  return result;
}

class Backward {
 public:
  Backward(const AttentionInputs& inputs, const AttentionOptions& options, const OutputGradients& d)
      : scores_(inputs, options),
        d_q_(inputs.q.shape(), DType::f64),
        d_k_(inputs.k.shape(), DType::f64),
        d_v_(inputs.v.shape(), DType::f64) {
    const Sizes& s = scores_.sizes();
    require_shape("the gradient of out", d.out.shape(),
                  {s.batches, s.q_heads, s.q_len, s.v_head_dim});
    d_out_ = to(d.out, DType::f64);
    d_lse_ = Tensor({s.batches, s.q_heads, s.q_len}, DType::f64);
    if (d.lse) {
      require_shape("the gradient of lse", d.lse->shape(), d_lse_.shape());
      d_lse_ = to(*d.lse, DType::f64);
    }
    d_sinks_ = Tensor({options.sinks ? s.q_heads : 0}, DType::f64);
    lse_with_sinks_ = d.lse_with_sinks;
    if (options.score_mod) {
      const formula::Graph& graph = options.score_mod->formula().graph();
      mod_gradient_.emplace(graph);
      d_buffers_ = zero_gradients(graph, WhichBuffers::kWantGradient);
    }
    if (options.weight_mod) {
      const formula::Graph& graph = options.weight_mod->formula().graph();
      weight_gradient_.emplace(graph);
      d_weight_buffers_ = zero_gradients(graph, WhichBuffers::kWantGradient);
    }
  }

  AttentionGradients run(const AttentionOptions& options) {
    const Sizes& s = scores_.sizes();
    for (std::int64_t b = 0; b < s.batches; ++b)
      for (std::int64_t h = 0; h < s.q_heads; ++h)
        for (std::int64_t q = 0; q < s.q_len; ++q) add_row({b, h, q});
    for (std::int64_t b = 0; b < s.batches; ++b)
      for (std::int64_t h = 0; h < s.q_heads; ++h)
        for (std::int64_t q = 0; q < s.q_len; ++q)
          scores_.rotate(d_q_.data_as<double>() + ((b * s.q_heads + h) * s.q_len + q) * s.head_dim,
                         scores_.q_idx({b, h, q}), true);
    for (std::int64_t i = 0; i < d_k_.dim(0) * d_k_.dim(1) * s.kv_len; ++i)
      scores_.rotate(d_k_.data_as<double>() + i * s.head_dim, i % s.kv_len, true);
    std::vector<BufferGradient> buffers = named_gradients(options, d_buffers_);
    if (options.weight_mod) {
      const std::vector<Buffer> of = options.weight_mod->formula().buffers();
      for (std::size_t i = 0; i < of.size(); ++i)
        if (of[i].wants_gradient())
          buffers.push_back({of[i], Tensor::from(d_weight_buffers_[i], of[i].shape())});
    }
    return {d_q_, d_k_, d_v_, d_sinks_, std::move(buffers)};
  }

 private:
  void add_row(const Row& row) {
    const Sizes& s = scores_.sizes();
    const std::int64_t index = (row.b * s.q_heads + row.h) * s.q_len + row.q;
    const double* d_out = d_out_.data_as<double>() + index * s.v_head_dim;
    const double d_lse = d_lse_.data_as<double>()[index];
    if (scores_.has_weight_mod()) return add_weighted_row(row);
    const RowSoftmax softmax = scores_.weights(row);
    const std::vector<double>&p = softmax.p, factors = scores_.dropout(row);
    // Of a value that was dropped nothing is read.
    const auto d_p = [&](std::int64_t kv) {
      const double factor = factors[static_cast<std::size_t>(kv)];
      return factor == 0 ? 0 : factor * dot(d_out, scores_.v(row, kv), s.v_head_dim);
    };

    double delta = 0;
    for (std::int64_t kv = 0; kv < s.kv_len; ++kv) {
      const double p_kv = p[static_cast<std::size_t>(kv)];
      if (p_kv != 0) delta += p_kv * d_p(kv);
    }
    if (d_sinks_.numel() > 0)
      d_sinks_.data_as<double>()[row.h] += softmax.sink_p * ((lse_with_sinks_ ? d_lse : 0) - delta);
    const double of_lse =  // by what p is multiplied to be exp(score - lse)
        lse_with_sinks_ || softmax.lse == softmax.lse_with_sink
            ? 1
            : std::exp(softmax.lse_with_sink - softmax.lse);
    for (std::int64_t kv = 0; kv < s.kv_len; ++kv) {
      const double p_kv = p[static_cast<std::size_t>(kv)];
      if (p_kv == 0) continue;  // hidden: neither k nor v is read
      add_scaled(scores_.same_place(d_v_, row, kv), p_kv * factors[static_cast<std::size_t>(kv)],
                 d_out, s.v_head_dim);
      add_element(row, kv, p_kv * (d_p(kv) - delta + d_lse * of_lse));
    }
  }

  // W = weight mod of S, l = sum W, out = (W * F) v, or divided by l; lse is l.
  void add_weighted_row(const Row& row) {
    const Sizes& s = scores_.sizes();
    const std::int64_t index = (row.b * s.q_heads + row.h) * s.q_len + row.q;
    const double* d_out = d_out_.data_as<double>() + index * s.v_head_dim;
    const double d_sum = d_lse_.data_as<double>()[index];
    const RowSoftmax weights = scores_.weights(row);
    const std::vector<double> factors = scores_.dropout(row), scores = scores_.row(row);
    if (scores_.normalizes() && weights.lse == 0) return;
    const double inverse = scores_.normalizes() ? 1 / weights.lse : 1;
    const auto d_p = [&](std::int64_t kv) {
      const double factor = factors[static_cast<std::size_t>(kv)];
      return factor == 0 ? 0 : factor * dot(d_out, scores_.v(row, kv), s.v_head_dim);
    };
    double delta = 0;
    for (std::int64_t kv = 0; kv < s.kv_len && scores_.normalizes(); ++kv)
      if (weights.p[static_cast<std::size_t>(kv)] != 0)
        delta += weights.p[static_cast<std::size_t>(kv)] * d_p(kv);
    for (std::int64_t kv = 0; kv < s.kv_len; ++kv) {
      const auto i = static_cast<std::size_t>(kv);
      if (scores_.is_hidden(row, kv)) continue;
      add_scaled(scores_.same_place(d_v_, row, kv), weights.p[i] * factors[i], d_out, s.v_head_dim);
      const double d_weight = inverse * (d_p(kv) - delta) + d_sum;
      const Evaluator& mod = scores_.run_weight_mod(row, kv, scores[i]);
      add_element(row, kv, weight_gradient_->sweep(mod, d_weight, d_weight_buffers_));
    }
  }

  // From the score after the mod to the buffers and the score before it, and from there to q and k.
  void add_element(const Row& row, std::int64_t kv, double d_score) {
    if (const Evaluator* mod = scores_.run_score_mod(row, kv))
      d_score = mod_gradient_->sweep(*mod, d_score, d_buffers_);
    const Sizes& s = scores_.sizes();
    const std::int64_t index = (row.b * s.q_heads + row.h) * s.q_len + row.q;
    double* d_q = d_q_.data_as<double>() + index * s.head_dim;
    add_scaled(d_q, scores_.scale() * d_score, scores_.k(row, kv), s.head_dim);
    add_scaled(scores_.same_place(d_k_, row, kv), scores_.scale() * d_score, scores_.q(row),
               s.head_dim);
  }

  Scores scores_;
  Tensor d_q_, d_k_, d_v_, d_out_, d_lse_, d_sinks_;
  bool lse_with_sinks_ = false;
  std::optional<PointGradient> mod_gradient_, weight_gradient_;
  BufferGradients d_buffers_, d_weight_buffers_;
};

}  // namespace

const Tensor& AttentionGradients::of(const std::string& buffer) const {
  for (const BufferGradient& known : buffers)
    if (known.buffer.name() == buffer) return known.gradient;
  fail(ErrorKind::value, "attention", "there is no gradient of a buffer '{}'", buffer);
}

AttentionGradients attention_backward(const AttentionInputs& inputs,
                                      const AttentionOptions& options, const OutputGradients& d) {
  return Backward(inputs, options, d).run(options);
}

}  // namespace quire::reference

// With S = mod(scale * q k^T), P = softmax(S), out = (P * F) v, F the factors of dropout,
// lse = log sum exp(S), and d X for the derivative of the loss by X:
//
//   d v   = (P * F)^T d out
//   d P   = F * (d out v^T)
//   delta = sum of P * d P over keys = out . d out
//   d S   = P * (d P - delta + d lse)
//
// and from there through the mod to its buffers and to scale * q k^T. Test support.
#include "tests/support/attention_backward.h"

#include <numeric>
#include <string>

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
    if (options.score_mod) {
      const formula::Graph& graph = options.score_mod->formula().graph();
      mod_gradient_.emplace(graph);
      d_buffers_ = zero_gradients(graph, WhichBuffers::kWantGradient);
    }
  }

  AttentionGradients run(const AttentionOptions& options) {
    const Sizes& s = scores_.sizes();
    for (std::int64_t b = 0; b < s.batches; ++b)
      for (std::int64_t h = 0; h < s.q_heads; ++h)
        for (std::int64_t q = 0; q < s.q_len; ++q) add_row({b, h, q});
    return {d_q_, d_k_, d_v_, named_gradients(options, d_buffers_)};
  }

 private:
  void add_row(const Row& row) {
    const Sizes& s = scores_.sizes();
    const std::int64_t index = (row.b * s.q_heads + row.h) * s.q_len + row.q;
    const double* d_out = d_out_.data_as<double>() + index * s.v_head_dim;
    const double d_lse = d_lse_.data_as<double>()[index];
    const std::vector<double> p = row_softmax(scores_.row(row)).p, factors = scores_.dropout(row);
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
    for (std::int64_t kv = 0; kv < s.kv_len; ++kv) {
      const double p_kv = p[static_cast<std::size_t>(kv)];
      if (p_kv == 0) continue;  // hidden: neither k nor v is read
      add_scaled(scores_.same_place(d_v_, row, kv), p_kv * factors[static_cast<std::size_t>(kv)],
                 d_out, s.v_head_dim);
      add_element(row, kv, p_kv * (d_p(kv) - delta + d_lse));
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
  Tensor d_q_, d_k_, d_v_, d_out_, d_lse_;
  std::optional<PointGradient> mod_gradient_;
  BufferGradients d_buffers_;
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

// Checks of the inputs, scores after scale, mask and score mod, and the softmax of a row. Reference
// layer.
#include "reference/scores.h"

#include <cmath>
#include <limits>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::reference {
namespace {

void require_input(const char* name, const ConstTensorView& view) {
  if (view.rank() != 4) {
    fail(ErrorKind::value, "attention", "{} must have 4 axes; got shape {}", name,
         to_string(view.shape()));
  }
  if (!is_floating(view.dtype())) {
    fail(ErrorKind::type, "attention", "{} must be floating; got {}", name,
         dtype_name(view.dtype()));
  }
}

std::int64_t key_batches(const char* name, const ConstTensorView& view, std::int64_t batches) {
  if (view.dim(0) != batches && view.dim(0) != 1) {
    fail(ErrorKind::value, "attention", "{} must have the batch size of q or 1; got {} and {}",
         name, view.dim(0), batches);
  }
  return view.dim(0);
}

Sizes checked_sizes(const AttentionInputs& in) {
  require_input("q", in.q);
  require_input("k", in.k);
  require_input("v", in.v);
  const Sizes s{in.q.dim(0), in.q.dim(1), in.k.dim(1), in.q.dim(2),
                in.k.dim(2), in.q.dim(3), in.v.dim(3)};
  require_shape("k", in.k.shape(),
                {key_batches("k", in.k, s.batches), s.kv_heads, s.kv_len, s.head_dim});
  require_shape("v", in.v.shape(),
                {key_batches("v", in.v, s.batches), s.kv_heads, s.kv_len, s.v_head_dim});
  const bool divides = s.kv_heads == 0 ? s.q_heads == 0 : s.q_heads % s.kv_heads == 0;
  if (!divides) {
    fail(ErrorKind::value, "attention", "q_heads must be a multiple of kv_heads; got {} and {}",
         s.q_heads, s.kv_heads);
  }
  return s;
}

std::vector<std::int64_t> per_batch(const std::vector<std::int64_t>& q_begin,
                                    std::int64_t batches) {
  const std::size_t count = batches;
  if (q_begin.size() == count) return q_begin;
  if (q_begin.size() <= 1)
    return std::vector<std::int64_t>(count, q_begin.empty() ? 0 : q_begin[0]);
  fail(ErrorKind::value, "attention",
       "q_begin must be one number or one per batch; got {} for {} batches", q_begin.size(),
       batches);
}

// The offset of element [batch][head][position][0]; a tensor of one batch serves all.
std::int64_t offset(const Tensor& tensor, std::int64_t b, std::int64_t head,
                    std::int64_t position) {
  const std::int64_t batch = tensor.dim(0) == 1 ? 0 : b;
  return ((batch * tensor.dim(1) + head) * tensor.dim(2) + position) * tensor.dim(3);
}

std::optional<Evaluator> evaluator(const auto& mod) {
  return mod ? std::optional<Evaluator>(mod->formula()) : std::nullopt;
}

}  // namespace

void require_shape(const char* name, const Shape& shape, const Shape& wanted) {
  if (shape == wanted) return;
  fail(ErrorKind::value, "attention", "{} must have shape {}; got {}", name, to_string(wanted),
       to_string(shape));
}

Scores::Scores(const AttentionInputs& inputs, const AttentionOptions& options)
    : sizes_(checked_sizes(inputs)),
      scale_(options.scale.value_or(
          sizes_.head_dim == 0 ? 1 : 1 / std::sqrt(static_cast<double>(sizes_.head_dim)))),
      dropout_(options.dropout),
      b_begin_(options.b_begin),
      q_begin_(per_batch(options.q_begin, sizes_.batches)),
      sinks_(options.sinks.value_or(std::vector<double>())),
      q_(to(inputs.q, DType::f64)),
      k_(to(inputs.k, DType::f64)),
      v_(to(inputs.v, DType::f64)),
      score_mod_(evaluator(options.score_mod)),
      mask_mod_(evaluator(options.mask_mod)),
      weight_mod_(evaluator(options.weight_mod)),
      normalize_(options.normalize),
      rope_(options.rope) {
  if (options.sinks && static_cast<std::int64_t>(sinks_.size()) != sizes_.q_heads)
    fail(ErrorKind::value, "attention", "sinks must be one number per query head; got {} for {}",
         sinks_.size(), sizes_.q_heads);
  if (options.key_indices.has_value()) {
    const ConstTensorView& given = *options.key_indices;
    const std::int64_t most = given.rank() == 0 ? 0 : given.dim(given.rank() - 1);
    require_shape("key_indices", given.shape(),
                  given.rank() == 3 ? Shape{sizes_.batches, sizes_.q_len, most}
                                    : Shape{sizes_.batches, sizes_.q_heads, sizes_.q_len, most});
    key_indices_ = to(given, DType::i64);
  }
  double* row = q_.data_as<double>();
  for (std::int64_t b = 0; b < q_.dim(0); ++b)
    for (std::int64_t i = 0; i < q_.dim(1) * q_.dim(2); ++i, row += q_.dim(3))
      rotate(row, q_idx({b, 0, i % q_.dim(2)}), false);
  row = k_.data_as<double>();
  for (std::int64_t i = 0; i < k_.dim(0) * k_.dim(1) * k_.dim(2); ++i, row += k_.dim(3))
    rotate(row, i % k_.dim(2), false);
}

std::int64_t Scores::q_idx(const Row& row) const { return q_begin_[row.b] + row.q; }

void Scores::rotate(double* row, std::int64_t position, bool back) const {
  if (!rope_) return;
  const std::int64_t dims = rope_->dims == 0 ? sizes_.head_dim : rope_->dims, half = dims / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double angle =
        static_cast<double>(position) *
        std::pow(rope_->theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
    const double c = rope_->cos ? rope_->cos->view().load_float({position, i}) : std::cos(angle);
    double s = rope_->sin ? rope_->sin->view().load_float({position, i}) : std::sin(angle);
    if (back) s = -s;
    double& x = row[rope_->interleaved ? 2 * i : i];
    double& y = row[rope_->interleaved ? 2 * i + 1 : i + half];
    const double turned = x * c - y * s;
    y = x * s + y * c;
    x = turned;
  }
}

Evaluator& Scores::run_weight_mod(const Row& row, std::int64_t kv, double score) {
  Point at = point(row, kv);
  at.score = score;
  weight_mod_->run(at);
  return *weight_mod_;
}

RowSoftmax Scores::weights(const Row& at) {
  const std::vector<double> scores = row(at);
  if (!weight_mod_) return row_softmax(scores, sink(at));
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  RowSoftmax result{std::vector<double>(scores.size(), 0.0)};
  for (std::int64_t kv = 0; kv < sizes_.kv_len; ++kv) {
    // Only the mask hides here: a score of -inf still goes through the weight mod.
    if (is_hidden(at, kv)) continue;
    const Evaluator& mod = run_weight_mod(at, kv, scores[kv]);
    if (mod.fault()) throw fault_error(*mod.fault(), point(at, kv));
    const double weight = mod[mod.root()].f;
    result.p[kv] = weight == kHidden ? 0 : weight;
    result.lse += result.p[kv];
  }
  result.lse_with_sink = result.lse;
  for (double& p : result.p)
    if (normalize_) p = result.lse == 0 ? 0 : p / result.lse;
  return result;
}

bool Scores::is_hidden(const Row& row, std::int64_t kv) {
  return mask_mod_ && !mask_mod_->run(point(row, kv)).truth();
}

const double* Scores::q(const Row& row) const {
  return q_.data_as<double>() + offset(q_, row.b, row.h, row.q);
}

const double* Scores::k(const Row& row, std::int64_t kv) const {
  return k_.data_as<double>() + offset(k_, row.b, row.h / (sizes_.q_heads / sizes_.kv_heads), kv);
}

const double* Scores::v(const Row& row, std::int64_t kv) const {
  return v_.data_as<double>() + offset(v_, row.b, row.h / (sizes_.q_heads / sizes_.kv_heads), kv);
}

double* Scores::same_place(Tensor& like_kv, const Row& row, std::int64_t kv) const {
  return like_kv.data_as<double>() +
         offset(like_kv, row.b, row.h / (sizes_.q_heads / sizes_.kv_heads), kv);
}

double Scores::dot(const Row& row, std::int64_t kv) const {
  const double *q_row = q(row), *k_row = k(row, kv);
  double sum = 0;
  for (std::int64_t e = 0; e < sizes_.head_dim; ++e) sum += q_row[e] * k_row[e];
  return sum;
}

Point Scores::point(const Row& row, std::int64_t kv) const {
  return {.b = b_begin_ + row.b,
          .h = row.h,
          .q_idx = q_begin_[row.b] + row.q,
          .kv_idx = kv,
          .score = 0};
}

std::vector<double> Scores::dropout(const Row& row) const {
  const std::int64_t q_idx = q_begin_[row.b] + row.q;
  return dropout_factors(dropout_, {b_begin_ + row.b, row.h, q_idx}, sizes_.kv_len);
}

Evaluator* Scores::run_score_mod(const Row& row, std::int64_t kv) {
  if (!score_mod_) return nullptr;
  Point at = point(row, kv);
  at.score = scale_ * dot(row, kv);
  score_mod_->run(at);
  return &*score_mod_;
}

// Which keys a row may see at all.
std::vector<bool> Scores::chosen(const Row& row) const {
  std::vector<bool> found(sizes_.kv_len, !key_indices_.has_value());
  if (!key_indices_.has_value()) return found;
  const bool by_head = key_indices_->rank() == 4;
  const std::int64_t most = key_indices_->dim(by_head ? 3 : 2);
  const std::int64_t head = by_head ? row.b * sizes_.q_heads + row.h : row.b;
  const std::int64_t* list =
      key_indices_->data_as<std::int64_t>() + (head * sizes_.q_len + row.q) * most;
  for (std::int64_t i = 0; i < most; ++i)
    if (list[i] >= 0) found.at(list[i]) = true;
  return found;
}

std::vector<double> Scores::row(const Row& row) {
  std::vector<double> scores;
  const std::vector<bool> is_chosen = chosen(row);
  for (std::int64_t kv = 0; kv < sizes_.kv_len; ++kv) {
    const Point at = point(row, kv);
    if (!is_chosen[kv] || (mask_mod_ && !mask_mod_->run(at).truth())) {
      scores.push_back(-std::numeric_limits<double>::infinity());
      continue;
    }
    if (mask_mod_ && mask_mod_->fault()) throw fault_error(*mask_mod_->fault(), at);
    if (const Evaluator* mod = run_score_mod(row, kv)) {
      if (mod->fault()) throw fault_error(*mod->fault(), at);
      scores.push_back((*mod)[mod->root()].f);
    } else {
      scores.push_back(scale_ * dot(row, kv));
    }
  }
  return scores;
}

double Scores::sink(const Row& row) const {
  if (sinks_.empty()) return -std::numeric_limits<double>::infinity();
  return sinks_[row.h];
}

RowSoftmax row_softmax(std::span<const double> scores, double sink) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  RowSoftmax row{std::vector<double>(scores.size(), 0.0), kNothing, kNothing, sink,
                 sink == kNothing ? 0.0 : 1.0};
  for (const double score : scores)
    if (score > row.max || std::isnan(score)) row.max = score;  // a NaN stays: nothing is larger
  if (row.max == kNothing) return row;

  double sum = 0;
  for (const double score : scores)
    if (score != kNothing) sum += std::exp(score - row.max);
  row.lse = row.max + std::log(sum);
  // The sink counts as one more score; both are scaled by the larger.
  const double top = sink > row.max ? sink : row.max;
  const auto weight = [&](double score) { return score == top ? 1 : std::exp(score - top); };
  const double all = sum * weight(row.max) + weight(sink);
  row.lse_with_sink = top + std::log(all);
  row.sink_p = weight(sink) / all;
  for (std::size_t kv = 0; kv < scores.size(); ++kv)
    if (scores[kv] != kNothing) row.p[kv] = std::exp(scores[kv] - row.max) * weight(row.max) / all;
  return row;
}

}  // namespace quire::reference

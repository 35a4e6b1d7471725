// The same attention over three layouts, and its gradients. Command line layer.
#include "demo_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "bench/problem.h"
#include "quire/block_mask.h"
#include "quire/flex_attention.h"
#include "quire/flex_attention_backward.h"
#include "quire/jagged.h"
#include "quire/mods.h"
#include "quire/paged.h"
#include "reference/attention.h"

namespace quire::cli {
namespace {

constexpr std::int64_t kHeads = 4, kDim = 32;

Tensor random(const Shape& shape, std::uint64_t seed) {
  Tensor values = Tensor::empty(shape, DType::f32);
  bench::fill(values, seed);
  return values;
}

ScoreMod learnt_alibi() {
  return ScoreMod::parse(
      DemoBatch::kRule, {{"slopes", Buffer(mods::alibi_slopes(kHeads), {.wants_gradient = true})}});
}

// Copies rows [begin, end) of [tokens, heads, dim] to [heads, at least as many, dim].
void copy_rows(const Tensor& from, std::int64_t begin, std::int64_t end, float* to,
               std::int64_t room) {
  const Tensor part = contiguous(from.view().slice(0, begin, end).transpose(0, 1));  // [H, L, D]
  const std::int64_t rows = end - begin;
  for (std::int64_t h = 0; h < kHeads; ++h)
    std::memcpy(to + h * room * kDim, part.data_as<float>() + h * rows * kDim,
                (rows * kDim) * sizeof(float));
}

// d_out . attention(q, k, v, slopes), by plain loops in f64.
double loss(const std::array<Tensor, 4>& at, const Tensor& d_out) {
  const ScoreMod alibi = ScoreMod::parse(DemoBatch::kRule, {{"slopes", Buffer(at[3])}});
  const Tensor out =
      reference::attention({at[0], at[1], at[2]}, {.score_mod = alibi, .mask_mod = mods::causal()})
          .out;
  double sum = 0;
  for (std::int64_t i = 0; i < out.numel(); ++i)
    sum += out.data_as<double>()[i] * static_cast<double>(d_out.data_as<float>()[i]);
  return sum;
}

// The error of a gradient against the slope of the loss along a random line through tensor `which`
// of the four, relative to the terms that it sums.
double error_along_a_line(const Tensor& gradient, std::array<Tensor, 4> at, std::size_t which,
                          const Tensor& d_out) {
  constexpr double kStep = 1e-4;  // in f64: far above rounding, its square far below f32
  const Tensor line = random(gradient.shape(), 5 + which), middle = at[which];
  const auto loss_at = [&](double step) {
    Tensor moved = to(middle, DType::f64);
    for (std::int64_t i = 0; i < moved.numel(); ++i)
      moved.data_as<double>()[i] += step * static_cast<double>(line.data_as<float>()[i]);
    at[which] = moved;
    return loss(at, d_out);
  };
  double slope = 0, terms = 0;
  for (std::int64_t i = 0; i < gradient.numel(); ++i) {
    const double term = static_cast<double>(gradient.data_as<float>()[i]) *
                        static_cast<double>(line.data_as<float>()[i]);
    slope += term;
    terms += std::fabs(term);
  }
  return std::fabs(slope - (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep)) / terms;
}

}  // namespace

DemoBatch::DemoBatch()
    : begins_{0, 37, 37, 137, 300},  // one sequence is empty
      q_(random({300, kHeads, kDim}, 1)),
      k_(random({300, kHeads, kDim}, 2)),
      v_(random({300, kHeads, kDim}, 3)),
      alibi_(learnt_alibi()) {}

std::string DemoBatch::lengths_text() const {
  std::string text;
  for (std::size_t i = 0; i < sequences(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 < sequences() ? ", " : " and ", length(i));
  return text;
}

ConstTensorView DemoBatch::sequence(const Tensor& values, std::size_t i) const {
  return values.view().slice(0, begins_[i], begins_[i + 1]).transpose(0, 1).unsqueeze(0);
}

std::vector<Tensor> DemoBatch::dense(Executor* executor) const {
  std::vector<Tensor> outs;
  for (std::size_t i = 0; i < sequences(); ++i)
    outs.push_back(
        flex_attention(sequence(q_, i), sequence(k_, i), sequence(v_, i),
                       {.score_mod = alibi_,
                        .block_mask = create_block_mask(mods::causal(), 1, 1, length(i), length(i)),
                        .executor = executor}));
  return outs;
}

std::vector<Tensor> DemoBatch::jagged() const {
  const Tensor offsets = Tensor::from(begins_);
  const auto packed = [&](const Tensor& values) {
    return Jagged{.values = values, .offsets = offsets};
  };
  const Tensor out = flex_attention(packed(q_), packed(k_), packed(v_),
                                    {.score_mod = alibi_, .mask_mod = mods::causal()});
  std::vector<Tensor> outs;
  for (std::size_t i = 0; i < sequences(); ++i) outs.push_back(contiguous(sequence(out, i)));
  return outs;
}

std::vector<Tensor> DemoBatch::paged() const {
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < sequences(); ++i) longest = std::max(longest, length(i));
  const std::int64_t count = sequences();
  const std::int64_t most = (longest + kPage - 1) / kPage;
  // Pages are dealt out in turn, so that no sequence is contiguous.
  Tensor k({count * most, kHeads, kPage, kDim}, DType::f32), v(k.shape(), DType::f32);
  Tensor table({count, most}, DType::i64), lengths({count}, DType::i64);
  Tensor q({count, kHeads, longest, kDim}, DType::f32);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t at = i;
    lengths.data_as<std::int64_t>()[i] = length(at);
    for (std::int64_t page = 0; page * kPage < length(at); ++page) {
      const std::int64_t place = page * count + i, begin = begins_[at] + page * kPage;
      const std::int64_t end = std::min(begin + kPage, begins_[at + 1]);
      const std::int64_t offset = place * kHeads * kPage * kDim;
      table.data_as<std::int64_t>()[i * most + page] = place;
      copy_rows(k_, begin, end, k.data_as<float>() + offset, kPage);
      copy_rows(v_, begin, end, v.data_as<float>() + offset, kPage);
    }
    copy_rows(q_, begins_[at], begins_[at + 1], q.data_as<float>() + i * kHeads * longest * kDim,
              longest);
  }
  const Tensor out = flex_attention(q, PagedKeys{k, v, table, lengths},
                                    {.score_mod = alibi_, .mask_mod = mods::causal()});
  std::vector<Tensor> outs;
  for (std::int64_t i = 0; i < count; ++i)
    outs.push_back(contiguous(std::as_const(out).view().slice(0, i, i + 1).slice(2, 0, length(i))));
  return outs;
}

double DemoBatch::largest_error(const std::vector<Tensor>& outs) const {
  double error = 0;
  for (std::size_t i = 0; i < sequences(); ++i) {
    const Tensor exact = reference::attention({sequence(q_, i), sequence(k_, i), sequence(v_, i)},
                                              {.score_mod = alibi_, .mask_mod = mods::causal()})
                             .out;
    for (std::int64_t j = 0; j < exact.numel(); ++j)
      error = std::max(error, std::fabs(exact.data_as<double>()[j] -
                                        static_cast<double>(outs[i].data_as<float>()[j])));
  }
  return error;
}

std::vector<std::pair<std::string, double>> DemoBatch::gradient_errors() const {
  const std::size_t last = sequences() - 1;
  const ConstTensorView q = sequence(q_, last), k = sequence(k_, last), v = sequence(v_, last);
  FlexAttentionOptions options{
      .score_mod = alibi_,
      .block_mask = create_block_mask(mods::causal(), 1, 1, length(last), length(last)),
      .return_aux = {.lse = true}};
  AuxOutput aux;
  options.aux = &aux;
  const Tensor out = flex_attention(q, k, v, options), d_out = random(out.shape(), 4);
  const AttentionGradients found = flex_attention_backward(
      {.q = q, .k = k, .v = v, .out = out, .lse = *aux.lse, .d_out = d_out.view()},
      {.forward = options});
  const std::array<Tensor, 4> at = {to(q, DType::f64), to(k, DType::f64), to(v, DType::f64),
                                    to(Tensor::from(mods::alibi_slopes(kHeads)), DType::f64)};
  const std::array<std::pair<const char*, const Tensor*>, 4> gradients = {
      {{"q", &*found.q}, {"k", &*found.k}, {"v", &*found.v}, {"slopes", &found.of("slopes")}}};
  std::vector<std::pair<std::string, double>> errors;
  for (std::size_t i = 0; i < at.size(); ++i)
    errors.emplace_back(gradients[i].first, error_along_a_line(*gradients[i].second, at, i, d_out));
  return errors;
}

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::ranges::equal(a, b, [](const Tensor& x, const Tensor& y) {
    return x.shape() == y.shape() && x.dtype() == y.dtype() &&
           std::memcmp(x.data(), y.data(), x.numel() * dtype_size(x.dtype())) == 0;
  });
}

}  // namespace quire::cli

// Computes angles from theta with few sines: each row is the product of the row before and the
// first. Plan layer.
#include "plan/rope_rows.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <vector>

namespace quire::plan {
namespace {

// Rows of cos and sin of 0, step, 2 * step, ... times each frequency. Each row is computed from the
// one before, in f64, with an error of some 1e-16 per row.
template <class T>
void fill(const std::vector<double>& frequencies, double step, Tensor& to) {
  const auto half = static_cast<std::int64_t>(frequencies.size());
  T* const data = to.data_as<T>();
  for (std::int64_t i = 0; i < half; ++i) {
    const double angle = step * frequencies[static_cast<std::size_t>(i)];
    const std::complex<double> first(std::cos(angle), std::sin(angle));
    std::complex<double> at(1, 0);
    for (std::int64_t row = 0; row < to.dim(0); ++row) {
      data[(row * 2) * half + i] = static_cast<T>(at.real());
      data[(row * 2 + 1) * half + i] = static_cast<T>(at.imag());
      at = {at.real() * first.real() - at.imag() * first.imag(),
            at.real() * first.imag() + at.imag() * first.real()};
    }
  }
}

// Whether rows can be read in place.
bool lies_well(const ConstTensorView& table, DType dtype) {
  return table.dtype() == dtype && (table.strides()[1] == 1 || table.dim(1) == 1);
}

void convert(const ConstTensorView& from, Tensor& to) {
  for (std::int64_t row = 0; row < from.dim(0); ++row) {
    for (std::int64_t i = 0; i < from.dim(1); ++i) {
      const double x = from.load_float({row, i});
      if (to.dtype() == DType::f64)
        to.data_as<double>()[row * from.dim(1) + i] = x;
      else
        to.data_as<float>()[row * from.dim(1) + i] = static_cast<float>(x);
    }
  }
}

}  // namespace

std::int64_t rope_positions(const AttentionProblem& problem) {
  std::int64_t last = problem.kv_len;
  for (std::int64_t b = 0; b < problem.batch; ++b)
    last = std::max(last, problem.begin_of(b) + problem.q_len);
  return last;
}

RopeRows::RopeRows(const AttentionProblem& problem)
    : rope_(problem.rope), dtype_(problem.compute_type()) {
  if (!rope_.has_value()) return;
  half_ = (rope_->dims == 0 ? problem.head_dim : rope_->dims) / 2;
  if (!rope_->cos.has_value()) {
    const std::int64_t positions = std::max<std::int64_t>(rope_positions(problem), 1);
    problem.is_f64() ? make_from_theta<double>(*rope_, positions)
                     : make_from_theta<float>(*rope_, positions);
    return;
  }
  is_cos_copied_ = !lies_well(rope_->cos->view(), dtype_);
  is_sin_copied_ = !lies_well(rope_->sin->view(), dtype_);
  if (is_cos_copied_) cos_ = Tensor::empty(rope_->cos->shape(), dtype_);
  if (is_sin_copied_) sin_ = Tensor::empty(rope_->sin->shape(), dtype_);
}

template <class T>
void RopeRows::make_from_theta(const Rope& rope, std::int64_t positions) {
  constexpr std::int64_t kMid = kernels::kRopeMid, kLow = kernels::kRopeLow;
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < half_; ++i)
    frequencies.push_back(
        std::pow(rope.theta, -static_cast<double>(i) / static_cast<double>(half_)));
  low_ = Tensor::empty({kLow, 2, half_}, dtype_);
  mid_ = Tensor::empty({kMid, 2, half_}, dtype_);
  high_ = Tensor::empty({(positions - 1) / (kMid * kLow) + 1, 2, half_}, dtype_);
  fill<T>(frequencies, 1, low_);
  low_columns_ = Tensor::empty({half_, 2, kLow}, dtype_);
  for (std::int64_t row = 0; row < 2 * kLow; ++row)
    for (std::int64_t i = 0; i < half_; ++i)
      low_columns_.data_as<T>()[(2 * i + row % 2) * kLow + row / 2] =
          low_.data_as<T>()[row * half_ + i];
  fill<T>(frequencies, static_cast<double>(kLow), mid_);
  fill<T>(frequencies, static_cast<double>(kMid * kLow), high_);
}

void RopeRows::read() {
  if (is_cos_copied_) convert(rope_->cos->view(), cos_);
  if (is_sin_copied_) convert(rope_->sin->view(), sin_);
}

kernels::RopeTables RopeRows::tables() const {
  kernels::RopeTables tables;
  if (!rope_.has_value()) return tables;
  tables.half = static_cast<int>(half_);
  tables.interleaved = rope_->interleaved;
  if (!rope_->cos.has_value()) {
    tables.high = high_.data();
    tables.mid = mid_.data();
    tables.low = low_.data();
    tables.low_columns = low_columns_.data();
    return tables;
  }
  const ConstTensorView &cos = rope_->cos->view(), &sin = rope_->sin->view();
  tables.cos = is_cos_copied_ ? cos_.data() : cos.data();
  tables.sin = is_sin_copied_ ? sin_.data() : sin.data();
  tables.cos_step = is_cos_copied_ ? half_ : cos.strides()[0];
  tables.sin_step = is_sin_copied_ ? half_ : sin.strides()[0];
  return tables;
}

}  // namespace quire::plan

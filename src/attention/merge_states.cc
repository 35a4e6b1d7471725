// Merges states row by row. Attention layer.
#include "quire/merge_states.h"

#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention/validate.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "tensor/element.h"

namespace quire {
namespace {

constexpr const char* kMergeStates = "merge_states";
constexpr double kMinusInf = -std::numeric_limits<double>::infinity();

void check(std::span<const AttentionState> states) {
  if (states.empty())
    fail(ErrorKind::value, kMergeStates, "there must be at least one state; got none");
  const AttentionState& first = states[0];
  attention::check_float(kMergeStates, "out", first.out.dtype());
  if (first.lse.dtype() != DType::f32 && first.lse.dtype() != DType::f64)
    fail(ErrorKind::type, kMergeStates, "lse must be f32 or f64; got {}",
         dtype_name(first.lse.dtype()));
  if (first.out.rank() < 1)
    fail(ErrorKind::value, kMergeStates, "out must have an axis; got {}", "[]");
  Shape rows = first.out.shape();
  rows.erase(rows.rank() - 1);
  for (std::size_t i = 0; i < states.size(); ++i) {
    const AttentionState& state = states[i];
    if (state.out.dtype() != first.out.dtype() || state.lse.dtype() != first.lse.dtype())
      fail(ErrorKind::type, kMergeStates, "states must have the same dtypes; state {} has others",
           i);
    if (state.out.shape() != first.out.shape()) {
      fail(ErrorKind::value, kMergeStates, "outs must have the same shape; got {} and {}",
           to_string(first.out.shape()), to_string(state.out.shape()));
    }
    if (state.lse.shape() != rows) {
      fail(ErrorKind::value, kMergeStates, "lse must be {}, a number per row of out; got {}",
           to_string(rows), to_string(state.lse.shape()));
    }
  }
}

// Converts the row-major index of a row to an offset by strides.
std::int64_t offset_of(std::int64_t row, const Shape& shape, const Shape& strides,
                       std::size_t axes) {
  std::int64_t offset = 0;
  for (std::size_t axis = axes; axis-- > 0; row /= shape[axis])
    offset += row % shape[axis] * strides[axis];
  return offset;
}

// Merges the rows of the states, one at a time.
template <class Out, class Lse>
class Merger {
 public:
  Merger(std::span<const AttentionState> states, MergedState& to)
      : states_(states),
        shape_(states[0].out.shape()),
        axes_(shape_.rank() - 1),
        dim_(shape_[axes_]),
        out_(static_cast<Out*>(to.out.data())),
        lse_(static_cast<Lse*>(to.lse.data())),
        sum_(dim_) {}

  void merge(std::int64_t row) {
    double most = kMinusInf;
    int live = 0;
    std::size_t last = 0;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const double lse = lse_of(i, row);
      if (lse == kMinusInf) continue;
      ++live;
      last = i;
      if (lse > most) most = lse;  // a NaN makes the sums NaN whatever this is
    }
    if (live == 1) return copy(last, row);
    if (live == 0) {
      for (std::int64_t d = 0; d < dim_; ++d) out_[row * dim_ + d] = Out(0);
      lse_[row] = static_cast<Lse>(kMinusInf);
      return;
    }
    std::fill(sum_.begin(), sum_.end(), 0.0);
    double weights = 0;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const double weight = std::exp(lse_of(i, row) - most);
      if (weight == 0) continue;
      weights += weight;
      const Out* from = row_of(i, row);
      const std::int64_t step = states_[i].out.strides()[axes_];
      for (std::int64_t d = 0; d < dim_; ++d)
        sum_[d] += weight * static_cast<double>(from[d * step]);
    }
    for (std::int64_t d = 0; d < dim_; ++d)
      out_[row * dim_ + d] = static_cast<Out>(sum_[d] / weights);
    lse_[row] = static_cast<Lse>(most + std::log(weights));
  }

 private:
  double lse_of(std::size_t i, std::int64_t row) const {
    const ConstTensorView& lse = states_[i].lse;
    return static_cast<double>(
        static_cast<const Lse*>(lse.data())[offset_of(row, shape_, lse.strides(), axes_)]);
  }
  const Out* row_of(std::size_t i, std::int64_t row) const {
    const ConstTensorView& out = states_[i].out;
    return static_cast<const Out*>(out.data()) + offset_of(row, shape_, out.strides(), axes_);
  }
  void copy(std::size_t i, std::int64_t row) {
    const Out* from = row_of(i, row);
    const std::int64_t step = states_[i].out.strides()[axes_];
    for (std::int64_t d = 0; d < dim_; ++d) out_[row * dim_ + d] = from[d * step];
    lse_[row] = static_cast<Lse>(lse_of(i, row));
  }

  std::span<const AttentionState> states_;
  Shape shape_;
  std::size_t axes_;  // of rows
  std::int64_t dim_;
  Out* out_;
  Lse* lse_;
  std::vector<double> sum_;
};

}  // namespace

MergedState merge_states(std::span<const AttentionState> states) {
  const FloatEnv float_env;
  check(states);
  const AttentionState& first = states[0];
  MergedState merged{.out = Tensor::empty(first.out.shape(), first.out.dtype()),
                     .lse = Tensor::empty(first.lse.shape(), first.lse.dtype())};
  visit_dtype(first.out.dtype(), [&](auto out) {
    using Out = typename decltype(out)::type;
    if constexpr (!std::is_integral_v<Out>) {
      const auto run = [&](auto merger) {
        for (std::int64_t row = 0; row < merged.lse.numel(); ++row) merger.merge(row);
      };
      if (first.lse.dtype() == DType::f64)
        run(Merger<Out, double>(states, merged));
      else
        run(Merger<Out, float>(states, merged));
    }
  });
  return merged;
}

MergedState merge_states(const AttentionState& a, const AttentionState& b) {
  const FloatEnv float_env;
  const AttentionState both[] = {a, b};
  return merge_states(both);
}

}  // namespace quire

// Folds and finishes the states of rows, 64 queries of a head at a time. Plan layer.
#include "plan/finish_states.h"

#include <vector>

#include "kernels/attention_order.h"
#include "kernels/dispatch.h"
#include "kernels/row_states.h"
#include "plan/forward_call.h"
#include "quire/tensor.h"
#include "runtime/ceil_div.h"
#include "runtime/run_parallel.h"

namespace quire::plan {

std::int64_t state_count(const AttentionProblem& problem) {
  return ceil_div(problem.kv_len, std::int64_t{kernels::kSplitKeys});
}

void finish_states(const ForwardRequest& request, std::span<const ConstTensorView> states,
                   const ForwardTensors& tensors) {
  constexpr std::int64_t kAtOnce = 64;
  kernels::ForwardCall call = call_of(request, kernels::current_table());
  Tensor sinks;
  read_sinks(request, sinks);
  if (request.sinks.has_value()) call.sinks = sinks.data();
  call.out = tensors.out.data();
  call.out_rows = steps_of(tensors.out);
  call.lse = tensors.lse;
  call.max_scores = tensors.max_scores;
  call.stat_step = tensors.stats_by_row ? request.q_heads : 1;
  const std::int64_t state = kernels::row_state_size(call.value_dims);
  const std::int64_t bytes = state * dtype_size(request.compute_type());
  const std::size_t workers = request.executor->concurrency();
  const std::int64_t count = static_cast<std::int64_t>(states.size());
  Tensor scratch = Tensor::empty({static_cast<std::int64_t>(workers), bytes}, DType::u8);
  std::vector<const void*> pointers(workers * states.size());
  const Shape& steps = tensors.out.strides();
  const std::int64_t rows = tensors.out.dim(2), chunks = ceil_div(rows, kAtOnce);
  const std::int64_t heads = tensors.out.dim(0) * request.q_heads;
  run_parallel(*request.executor, heads * chunks, [&](std::size_t claim, std::size_t worker) {
    const std::int64_t at = static_cast<std::int64_t>(claim) / chunks;
    const std::int64_t b = at / request.q_heads, h = at % request.q_heads;
    const std::int64_t begin = static_cast<std::int64_t>(claim) % chunks * kAtOnce;
    for (std::int64_t row = begin; row < std::min(begin + kAtOnce, rows); ++row) {
      const std::int64_t place = tensors.stats_by_row ? (b * rows + row) * request.q_heads + h
                                                      : (b * request.q_heads + h) * rows + row;
      const void** const of_row = pointers.data() + worker * states.size();
      for (std::int64_t i = 0; i < count; ++i)
        of_row[i] = static_cast<const char*>(states[i].data()) + place * bytes;
      kernels::finish_states(
          call,
          {.h = h,
           .out_offset = b * steps[0] + h * steps[1] + row * steps[2],
           .stat_offset = place,
           .visible = {nullptr, -1}},
          of_row, count,
          static_cast<char*>(scratch.data()) + static_cast<std::int64_t>(worker) * bytes);
    }
  });
}

}  // namespace quire::plan

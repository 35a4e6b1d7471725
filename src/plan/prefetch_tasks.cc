// Prefetches the memory of a worker's next tasks: of decode in a burst, two tasks ahead; of prefill
// bit by bit while the task before is computed. Changes no result. Plan layer.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/prefill/memory_ahead.h"
#include "plan/choose_kernel.h"
#include "plan/forward_plan.h"
#include "runtime/ceil_div.h"

namespace quire::plan {

using kernels::kQueryTile;

bool ForwardPlan::come_from_memory(const ForwardTensors& tensors) const {
  const auto bytes = [](const auto& view) {
    return view.numel() * static_cast<std::int64_t>(dtype_size(view.dtype()));
  };
  return plan::come_from_memory(
      bytes(tensors.q) + bytes(tensors.k) + bytes(tensors.v) + bytes(tensors.out), caches_.l3);
}

// Whether the keys and values of a sequence's key head are too many for L2.
bool ForwardPlan::keys_exceed_l2(std::int64_t sequence) const {
  const std::int64_t bytes =
      request_.head_dim * static_cast<std::int64_t>(dtype_size(request_.k_dtype)) +
      request_.v_head_dim * static_cast<std::int64_t>(dtype_size(request_.v_dtype));
  return request_.layout->length(sequence) * bytes > caches_.l2;
}

// Short sequences that decode finish before the memory of the next one has arrived, so it is
// prefetched two tasks ahead (hardware prefetchers stop at page ends, and such a sequence hardly
// fills a page), to L2, which can have more lines outstanding than L1. Hardware does not follow
// rows with gaps between them, such as tokens of a jagged batch. For more a core would wait.
void ForwardPlan::prefetch(const ForwardTensors& tensors, std::size_t i) const {
  constexpr std::int64_t kBurst = 4096, kWithGaps = 16384;
  if (i >= work_.tasks.size() || work_.tasks[i].kernel == Kernel::kPrefill) return;
  const ForwardTask& task = work_.tasks[i];
  const auto ask = [](const auto& view, std::int64_t offset, std::int64_t rows, auto is_written) {
    const std::int64_t size = dtype_size(view.dtype());
    const std::int64_t row = view.dim(3) * size, step = view.strides()[2] * size;
    if (rows * row > (step == row ? kBurst : kWithGaps) || view.strides()[3] != 1) return;
    const char* const at = static_cast<const char*>(view.data()) + offset * size;
    const std::int64_t runs = step == row ? 1 : rows, bytes = step == row ? rows * row : row;
    for (std::int64_t run = 0; run < runs; ++run)
      for (std::int64_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(at + run * step + line, decltype(is_written)::value, 2);
  };
  const Rows rows = rows_of(tensors, task.b, task.kv_head * request_.group());
  ask(tensors.q, rows.q, request_.queries->length(task.b), std::false_type());
  if (tensors.out.rank() == 4)
    ask(tensors.out, rows.out, request_.queries->length(task.b), std::true_type());
  const std::int64_t length = request_.layout->length(task.b);
  kernels::KeySpan span;
  if (request_.layout->write_spans(task.b, task.kv_head, {0, length}, tensors.key_strides(),
                                   {&span, 1}) == 0)
    return;
  ask(tensors.k, span.key_offset, span.end, std::false_type());
  ask(tensors.v, span.value_offset, span.end, std::false_type());
}

// What prefill task `i` will use, if it is little enough to wait in L2. The task follows `before`,
// whose keys are there already. (Hardware prefetchers stop at page ends, and short sequences hardly
// fill a page, or have gaps between their rows.)
kernels::MemoryAhead ForwardPlan::memory_of(const ForwardTensors& tensors, std::size_t i,
                                            const ForwardTask& before) const {
  constexpr std::int64_t kMost = std::int64_t{128} << 10;
  kernels::MemoryAhead ahead;
  if (!prefetches_ || i >= work_.tasks.size()) return ahead;
  const ForwardTask& task = work_.tasks[i];
  if (task.kernel != Kernel::kPrefill) return ahead;
  const std::int64_t q_len = request_.queries->length(task.b);
  const std::int64_t q_tiles = ceil_div(q_len, kQueryTile);
  const std::int64_t row = task.first % q_tiles * kQueryTile;
  const std::int64_t queries = std::min<std::int64_t>(task.count * kQueryTile, q_len - row);
  const std::int64_t keys = request_.layout->length(task.b);
  kernels::KeySpan span;
  if (request_.layout->write_spans(task.b, task.kv_head, {0, keys}, tensors.key_strides(),
                                   {&span, 1}) != 1)
    return ahead;
  std::int64_t bytes = 0;
  const auto add = [&](const auto& view, std::int64_t offset, std::int64_t rows, bool is_written) {
    const std::int64_t size = dtype_size(view.dtype());
    const kernels::MemoryAhead::Rows added{
        .at = static_cast<const char*>(view.data()) + offset * size,
        .step = view.strides()[2] * size,
        .rows = rows,
        .bytes = view.dim(3) * size,
        .is_written = is_written};
    if (view.strides()[3] != 1) return;
    bytes += rows * added.bytes;
    ahead.add(added);
  };
  const std::int64_t head = task.kv_head * request_.group() + task.first / q_tiles;
  const Rows rows = rows_of(tensors, task.b, head);
  add(tensors.q, rows.q + row * tensors.q.strides()[2], queries, false);
  if (task.b != before.b || task.kv_head != before.kv_head) {
    add(tensors.k, span.key_offset, keys, false);
    add(tensors.v, span.value_offset, keys, false);
  }
  if (tensors.out.rank() == 4)
    add(tensors.out, rows.out + row * tensors.out.strides()[2], queries, true);
  if (bytes > kMost) ahead.clear();
  return ahead;
}

// The task that this worker is likely to do after task i of a claim.
std::size_t ForwardPlan::next_task(std::size_t claim, std::size_t i) const {
  if (static_cast<std::int64_t>(i) + 1 < work_.claims[claim + 1]) return i + 1;
  const std::size_t next = claim + faults_.size();
  return next < work_.claims.size() ? static_cast<std::size_t>(work_.claims[next])
                                    : work_.tasks.size();
}

}  // namespace quire::plan

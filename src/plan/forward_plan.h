// ForwardPlan: everything about a forward call that does not depend on where its tensors lie: tile
// programs, visible keys, tasks, scratch. run() allocates nothing; it is used for every layer and
// step of the same sizes. Sizes have been validated by who makes it. Plan layer.
//
// Flow of run(): executor -> task -> the layout writes the spans of its keys, offsets are filled in
// -> kernels::prefill or kernels::decode (-> merge_splits where a sequence was cut) -> faults.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/decode.h"
#include "kernels/prefill.h"
#include "kernels/tile_program.h"
#include "layout/key_layout.h"
#include "plan/choose_kernel.h"
#include "plan/mask_runs.h"
#include "quire/block_mask.h"
#include "quire/executor.h"
#include "quire/formula.h"
#include "quire/tensor.h"

namespace quire::plan {

struct ForwardRequest {
  std::int64_t batch = 0, q_heads = 0, kv_heads = 0, q_len = 0, head_dim = 0, v_head_dim = 0;
  DType q_dtype = DType::f32, k_dtype = DType::f32, v_dtype = DType::f32;
  double scale = 1;
  kernels::Dropout dropout = {};
  std::optional<Formula> score_mod = {};  // simplified, and more than the score itself
  std::optional<BlockMask> block_mask = {};
  std::vector<std::int64_t> q_begin = {0};  // of every batch entry, or one for all
  std::shared_ptr<const layout::KeyLayout> layout = {};
  std::int64_t longest_kv = 0;  // of all sequences
  std::shared_ptr<Executor> executor = {};
};

struct ForwardTensors {
  ConstTensorView q, k, v;  // [batch, heads, len, dim], any strides
  TensorView out;           // [batch, q_heads, q_len, v_head_dim], any strides
  void* lse = nullptr;      // [batch, q_heads, q_len] in compute type, or null
  void* max_scores = nullptr;
};

class ForwardPlan {
 public:
  explicit ForwardPlan(ForwardRequest request);
  ForwardPlan(const ForwardPlan&) = delete;
  ForwardPlan& operator=(const ForwardPlan&) = delete;

  /// One run of a plan at a time. Throws the Error of the first visible element that did something
  /// wrong; the output's contents are unspecified then.
  void run(const ForwardTensors& tensors);

  DType compute_type() const { return is_f64_ ? DType::f64 : DType::f32; }
  Kernel kernel() const { return kernel_; }
  std::size_t task_count() const { return tasks_.size(); }
  std::size_t scratch_bytes() const;

 private:
  // Query tiles (prefill) or query rows (decode) [first, first + count) of the heads that share a
  // key head, head after head. Decode: splits [split_begin, split_end).
  struct Task {
    std::int64_t b = 0, kv_head = 0, first = 0, count = 0;
    std::int64_t split_begin = 0, split_end = 0;
    std::int64_t states = -1;  // decode, cut: where its states begin, in states_
    std::int64_t work = 0;
  };

  std::int64_t group() const {
    return request_.kv_heads == 0 ? 1 : request_.q_heads / request_.kv_heads;
  }
  std::int64_t q_tiles() const;
  std::int64_t q_begin(std::int64_t b) const;
  std::int64_t plane(std::int64_t b, std::int64_t h) const;

  void compile_programs();
  void list_lane_runs();
  void make_prefill_tasks(std::int64_t threads);
  void make_decode_tasks(std::int64_t threads);
  void allocate_scratch();

  kernels::ForwardCall make_call(const ForwardTensors& tensors) const;
  kernels::KeySequence write_keys(const Task& task, const ForwardTensors& tensors,
                                  std::size_t worker);
  void run_prefill(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                   const Task& task, std::size_t worker);
  void run_decode(const kernels::ForwardCall& call, const ForwardTensors& tensors, const Task& task,
                  std::size_t worker);
  void run_merge(const kernels::ForwardCall& call, const ForwardTensors& tensors, const Task& task,
                 std::size_t worker);
  void run_task(const kernels::ForwardCall& call, const ForwardTensors& tensors, std::size_t i,
                std::size_t worker);
  void prefetch(const ForwardTensors& tensors, std::size_t task) const;
  void fill_rows(const ForwardTensors& tensors, const Task& task, kernels::QueryRow* rows) const;
  void* scratch(std::size_t worker);

  ForwardRequest request_;
  const kernels::KernelTable* table_;
  bool is_f64_ = false, pairs_ = false, natural_ = false;
  Kernel kernel_;
  int tiles_per_item_ = 1;
  std::int64_t tasks_at_once_ = 1;
  std::optional<MaskRuns> mask_runs_;
  std::optional<Formula> mask_formula_;  // simplified
  std::optional<kernels::TileProgram> prefill_score_, prefill_mask_, decode_score_, decode_mask_;
  std::vector<kernels::LaneRuns> lane_runs_;
  std::vector<std::int64_t> first_lane_runs_;  // [planes * q_tiles + 1]
  std::vector<Task> tasks_, merges_;
  std::vector<kernels::KeySpan> spans_;  // [workers][max_spans]
  std::vector<kernels::TileFault> faults_;
  std::size_t scratch_step_ = 0;
  Tensor scratch_, states_;
};

}  // namespace quire::plan

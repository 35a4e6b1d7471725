// ForwardPlan: everything about a forward call that does not depend on where its tensors lie: tile
// programs, visible keys, tasks, scratch. run() allocates nothing; it is used for every layer and
// step of the same sizes. Sizes have been validated by who makes it. Plan layer.
//
// Flow of run(): keys that sequences share, where there are any; then executor -> task -> the
// layout writes the spans of its keys, offsets are filled in
// -> kernels::prefill or kernels::decode (-> merge_splits where a sequence was cut) -> faults.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/decode/decode.h"
#include "kernels/prefill/prefill.h"
#include "kernels/tile/tile_program.h"
#include "plan/forward_request.h"
#include "plan/forward_tasks.h"
#include "plan/visible_keys.h"
#include "quire/formula.h"
#include "quire/tensor.h"

namespace quire::plan {

struct ForwardTensors {
  ConstTensorView q, k, v;  // [batch, heads, len, dim], any strides; a jagged batch is one entry
  TensorView out;           // [batch, q_heads, q_len, v_head_dim], any strides
  void* lse = nullptr;      // [batch, q_heads, q_len] in compute type, or null
  void* max_scores = nullptr;
  bool stats_by_row = false;  // lse and max_scores are [batch, q_len, q_heads]
};

class ForwardPlan {
 public:
  explicit ForwardPlan(AttentionProblem problem);
  ForwardPlan(const ForwardPlan&) = delete;
  ForwardPlan& operator=(const ForwardPlan&) = delete;

  /// One run of a plan at a time. Throws the Error of the first visible element that did something
  /// wrong; the output's contents are unspecified then.
  void run(const ForwardTensors& tensors);

  /// The problem with what was derived from it.
  const ForwardRequest& request() const { return request_; }
  DType compute_type() const { return request_.compute_type(); }
  const ForwardTasks& tasks() const { return work_; }
  /// What its mods read at each run.
  std::span<const Buffer> buffers() const { return buffers_; }
  /// Of all sequences together.
  std::int64_t queries() const;
  std::size_t scratch_bytes() const;

 private:
  // Where the rows of a head of a sequence begin.
  struct Rows {
    std::int64_t q = 0, out = 0, stat = 0;
  };

  Rows rows_of(const ForwardTensors& tensors, std::int64_t b, std::int64_t h) const;

  void compile_programs();
  void allocate_scratch();

  kernels::ForwardCall make_call(const ForwardTensors& tensors) const;
  void find_visible();
  kernels::KeySequence write_keys(const ForwardTask& task, layout::KeyRange range,
                                  const ForwardTensors& tensors, std::size_t worker);
  void run_prefill(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                   const ForwardTask& task, std::size_t worker);
  void run_decode(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                  const ForwardTask& task, std::size_t worker);
  void run_prefix(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                  const PrefixTask& task, std::size_t worker);
  kernels::DecodePrefix prefix_of(const ForwardTask& task) const;
  void run_merge(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                 const ForwardTask& task, std::size_t worker);
  void run_claim(const kernels::ForwardCall& call, const ForwardTensors& tensors, std::size_t claim,
                 std::size_t worker);
  void prefetch(const ForwardTensors& tensors, std::size_t task) const;
  void fill_rows(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                 const ForwardTask& task, kernels::QueryRow* to) const;
  layout::KeyRange seen_by(std::int64_t sequence, std::span<const kernels::QueryRow> rows) const;
  void* scratch(std::size_t worker);

  ForwardRequest request_;
  const kernels::KernelTable* table_;
  std::shared_ptr<const VisibleKeys> visible_;  // null: everything
  std::optional<Formula> mask_formula_;         // simplified
  std::vector<Buffer> buffers_;                 // of the score mod, then of the mask
  std::optional<kernels::TileProgram> prefill_score_, prefill_mask_, decode_score_, decode_mask_;
  ForwardTasks work_;
  std::vector<kernels::KeySpan> spans_;  // [workers][max_spans]
  std::vector<kernels::TileFault> faults_;
  std::size_t scratch_step_ = 0;
  Tensor scratch_, states_;
};

}  // namespace quire::plan

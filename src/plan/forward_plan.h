// ForwardPlan: everything about a forward call that does not depend on where its tensors lie: tile
// programs, visible keys, tasks, scratch. run() allocates nothing; it is used for every layer and
// step of the same sizes. The caller has validated the sizes. Plan layer.
//
// Flow of run(): keys that sequences share, where there are any; then executor -> tasks: the layout
// writes the spans of a task's keys, offsets are filled in, kernels::prefill or kernels::decode
// computes it; then executor -> merge_splits for sequences that were cut; then the first fault is
// thrown; then weights of keys and entropy, where they are wanted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/decode/decode.h"
#include "kernels/prefill/last_look.h"
#include "kernels/prefill/prefill.h"
#include "kernels/tile/tile_program.h"
#include "plan/forward_request.h"
#include "plan/forward_tasks.h"
#include "plan/rope_rows.h"
#include "plan/seen_tiles.h"
#include "plan/visible_keys.h"
#include "quire/formula.h"
#include "quire/tensor.h"

namespace quire::plan {

/// Where the weights of keys go, in compute type; steps in elements.
struct KeyWeightsOutput {
  void* data = nullptr;  // null: not wanted
  std::int64_t batch_step = 0, head_step = 0, key_step = 0;
  bool is_packed = false;  // sequences lie one after the other, as jagged keys do
  QueryRange queries = {};
};

struct ForwardTensors {
  ConstTensorView q = {}, k = {},
                  v = {};  // [batch, heads, len, dim], any strides; a jagged batch is one entry
  ConstTensorView k_scales = {}, v_scales = {};  // of codes: [batch, heads, len, scales of a row]
  TensorView out = {};                           // [batch, q_heads, q_len, v_head_dim], any strides
  void* lse = nullptr;                           // [batch, q_heads, q_len] in compute type, or null
  void* max_scores = nullptr;
  bool stats_by_row = false;  // lse, max_scores and entropy are [batch, q_len, q_heads]
  void* entropy = nullptr;    // as lse
  /// Laid out as lse, or null: row maxima in the form of the scores, and row sums
  /// (kernels::ForwardCall). Runs that want the weights of keys keep their own.
  void *row_max = nullptr, *row_sum = nullptr;
  KeyWeightsOutput key_weights = {};
  /// Written instead of out, lse and max_scores if the request keeps states.
  void* states = nullptr;
  std::int64_t state_rows = 0;  // from head to head
  bool resumes = false;

  bool wants_weights() const { return entropy != nullptr || key_weights.data != nullptr; }
  layout::KeyStrides key_strides() const;
};

class ForwardPlan {
 public:
  explicit ForwardPlan(AttentionProblem&& problem);
  ForwardPlan(const ForwardPlan&) = delete;
  ForwardPlan& operator=(const ForwardPlan&) = delete;

  /// One run of a plan at a time. Throws the Error of the first visible element with a fault; the
  /// contents of the outputs are unspecified then.
  void run(const ForwardTensors& tensors);

  /// The problem with what was derived from it.
  const ForwardRequest& request() const { return request_; }
  DType compute_type() const { return request_.compute_type(); }
  const ForwardTasks& tasks() const { return work_; }
  /// The buffers that its mods read at each run.
  std::span<const Buffer> buffers() const { return buffers_; }
  /// Of all sequences together.
  std::int64_t queries() const;
  std::size_t scratch_bytes() const;

 private:
  // Where the rows of a head of a sequence begin.
  struct Rows {
    std::int64_t q = 0, out = 0, stat = 0;
  };

  struct RowPlace {
    std::int64_t b = 0, h = 0, row = 0;
  };

  Rows rows_of(const ForwardTensors& tensors, std::int64_t b, std::int64_t h) const;

  void compile_programs();
  void compile_prefill();
  void allocate_scratch();

  kernels::ForwardCall make_call() const;  // without tensors: to size scratch
  kernels::ForwardCall make_call(const ForwardTensors& tensors) const;
  void find_visible();
  kernels::KeySequence write_keys(const ForwardTask& task, const SeenRange& seen,
                                  const ForwardTensors& tensors, std::size_t worker);
  void run_prefill(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                   const ForwardTask& task, kernels::MemoryAhead* ahead, std::size_t worker);
  void run_decode(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                  const ForwardTask& task, std::size_t worker);
  void run_chosen(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                  const ForwardTask& task, std::size_t worker);
  void run_prefix(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                  const PrefixTask& task, std::size_t worker);
  kernels::DecodePrefix prefix_of(const ForwardTask& task) const;
  void run_merge(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                 const ForwardTask& task, std::size_t worker);
  void run_claim(const kernels::ForwardCall& call, const ForwardTensors& tensors, std::size_t claim,
                 std::size_t worker);
  bool come_from_memory(const ForwardTensors& tensors) const;
  bool keys_exceed_l2(std::int64_t sequence) const;
  void prefetch(const ForwardTensors& tensors, std::size_t task) const;
  kernels::MemoryAhead memory_of(const ForwardTensors& tensors, std::size_t i,
                                 const ForwardTask& before) const;
  std::size_t next_task(std::size_t claim, std::size_t i) const;
  void fill_rows(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                 const ForwardTask& task, kernels::QueryRow* to);
  kernels::QueryRow row_of(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                           const RowPlace& place);
  kernels::QueryTile tile_of(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                             const RowPlace& place, kernels::LaneRuns* lanes) const;

  // The weights of keys, after a run (key_weights_run.cc).
  struct WeightsTask {
    std::int64_t b = 0, h = 0, split = 0;
  };
  bool keeps_scores(std::int64_t b) const;
  std::int64_t weights_place(const KeyWeightsOutput& to, std::int64_t b, std::int64_t h) const;
  void allocate_weights(const ForwardTensors& tensors);
  static bool weighs_in_place(const ForwardTensors& tensors);
  void* kept_scores(const ForwardTensors& tensors, std::int64_t b, std::int64_t h);
  kernels::WeightRule weight_rule() const;
  int weights_tiles() const;
  template <class T>
  void finish_kept(const ForwardTensors& tensors, std::int64_t b, std::int64_t h);
  template <class T>
  T entropy_of(std::int64_t h, std::int64_t stat, T weighted) const;
  template <class T>
  T sink_weight(T distance) const;
  template <class T>
  T sink_distance(std::int64_t h, std::int64_t stat) const;
  template <class T>
  void add_sinks(const ForwardTensors& tensors, std::int64_t b, std::int64_t h);
  bool is_natural() const;  // scores, see kernels::ForwardCall
  template <class T>
  void add_weights(const kernels::ForwardCall& call, const ForwardTensors& tensors,
                   const WeightsTask& task, std::size_t worker);
  template <class T>
  void finish_entropy(const ForwardTensors& tensors, std::int64_t b, std::int64_t h);
  template <class T>
  void clear_tail(const KeyWeightsOutput& to, std::int64_t b, std::int64_t h) const;
  template <class T>
  void run_weights(const kernels::ForwardCall& call, const ForwardTensors& tensors);

  SeenRange seen_by(std::int64_t sequence, std::span<const kernels::QueryRow> rows) const;
  void* scratch(std::size_t worker);

  ForwardRequest request_;
  const kernels::KernelTable* table_;
  std::shared_ptr<const VisibleKeys> visible_;  // null: everything
  std::optional<Formula> mask_formula_;         // simplified
  std::vector<Buffer> buffers_;                 // of the score mod, then of the mask
  std::optional<kernels::TileProgram> prefill_score_, prefill_mask_, decode_score_, decode_mask_;
  ForwardTasks work_;
  std::vector<kernels::KeySpan> spans_;    // [workers][max_spans]
  std::vector<kernels::QueryTile> tiles_;  // [workers][kMaxQueryTiles]
  std::vector<kernels::LastLook> looks_;   // [workers], if there is a mask and prefill
  std::vector<kernels::TileFault> faults_;
  std::size_t scratch_step_ = 0;
  // For runs that want the weights of keys: row_states_ has the maxima, then the sums of all rows;
  // kept_scores_ the scores of sequences with one query, [batch][q_heads][kv_len]; entropy_parts_
  // the sums of splits, [rows][splits].
  bool keeps_ = false, from_memory_ = false, prefetches_ = false;  // in the current run
  Tensor row_states_, kept_scores_, entropy_parts_, weights_scratch_;
  std::size_t weights_scratch_step_ = 0;
  Tensor scratch_, states_, sinks_;
  RopeRows rope_;
  struct {
    std::int64_t l2, l3;
  } caches_;  // in bytes; a run must not ask for them, since the first one who does allocates
};

}  // namespace quire::plan

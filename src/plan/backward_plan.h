// BackwardPlan: everything about a backward call that does not depend on where its tensors lie: the
// mask program, which query tiles see which chunks of keys, items, scratch. run() allocates
// nothing. The caller has validated the sizes. Plan layer.
//
// Flow of run(): executor -> rows (lse, delta, dQ = 0) -> executor -> items claimed in ascending
// order: (keys of a sequence, key head, chunk) -> kernels::BackwardChunk, a query tile at a time ->
// where dQ was summed up in scratch, executor -> rows to their tensor; where several sequences use
// a page, executor -> its sums to their tensor -> faults.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/backward/backward.h"
#include "kernels/backward/gradient_runner.h"
#include "kernels/backward/problem.h"
#include "kernels/backward/turn.h"
#include "kernels/tile/tile_program.h"
#include "kernels/tile/tile_runner.h"
#include "plan/backward_request.h"
#include "plan/chunk_tiles.h"
#include "plan/gradient_plan.h"
#include "plan/large_rows.h"
#include "plan/page_gradients.h"
#include "plan/rope_rows.h"
#include "plan/visible_keys.h"
#include "quire/formula.h"
#include "quire/tensor.h"

namespace quire::plan {

/// [batch, heads, len, dim], any strides; a jagged batch is one entry, paged keys and values are
/// [pages, heads, page_size, dim]. Row numbers: [batch, heads, len].
struct BackwardTensors {
  ConstTensorView q = {}, k = {}, v = {}, out = {}, lse = {};
  std::optional<ConstTensorView> d_out = {}, d_lse = {};
  std::optional<TensorView> d_q = {}, d_k = {}, d_v = {};  // those that are wanted
  std::span<const TensorView> d_buffers = {};              // one for each of the request's
};

class BackwardPlan {
 public:
  explicit BackwardPlan(BackwardRequest request);
  BackwardPlan(const BackwardPlan&) = delete;
  BackwardPlan& operator=(const BackwardPlan&) = delete;

  /// One run of a plan at a time. Throws the Error of the first visible element with a fault; the
  /// contents of the outputs are unspecified then.
  void run(const BackwardTensors& tensors);

  const WantedGradients& wanted() const { return wanted_; }
  const ForwardRequest& forward() const { return forward_; }
  const std::vector<Buffer>& buffers() const { return request_.buffers; }
  DType compute_type() const { return is_f64_ ? DType::f64 : DType::f32; }
  std::size_t scratch_bytes() const;

 private:
  // The keys of a sequence (of all sequences, if they share keys), a key head and a chunk.
  struct Item {
    std::int32_t b = 0, kv_head = 0, chunk = 0;
  };
  // The rows of a query tile.
  struct TilePlace {
    std::int64_t b = 0, h = 0, tile = 0;
  };

  std::int64_t q_tiles(std::int64_t b) const;
  std::int64_t tile_number(const TilePlace& place) const;
  TilePlace tile_place(std::int64_t number) const;
  int queries_of(const TilePlace& place) const;

  void list_items();
  void compile_mask();
  void allocate_scratch();
  void allocate_sums();
  layout::KeyRange keys_of(const Item& item) const;
  PageGradients::Outputs page_outputs(const BackwardTensors& tensors) const;
  bool sums_in_place(const BackwardTensors& tensors) const;

  kernels::BackwardCall make_call(const BackwardTensors& tensors) const;
  template <class T>
  void run_typed(const BackwardTensors& tensors);
  template <class T>
  void prepare(const kernels::BackwardCall& call, const BackwardTensors& tensors,
               const TilePlace& place, std::size_t worker);
  template <class T>
  void prepare_rows(const kernels::BackwardCall& call, const BackwardTensors& tensors,
                    const TilePlace& place, const T* corrections, std::size_t worker);
  template <class T>
  void correct_rows(const kernels::BackwardCall& call, const BackwardTensors& tensors,
                    const TilePlace& place, std::size_t worker);
  bool may_correct(const BackwardTensors& tensors) const;
  std::span<const kernels::KeySpan> write_spans(const Item& item, const ConstTensorView& k,
                                                const ConstTensorView& v, std::size_t worker);
  template <class T>
  void write_keys(const BackwardTensors& tensors, const Item& item,
                  kernels::BackwardChunk<T>& chunk, std::size_t worker);
  template <class T>
  void run_item(const kernels::BackwardCall& call, const BackwardTensors& tensors, std::size_t item,
                std::size_t worker);
  template <class T>
  kernels::BackwardTile tile_of(const kernels::BackwardCall& call, const BackwardTensors& tensors,
                                const TilePlace& place);
  template <class T>
  void write_queries(const kernels::BackwardCall& call, const BackwardTensors& tensors,
                     const TilePlace& place);
  void write_sinks(const TensorView& to) const;
  bool wants_sinks() const;
  // Buffers of the mods, without that of the sinks.
  std::size_t mod_buffers() const { return request_.buffers.size() - (wants_sinks() ? 1 : 0); }
  void* scratch(std::size_t worker);
  // The runner of the current run; null without a score mod.
  kernels::GradientRunner* runner(std::size_t worker);

  BackwardRequest request_;
  const ForwardRequest& forward_;  // of request_
  WantedGradients wanted_;         // by the caller; request_.wanted: what is computed
  const kernels::KernelTable* table_;
  bool is_f64_ = false, is_small_ = false;
  std::int64_t chunk_keys_ = 0;
  std::optional<BlockMaskKeys> visible_;
  std::optional<ChunkTiles> chunk_tiles_;
  std::optional<kernels::TileProgram> mask_;
  std::optional<GradientPlan> gradient_;
  std::vector<std::optional<kernels::GradientRunner>>
      runners_;                          // of every worker, made when needed
  std::optional<PageGradients> pages_;   // if the layout has pages
  std::vector<kernels::KeySpan> spans_;  // [workers][max_spans]
  std::vector<Item> items_;
  std::vector<std::int64_t> first_tile_;  // of every sequence, with all its heads; then the end
  std::vector<kernels::TileFault> faults_;
  std::vector<std::uint64_t> live_;         // of every tile
  std::vector<std::uint8_t> is_large_;      // of every tile: whether it has large rows
  std::atomic<bool> has_large_ = false;     // of this run
  std::optional<LargeRows> large_rows_;     // made when needed
  std::unique_ptr<kernels::Turn[]> turns_;  // of every tile
  std::atomic<std::size_t> next_item_ = 0;
  std::size_t scratch_step_ = 0, gradient_offset_ = 0;
  Tensor scratch_, stats_, sums_;  // lse, delta and share: [tiles][3][64]; [tiles][64][columns]
  Tensor sinks_;                   // in compute type
  RopeRows rope_;
  std::vector<double> d_sinks_;  // what each tile adds to the gradient of its head's sink
};

}  // namespace quire::plan

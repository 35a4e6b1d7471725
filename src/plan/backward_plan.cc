// Plans the items of a backward call from its sizes. Plan layer.
#include "plan/backward_plan.h"

#include <algorithm>
#include <utility>

#include "formula/compile/compile.h"
#include "kernels/backward/backward.h"
#include "kernels/backward/rows.h"
#include "kernels/dispatch.h"
#include "kernels/prefill/key_tile.h"
#include "plan/choose_kernel.h"
#include "plan/forward_call.h"
#include "runtime/ceil_div.h"

namespace quire::plan {

using kernels::kQueryTile;

namespace {

kernels::GradientTensor gradient_of(const std::optional<TensorView>& view) {
  if (!view.has_value()) return {};
  return {view->data(), steps_of(*view)};
}

}  // namespace

BackwardPlan::BackwardPlan(BackwardRequest request)
    : request_(std::move(request)),
      forward_(request_.forward),
      wanted_(request_.wanted),
      table_(&kernels::current_table()),
      rope_(forward_) {
  ForwardRequest& f = request_.forward;
  if (f.head_dim == 0) {  // one_channel.h
    f.head_dim = 1;
    request_.wanted.q = request_.wanted.k = false;  // have no elements
  }
  is_f64_ = f.is_f64();
  chunk_keys_ =
      kernels::backward_chunk_keys(static_cast<int>(f.head_dim), static_cast<int>(f.v_head_dim));
  if (f.block_mask.has_value()) {
    visible_.emplace(f.block_mask, f.q_len, f.kv_len);
    chunk_tiles_.emplace(f.block_mask, *visible_, f.kv_len, chunk_keys_);
  }
  if (f.layout->page_size() > 0) {
    pages_.emplace(*f.layout, PageGradients::Sizes{.sequences = f.batch,
                                                   .kv_heads = f.kv_heads,
                                                   .chunk_keys = chunk_keys_,
                                                   .head_dim = f.head_dim,
                                                   .v_head_dim = f.v_head_dim,
                                                   .wants_k = request_.wanted.k,
                                                   .wants_v = request_.wanted.v,
                                                   .compute_type = compute_type()});
  }
  list_items();
  compile_mask();
  gradient_.emplace(GradientRequest{.score_mod = f.score ? &*f.score : nullptr,
                                    .compile = compile_options(f, kernels::kBackwardTileKeys),
                                    .sizes = {f.queries->longest(), chunk_keys_},
                                    .buffers = std::span(request_.buffers).first(mod_buffers())});
  allocate_scratch();
}

bool BackwardPlan::wants_sinks() const {
  return !request_.buffers.empty() && forward_.sinks && forward_.sinks->wants_gradient();
}

std::int64_t BackwardPlan::q_tiles(std::int64_t b) const {
  return ceil_div(forward_.queries->length(b), kQueryTile);
}

std::int64_t BackwardPlan::tile_number(const TilePlace& place) const {
  return first_tile_[place.b] + place.h * q_tiles(place.b) + place.tile;
}

BackwardPlan::TilePlace BackwardPlan::tile_place(std::int64_t number) const {
  const auto next = std::upper_bound(first_tile_.begin(), first_tile_.end(), number);
  const std::int64_t b = next - first_tile_.begin() - 1, tiles = q_tiles(b);
  const std::int64_t in_sequence = number - first_tile_[b];
  return {b, in_sequence / tiles, in_sequence % tiles};
}

int BackwardPlan::queries_of(const TilePlace& place) const {
  return static_cast<int>(std::min<std::int64_t>(
      kQueryTile, forward_.queries->length(place.b) - place.tile * kQueryTile));
}

// Chunk by chunk, so that the chunk whose turn it is for a query tile has always been claimed.
void BackwardPlan::list_items() {
  first_tile_.push_back(0);
  std::int64_t most_chunks = 0;
  double pairs = 0;
  for (std::int64_t b = 0; b < forward_.batch; ++b) {
    first_tile_.push_back(first_tile_.back() + q_tiles(b) * forward_.q_heads);
    most_chunks = std::max(most_chunks, ceil_div(forward_.layout->length(b), chunk_keys_));
    pairs += static_cast<double>(forward_.queries->length(b)) *
             static_cast<double>(forward_.layout->length(b));
  }
  is_small_ = is_for_one_thread(pairs * static_cast<double>(forward_.q_heads) * 2.5 *
                                static_cast<double>(forward_.head_dim + forward_.v_head_dim));
  const std::int64_t sequences =
      request_.shares_keys ? std::min<std::int64_t>(forward_.batch, 1) : forward_.batch;
  for (std::int64_t chunk = 0; chunk < most_chunks; ++chunk)
    for (std::int64_t b = 0; b < sequences; ++b)
      for (std::int64_t h = 0;
           h < forward_.kv_heads && chunk * chunk_keys_ < forward_.layout->length(b); ++h)
        items_.push_back({static_cast<std::int32_t>(b), static_cast<std::int32_t>(h),
                          static_cast<std::int32_t>(chunk)});
}

void BackwardPlan::compile_mask() {
  if (!forward_.block_mask.has_value()) return;
  const std::optional<Formula> rule = rule_to_evaluate(forward_.block_mask.mask_mod());
  if (!rule.has_value()) return;
  mask_ = formula::compile({.mask_mod = &*rule, .mask_only = true},
                           compile_options(forward_, kernels::kBackwardTileKeys));
}

void BackwardPlan::allocate_scratch() {
  const std::size_t workers = forward_.executor->concurrency();
  const std::size_t size = dtype_size(compute_type());
  gradient_offset_ =
      std::max(kernels::backward_scratch_bytes(make_call({})),
               kernels::prepare_rows_scratch(static_cast<int>(forward_.v_head_dim)) * size);
  gradient_offset_ = (gradient_offset_ + 63) / 64 * 64;
  const std::size_t bytes = gradient_offset_ + gradient_->thread_bytes();
  scratch_step_ =
      (bytes + 4095) / 4096 * 4096 + 64 * 5;  // puts workers' memory into different cache sets
  scratch_ = Tensor::empty({static_cast<std::int64_t>(scratch_step_ * workers)}, DType::u8);
  spans_.resize(workers * static_cast<std::size_t>(forward_.layout->max_spans()));
  faults_.resize(workers);
  runners_.resize(workers);
  const std::size_t tiles = first_tile_.back();
  live_.resize(tiles);
  is_large_.resize(tiles);
  turns_ = std::make_unique<kernels::Turn[]>(tiles);
  stats_ = Tensor::empty({first_tile_.back(), 3, kQueryTile}, compute_type());
  d_sinks_.resize(tiles);
  read_sinks(forward_, sinks_);
  // Strides are only known in run(): count what does not depend on them.
  const bool may_be_in_place = forward_.q_dtype == compute_type() &&
                               forward_.head_dim % kernels::kPanel == 0 &&
                               !forward_.rope.has_value();  // rotated back at the end
  if (request_.wanted.q && !may_be_in_place) allocate_sums();
}

void BackwardPlan::allocate_sums() {
  const Shape shape{first_tile_.back(), kQueryTile,
                    kernels::whole_panels(static_cast<int>(forward_.head_dim))};
  if (sums_.shape() != shape) sums_ = Tensor::empty(shape, compute_type());
}

std::size_t BackwardPlan::scratch_bytes() const {
  const auto bytes = [](const Tensor& tensor) {
    return tensor.numel() * dtype_size(tensor.dtype());
  };
  return bytes(scratch_) + bytes(stats_) + bytes(sums_) + gradient_->shared_bytes() +
         live_.size() * sizeof(live_[0]) + live_.size() * sizeof(kernels::Turn) +
         (chunk_tiles_ ? chunk_tiles_->bytes() : 0) + (pages_ ? pages_->bytes() : 0) +
         spans_.size() * sizeof(spans_[0]) + d_sinks_.size() * sizeof(d_sinks_[0]);
}

void* BackwardPlan::scratch(std::size_t worker) {
  return static_cast<std::uint8_t*>(scratch_.data()) + worker * scratch_step_;
}

kernels::BackwardCall BackwardPlan::make_call(const BackwardTensors& tensors) const {
  kernels::BackwardCall call;
  kernels::ForwardCall& f = call.forward;
  f = call_of(forward_, *table_);
  f.prefill.mask = mask_.has_value() ? &*mask_ : nullptr;
  f.rope = rope_.tables();
  call.wants_q = request_.wanted.q;
  call.shares_keys = forward_.group() > 1 || (request_.shares_keys && forward_.batch > 1);
  call.gradient = gradient_->program();
  if (tensors.q.rank() != 4) return call;  // only to size scratch
  f.q = tensors.q.data();
  if (forward_.sinks.has_value()) f.sinks = sinks_.data();
  f.k = tensors.k.data();
  f.v = tensors.v.data();
  f.q_rows = steps_of(tensors.q);
  f.k_rows = steps_of(tensors.k);
  f.v_rows = steps_of(tensors.v);
  if (tensors.d_out.has_value()) {
    call.d_out = tensors.d_out->data();
    call.d_out_rows = steps_of(*tensors.d_out);
  }
  call.d_k = gradient_of(tensors.d_k);
  call.d_v = gradient_of(tensors.d_v);
  return call;
}

}  // namespace quire::plan

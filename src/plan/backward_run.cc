// Runs a backward plan: prepares the rows of queries, runs the items, writes the gradients of rows.
// Plan layer.
#include <algorithm>
#include <cstring>

#include "formula/first_fault.h"
#include "kernels/attention_order.h"
#include "kernels/backward/backward.h"
#include "kernels/backward/rows.h"
#include "kernels/prefill/key_tile.h"
#include "kernels/typed_functions.h"
#include "layout/chosen_keys.h"
#include "plan/backward_plan.h"
#include "plan/forward_call.h"
#include "plan/one_channel.h"
#include "runtime/ceil_div.h"
#include "runtime/run_parallel.h"

namespace quire::plan {

using kernels::kQueryTile;

namespace {

std::int64_t offset_of(const Shape& strides, std::int64_t batch, std::int64_t h, std::int64_t row) {
  return batch * strides[0] + h * strides[1] + row * strides[2];
}

// Rows of a tensor of row statistics ([batch, heads, len]) or of rows ([batch, heads, len, dim]).
kernels::RowsView rows_view(const ConstTensorView& view, std::int64_t offset, int rows) {
  const bool is_number = view.rank() == 3;
  return {.data = static_cast<const char*>(view.data()) +
                  offset * static_cast<std::int64_t>(dtype_size(view.dtype())),
          .dtype = view.dtype(),
          .row_step = view.strides()[2],
          .column_step = is_number ? 1 : view.strides()[3],
          .rows = rows,
          .columns = is_number ? 1 : static_cast<int>(view.dim(3))};
}

// Tiles claimed at once for row operations, which are quick.
constexpr std::int64_t kTilesAtOnce = 8;

}  // namespace

// Whether the gradients of q can be summed in place.
bool BackwardPlan::sums_in_place(const BackwardTensors& tensors) const {
  return tensors.d_q->dtype() == compute_type() && tensors.d_q->strides()[3] == 1 &&
         forward_.head_dim % kernels::kPanel == 0 && !forward_.rope.has_value();
}

void BackwardPlan::run(const BackwardTensors& tensors) {
  if (tensors.q.dim(3) == 0) {
    BackwardTensors some = tensors;
    some.q = with_channel(tensors.q);
    some.k = with_channel(tensors.k);
    some.d_q = some.d_k = std::nullopt;
    return run(some);
  }
  if (request_.wanted.q && !sums_in_place(tensors)) allocate_sums();
  read_sinks(forward_, sinks_);
  rope_.read();
  gradient_->begin_run(tensors.d_buffers.first(mod_buffers()));
  is_f64_ ? run_typed<double>(tensors) : run_typed<float>(tensors);
  gradient_->end_run(tensors.d_buffers.first(mod_buffers()));
  if (wants_sinks()) write_sinks(tensors.d_buffers.back());
  for (std::size_t i = 0; i < runners_.size(); ++i)
    if (runners_[i].has_value() && runners_[i]->fault().before(faults_[i]))
      faults_[i] = runners_[i]->fault();
  formula::throw_first_fault(faults_);
}

template <class T>
void BackwardPlan::run_typed(const BackwardTensors& tensors) {
  const kernels::BackwardCall call = make_call(tensors);
  const std::int64_t tiles = first_tile_.back();
  std::fill(faults_.begin(), faults_.end(), kernels::TileFault());
  for (std::optional<kernels::GradientRunner>& runner : runners_) runner.reset();
  next_item_.store(0, std::memory_order_relaxed);
  has_large_.store(false, std::memory_order_relaxed);
  const auto for_tiles = [&](auto work) {
    const std::int64_t at_once = is_small_ ? std::max<std::int64_t>(tiles, 1) : kTilesAtOnce;
    run_parallel(*forward_.executor, ceil_div(tiles, at_once),
                 [&](std::size_t claim, std::size_t worker) {
                   const std::int64_t begin = static_cast<std::int64_t>(claim) * at_once;
                   const std::int64_t end = std::min(begin + at_once, tiles);
                   for (std::int64_t i = begin; i < end; ++i) work(tile_place(i), worker);
                 });
  };
  if (pages_.has_value()) pages_->begin_run(*forward_.executor, page_outputs(tensors));
  for_tiles([&](const TilePlace& place, std::size_t worker) {
    prepare<T>(call, tensors, place, worker);
  });
  if (has_large_.load(std::memory_order_relaxed)) {
    if (!large_rows_.has_value()) large_rows_.emplace(forward_);
    large_rows_->run(tensors.q, tensors.k, tensors.v);
    for_tiles([&](const TilePlace& place, std::size_t worker) {
      if (is_large_[tile_number(place)] != 0) correct_rows<T>(call, tensors, place, worker);
    });
  }
  // Items are claimed in ascending order, whatever the order of the executor.
  const std::size_t claims = is_small_ ? std::min<std::size_t>(items_.size(), 1) : items_.size();
  run_parallel(*forward_.executor, claims, [&](std::size_t, std::size_t worker) {
    do {
      const std::size_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
      if (item >= items_.size()) return;
      run_item<T>(call, tensors, item, worker);
    } while (is_small_);
  });
  if (request_.wanted.q && !sums_in_place(tensors))
    for_tiles([&](const TilePlace& place, std::size_t) { write_queries<T>(call, tensors, place); });
  if (pages_.has_value()) pages_->end_run(*forward_.executor, *table_, page_outputs(tensors));
}

// Whether rows can be walked again for their sums (large_rows.h): not where heads are wider than
// the kernels of the forward pass take.
bool BackwardPlan::may_correct(const BackwardTensors& tensors) const {
  return !forward_.weight_mod.has_value() && tensors.v.dim(3) > 0 &&
         std::max(forward_.head_dim, forward_.v_head_dim) <= kernels::kMostHeadDim;
}

// Computes lse and delta of a tile's rows, resets its turn and clears its sums.
template <class T>
void BackwardPlan::prepare(const kernels::BackwardCall& call, const BackwardTensors& tensors,
                           const TilePlace& place, std::size_t worker) {
  const std::size_t number = tile_number(place);
  prepare_rows<T>(call, tensors, place, nullptr, worker);
  const T* const lse = static_cast<const T*>(stats_.data()) + number * 3 * kQueryTile;
  is_large_[number] = may_correct(tensors) && std::any_of(lse, lse + kQueryTile, is_large<T>);
  if (is_large_[number] != 0) has_large_.store(true, std::memory_order_relaxed);
  turns_[number].reset();
  if (!request_.wanted.q) return;
  const kernels::BackwardTile tile = tile_of<T>(call, tensors, place);
  const std::size_t columns = kernels::whole_panels(static_cast<int>(forward_.head_dim));
  for (int i = 0; i < tile.at.queries; ++i)
    std::memset(static_cast<T*>(tile.d_q) + i * tile.d_q_step, 0, columns * sizeof(T));
}

// Prepares a tile with large rows again, now that their sums are known.
template <class T>
void BackwardPlan::correct_rows(const kernels::BackwardCall& call, const BackwardTensors& tensors,
                                const TilePlace& place, std::size_t worker) {
  const T* const lse = static_cast<const T*>(stats_.data()) + tile_number(place) * 3 * kQueryTile;
  const auto [batch, first] = forward_.queries->place(place.b);
  const std::int64_t row = large_rows_->row_number(batch, place.h, first + place.tile * kQueryTile);
  T corrections[kQueryTile];
  for (int i = 0; i < kQueryTile; ++i)
    corrections[i] =
        is_large(lse[i]) ? large_rows_->correction(call.forward, place.h, row + i, lse[i]) : T(1);
  prepare_rows<T>(call, tensors, place, corrections, worker);
}

template <class T>
void BackwardPlan::prepare_rows(const kernels::BackwardCall& call, const BackwardTensors& tensors,
                                const TilePlace& place, const T* corrections, std::size_t worker) {
  const std::size_t number = tile_number(place);
  const auto [batch, first] = forward_.queries->place(place.b);
  const std::int64_t row = first + place.tile * kQueryTile;
  const int queries = queries_of(place);
  const auto view = [&](const ConstTensorView& of) {
    return rows_view(of, offset_of(of.strides(), batch, place.h, row), queries);
  };
  kernels::RowInputs inputs{.lse = view(tensors.lse)};
  if (tensors.d_lse.has_value()) inputs.d_lse = view(*tensors.d_lse);
  if (tensors.d_out.has_value()) {
    inputs.out = view(tensors.out);
    inputs.d_out = view(*tensors.d_out);
  }
  T* const lse = static_cast<T*>(stats_.data()) + number * 3 * kQueryTile;
  kernels::RowNumbers<T> numbers{.lse = lse,
                                 .delta = lse + kQueryTile,
                                 .share = lse + 2 * kQueryTile,
                                 .corrections = corrections};
  kernels::prepare_rows<T>(call, inputs, place.h, numbers, static_cast<T*>(scratch(worker)));
  live_[number] = numbers.live;
  d_sinks_[number] = static_cast<double>(numbers.d_sink);
}

template <class T>
kernels::BackwardTile BackwardPlan::tile_of(const kernels::BackwardCall& call,
                                            const BackwardTensors& tensors,
                                            const TilePlace& place) {
  const std::size_t number = tile_number(place);
  const auto [batch, first] = forward_.queries->place(place.b);
  const std::int64_t in_sequence = place.tile * kQueryTile, row = first + in_sequence;
  kernels::BackwardTile tile{
      .at = {.b = place.b,
             .h = place.h,
             .q_idx = forward_.begin_of(place.b) + in_sequence,
             .q_offset = offset_of(tensors.q.strides(), batch, place.h, row),
             .queries = queries_of(place)},
      .lse = static_cast<const T*>(stats_.data()) + number * 3 * kQueryTile,
      .delta = static_cast<const T*>(stats_.data()) + (number * 3 + 1) * kQueryTile,
      .live = live_[number],
      .turn = &turns_[number]};
  if ((forward_.sinks.has_value() && !forward_.lse_with_sinks) || is_large_[number] != 0)
    tile.share = static_cast<const T*>(stats_.data()) + (number * 3 + 2) * kQueryTile;
  if (call.d_out != nullptr)
    tile.at.out_offset = offset_of(tensors.d_out->strides(), batch, place.h, row);
  if (visible_.has_value()) {
    const std::span<const kernels::LaneRuns> runs = visible_->tile(place.b, place.h, place.tile);
    tile.at.visible = runs.data();
    tile.at.visible_count = static_cast<int>(runs.size());
  }
  if (forward_.chosen != nullptr)
    tile.at.chosen = forward_.chosen->lists(place.b, place.h, in_sequence);
  if (!request_.wanted.q) return tile;
  if (sums_in_place(tensors)) {
    tile.d_q_step = tensors.d_q->strides()[2];
    tile.d_q = static_cast<T*>(tensors.d_q->data()) +
               offset_of(tensors.d_q->strides(), batch, place.h, row);
  } else {
    tile.d_q_step = kernels::whole_panels(static_cast<int>(forward_.head_dim));
    tile.d_q = static_cast<T*>(sums_.data()) +
               static_cast<std::int64_t>(number) * kQueryTile * tile.d_q_step;
  }
  return tile;
}

layout::KeyRange BackwardPlan::keys_of(const Item& item) const {
  const std::int64_t begin = item.chunk * chunk_keys_;
  return {begin, std::min(begin + chunk_keys_, forward_.layout->length(item.b))};
}

// The spans of an item's keys in these tensors; valid until the worker's next call.
std::span<const kernels::KeySpan> BackwardPlan::write_spans(const Item& item,
                                                            const ConstTensorView& k,
                                                            const ConstTensorView& v,
                                                            std::size_t worker) {
  const std::size_t most = forward_.layout->max_spans();
  const std::span<kernels::KeySpan> spans = std::span(spans_).subspan(worker * most, most);
  const Shape &ks = k.strides(), &vs = v.strides();
  const std::int64_t count = forward_.layout->write_spans(
      item.b, item.kv_head, keys_of(item), {ks[0], ks[1], ks[2], vs[0], vs[1], vs[2]}, spans);
  return spans.first(count);
}

PageGradients::Outputs BackwardPlan::page_outputs(const BackwardTensors& tensors) const {
  return {tensors.d_k ? &*tensors.d_k : nullptr, tensors.d_v ? &*tensors.d_v : nullptr};
}

// Stores the gradients of an item's keys and values by the layout, or adds them to sums of pages.
template <class T>
void BackwardPlan::write_keys(const BackwardTensors& tensors, const Item& item,
                              kernels::BackwardChunk<T>& chunk, std::size_t worker) {
  const ConstTensorView d_k = tensors.d_k ? *tensors.d_k : tensors.k;
  const ConstTensorView d_v = tensors.d_v ? *tensors.d_v : tensors.v;
  const std::span<const kernels::KeySpan> spans = write_spans(item, d_k, d_v, worker);
  const auto [begin, end] = keys_of(item);
  auto span = spans.begin();
  const auto write_rows = [&](std::int64_t key, std::int64_t until) {
    while (key < until) {
      while (span->end <= key) ++span;
      const std::int64_t stop = std::min(span->end, until), ahead = key - span->begin;
      chunk.write({static_cast<int>(key - begin), static_cast<int>(stop - key)},
                  span->key_offset + ahead * d_k.strides()[2],
                  span->value_offset + ahead * d_v.strides()[2]);
      key = stop;
    }
  };
  std::int64_t key = begin;
  if (pages_.has_value()) {
    for (const PageUse& use : pages_->uses(item.b, item.chunk)) {
      write_rows(key, begin + use.first);
      key = begin + use.first + use.count;
      if (use.sum < 0) continue;
      const PageGradients::Sums<T> sums = pages_->template sums<T>(use, item.kv_head);
      sums.turn->wait_for(use.turn);
      chunk.add_to({use.first, use.count}, sums.k, sums.v);
      sums.turn->pass(use.turn);
    }
  }
  write_rows(key, end);
}

template <class T>
void BackwardPlan::run_item(const kernels::BackwardCall& call, const BackwardTensors& tensors,
                            std::size_t number, std::size_t worker) {
  const Item& item = items_[number];
  const auto [begin, key_end] = keys_of(item);
  const auto count = static_cast<int>(key_end - begin);
  kernels::GradientRunner* const mod = runner(worker);
  kernels::BackwardChunk<T> chunk(call, write_spans(item, tensors.k, tensors.v, worker),
                                  {begin, count}, mod, scratch(worker));
  const std::int64_t group = forward_.group();
  const std::int64_t end = request_.shares_keys ? forward_.batch : item.b + 1;
  // Counts the heads of all items, in the order of the items.
  auto ordinal = static_cast<int>(static_cast<std::int64_t>(number) * (end - item.b) * group);
  for (std::int64_t b = item.b; b < end; ++b) {
    for (std::int64_t h = item.kv_head * group; h < (item.kv_head + 1) * group; ++h) {
      if (mod != nullptr)
        mod->begin_head({.ordinal = ordinal++,
                         .q_begin = forward_.begin_of(b),
                         .q_len = forward_.queries->length(b),
                         .kv_begin = begin,
                         .kv_len = count});
      const auto add = [&](std::int64_t at, std::int32_t turn) {
        kernels::BackwardTile tile = tile_of<T>(call, tensors, {b, h, at});
        tile.number = turn;
        chunk.add(tile);
      };
      if (chunk_tiles_.has_value()) {
        for (const ChunkTile& at : chunk_tiles_->of(b, h, item.chunk)) add(at.tile, at.turn);
      } else {
        for (std::int64_t at = q_tiles(b) - 1; at >= 0; --at) add(at, item.chunk);
      }
      if (mod != nullptr) mod->end_head();
    }
  }
  chunk.finish();
  write_keys<T>(tensors, item, chunk, worker);
  chunk.report(faults_[worker]);
}

// Batch entries and tiles ascending, in f64.
void BackwardPlan::write_sinks(const TensorView& to) const {
  Tensor sums({forward_.q_heads}, DType::f64);
  for (std::int64_t b = 0; b < forward_.batch; ++b)
    for (std::int64_t h = 0; h < forward_.q_heads; ++h)
      for (std::int64_t tile = 0; tile < q_tiles(b); ++tile)
        sums.data_as<double>()[h] += d_sinks_[static_cast<std::size_t>(tile_number({b, h, tile}))];
  write_elements(sums.data_as<double>(), to);
}

kernels::GradientRunner* BackwardPlan::runner(std::size_t worker) {
  if (gradient_->program() == nullptr) return nullptr;
  std::optional<kernels::GradientRunner>& made = runners_[worker];
  if (!made.has_value())
    made.emplace(*gradient_->program(), *table_, gradient_->targets(), gradient_->sizes(),
                 static_cast<char*>(scratch(worker)) + gradient_offset_);
  return &*made;
}

// Writes sums from scratch to their tensor; of a call with rope they are rotated back first.
template <class T>
void BackwardPlan::write_queries(const kernels::BackwardCall& call, const BackwardTensors& tensors,
                                 const TilePlace& place) {
  const kernels::BackwardTile tile = tile_of<T>(call, tensors, place);
  const auto [batch, first] = forward_.queries->place(place.b);
  if (call.forward.rope.half > 0)
    kernels::forward_functions<T>(*table_).rotate({.tables = &call.forward.rope,
                                                   .rows = static_cast<T*>(tile.d_q),
                                                   .step = tile.d_q_step,
                                                   .count = tile.at.queries,
                                                   .position = tile.at.q_idx,
                                                   .back = true});
  kernels::write_rows<T>(
      kernels::forward_functions<T>(*table_),
      {static_cast<const T*>(tile.d_q), tile.d_q_step, tile.at.queries, call.forward.dims},
      {tensors.d_q->data(),
       {.dtype = tensors.d_q->dtype(),
        .row_step = tensors.d_q->strides()[2],
        .column_step = tensors.d_q->strides()[3]}},
      offset_of(tensors.d_q->strides(), batch, place.h, first + place.tile * kQueryTile));
}

}  // namespace quire::plan

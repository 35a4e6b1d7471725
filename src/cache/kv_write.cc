// KVCache: writes the rows of new tokens to their pages. Cache layer.
#include <algorithm>
#include <cstring>

#include "cache/kv_cache_state.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "tensor/convert.h"

namespace quire {

using cache::Sequence;

namespace {

// Rows [tokens, kv_heads, dim], or with layers in front, for one step.
void check_rows(const char* where, const char* name, const ConstTensorView& rows,
                const Shape& wanted) {
  if (!is_floating(rows.dtype())) {
    fail(ErrorKind::type, where, "{} must be f32, f64, bf16 or f16; got {}", name,
         dtype_name(rows.dtype()));
  }
  if (rows.shape() != wanted) {
    fail(ErrorKind::value, where, "{} must have shape {}; got {}", name, to_string(wanted),
         to_string(rows.shape()));
  }
}

std::int64_t total_count(std::span<const NewTokens> step) {
  std::int64_t total = 0;
  for (const NewTokens& tokens : step) total += tokens.count;
  return total;
}

// Refuses tokens that are not there, or whose pages are not this sequence's to write.
void check_writable(const char* where, const KVCache::State& state, const NewTokens& tokens) {
  const Sequence& sequence = state.sequences[tokens.sequence.slot];
  if (tokens.count > sequence.length - sequence.begin) {
    fail(ErrorKind::value, where, "the sequence must have as many tokens as count; got {} and {}",
         sequence.length - sequence.begin, tokens.count);
  }
  const std::int64_t page_size = state.options.page_size, start = sequence.length - tokens.count;
  for (std::int64_t at = start; at < sequence.length; at += page_size - at % page_size) {
    const cache::Page& page = state.pool[sequence.pages[at / page_size]];
    // Rows that nobody has written yet are the same for all who share them.
    if (page.serial != 0 || (page.refs > 1 && start < sequence.written)) {
      fail(ErrorKind::value, where,
           "position {} is in a page that is shared or can be found by prefix; its rows were "
           "written before",
           at);
    }
  }
}

// Rows of consecutive tokens and one head, dim elements each; strides in elements.
struct HeadRows {
  const std::byte* from;
  DType dtype;
  std::int64_t n, dim, row_stride, stride;
};

void copy_rows(const HeadRows& rows, DType dtype, std::byte* to) noexcept {
  if (rows.dtype != dtype || (rows.dim > 1 && rows.stride != 1)) {
    copy_elements({rows.from, rows.dtype, {rows.n, rows.dim}, {rows.row_stride, rows.stride}},
                  dtype, to);
    return;
  }
  const std::int64_t size = dtype_size(dtype);
  for (std::int64_t row = 0; row < rows.n; ++row)
    std::memcpy(to + row * rows.dim * size, rows.from + row * rows.row_stride * size,
                rows.dim * size);
}

// rows: [tokens, kv_heads, dim] of the whole step.
void write_rows(const KVCache::State& state, Tensor& pages, std::span<const NewTokens> step,
                const ConstTensorView& rows) noexcept {
  const std::int64_t page_size = state.options.page_size, dim = rows.dim(2);
  const std::int64_t row_bytes = dim * static_cast<std::int64_t>(dtype_size(state.options.dtype));
  const std::int64_t size = dtype_size(rows.dtype());
  const auto* from = static_cast<const std::byte*>(rows.data());
  HeadRows run{from, rows.dtype(), 0, dim, rows.stride(0), rows.stride(2)};
  std::int64_t row = 0;
  for (const NewTokens& tokens : step) {
    const Sequence& sequence = state.sequences[tokens.sequence.slot];
    for (std::int64_t at = sequence.length - tokens.count; at < sequence.length;) {
      const std::int32_t page = sequence.pages[at / page_size];
      const std::int64_t slot = at % page_size;
      run.n = std::min(page_size - slot, sequence.length - at);
      for (std::int64_t head = 0; head < rows.dim(1); ++head) {
        run.from = from + (row * rows.stride(0) + head * rows.stride(1)) * size;
        copy_rows(run, state.options.dtype, cache::page_rows(pages, page, head) + slot * row_bytes);
      }
      at += run.n;
      row += run.n;
    }
  }
}

void mark(KVCache::State& state, std::span<const NewTokens> step) noexcept {
  for (const NewTokens& tokens : step) {
    Sequence& sequence = state.sequences[tokens.sequence.slot];
    // Rows before these may still be missing; then these alone make no prefix.
    if (sequence.length - tokens.count > sequence.written) continue;
    sequence.written = sequence.length;
    state.chain_pages(sequence);
  }
}

}  // namespace

void KVCache::write(std::int64_t layer, std::span<const NewTokens> step, const ConstTensorView& k,
                    const ConstTensorView& v) {
  const FloatEnv float_env;
  constexpr const char* kWhere = "KVCache::write";
  State& state = *state_;
  cache::check_layer(kWhere, state.options, layer);
  state.check_step(kWhere, step);
  for (const NewTokens& tokens : step) check_writable(kWhere, state, tokens);
  const std::int64_t total = total_count(step), heads = state.options.kv_heads;
  check_rows(kWhere, "k", k, {total, heads, state.options.head_dim});
  check_rows(kWhere, "v", v, {total, heads, state.options.v_head_dim});
  write_rows(state, state.k[layer], step, k);
  write_rows(state, state.v[layer], step, v);
  if (layer == state.options.layers - 1) mark(state, step);
}

void KVCache::append(std::span<const NewTokens> step, const ConstTensorView& k,
                     const ConstTensorView& v) {
  const FloatEnv float_env;
  constexpr const char* kWhere = "KVCache::append";
  State& state = *state_;
  state.check_step(kWhere, step);
  state.require_pages(kWhere, step);  // so the counts are sane
  const std::int64_t total = total_count(step), heads = state.options.kv_heads;
  check_rows(kWhere, "k", k, {state.options.layers, total, heads, state.options.head_dim});
  check_rows(kWhere, "v", v, {state.options.layers, total, heads, state.options.v_head_dim});
  append(step);
  for (std::int64_t layer = 0; layer < state.options.layers; ++layer) {
    write_rows(state, state.k[layer], step, k.select(0, layer));
    write_rows(state, state.v[layer], step, v.select(0, layer));
  }
  mark(state, step);
}

void KVCache::mark_written(std::span<const NewTokens> step) {
  state_->check_step("KVCache::mark_written", step);
  for (const NewTokens& tokens : step) check_writable("KVCache::mark_written", *state_, tokens);
  mark(*state_, step);
}

}  // namespace quire

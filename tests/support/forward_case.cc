// Random problems and their expected bits. Tests only.
#include "tests/support/forward_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "formula/compile/compile.h"
#include "formula/simplify/simplify.h"
#include "kernels/attention_order.h"
#include "kernels/decode/decode.h"
#include "kernels/dispatch.h"
#include "kernels/prefill/forward_functions.h"
#include "quire/evaluate.h"
#include "reference/dropout.h"

namespace quire::testing {
namespace {

using kernels::KeyRun;
using kernels::QueryRow;
using kernels::Vary;

double read_number(const char* at, DType dtype) {
  const auto as = [at]<class E>(E x) {
    std::memcpy(&x, at, sizeof(E));
    return x;
  };
  switch (dtype) {
    case DType::f32:
      return as(float{});
    case DType::f64:
      return as(double{});
    case DType::bf16:
      return static_cast<double>(static_cast<float>(as(BFloat16())));
    default:
      return static_cast<double>(static_cast<float>(as(Float16())));
  }
}

void write_number(char* at, DType dtype, double value) {
  const auto put = [at](auto x) { std::memcpy(at, &x, sizeof(x)); };
  switch (dtype) {
    case DType::f32:
      return put(static_cast<float>(value));
    case DType::f64:
      return put(value);
    case DType::bf16:
      return put(BFloat16(value));
    default:
      return put(Float16(value));
  }
}

std::int64_t size_of(DType dtype) { return static_cast<std::int64_t>(dtype_size(dtype)); }

bool same(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace

double ForwardCase::Block::read(std::int64_t row, int column_idx) const {
  return read_number(bytes.data() + (row * step + column_idx * column) * size_of(dtype), dtype);
}
void ForwardCase::Block::write(std::int64_t row, int column_idx, double value) {
  write_number(bytes.data() + (row * step + column_idx * column) * size_of(dtype), dtype, value);
}

// Ends with the last number of the last row.
std::unique_ptr<ForwardCase::Block> ForwardCase::make_block(DType dtype, std::int64_t rows,
                                                            int columns, int column_step, int gap,
                                                            double size) {
  auto block = std::make_unique<Block>();
  block->dtype = dtype;
  block->column = column_step;
  block->step = std::int64_t{columns} * column_step + gap;
  const std::int64_t numbers =
      rows == 0 ? 0 : (rows - 1) * block->step + std::int64_t{columns - 1} * column_step + 1;
  block->bytes.resize(static_cast<std::size_t>(numbers * size_of(dtype)));
  block->bytes.shrink_to_fit();
  std::normal_distribution<double> normal(0, size);
  for (std::int64_t i = 0; i < numbers; ++i)
    write_number(block->bytes.data() + i * size_of(dtype), dtype, normal(random_));
  return block;
}

ForwardCase::ForwardCase(const ForwardOptions& options, Isa isa)
    : options_(options), random_(options.seed) {
  call_.table = &kernels::table_for(isa);
  const int rows = options.heads * options.queries;
  call_.f64 = options.q == DType::f64 || options.k == DType::f64 || options.v == DType::f64;
  q_ = make_block(options.q, rows, options.dims, options.q_column, 0, options.spread);
  out_ = make_block(options.out, rows, options.value_dims, options.out_column, 3, 1);
  make_spans();
  const auto stats = static_cast<std::size_t>(rows) * (call_.f64 ? 8 : 4);
  lse_.resize(stats);
  max_.resize(stats);
  clear_outputs();
  call_.q = q_->bytes.data();
  call_.out = out_->bytes.data();
  call_.lse = lse_.data();
  call_.max_scores = max_.data();
  call_.q_rows = {options.q, q_->step, q_->column};
  call_.out_rows = {options.out, out_->step, out_->column};
  call_.dims = options.dims;
  call_.value_dims = options.value_dims;
  call_.scale = options.scale;
  call_.natural = options.score.has_value() || !kernels::is_scaled(options.scale);
  call_.pairs = options.pairs;
  call_.dropout = options.dropout;
  make_rows();
  compile_mods();
}

void ForwardCase::make_spans() {
  const std::int64_t length = options_.span == 0 ? options_.keys : options_.span;
  for (std::int64_t begin = 0; begin < options_.keys; begin += length) {
    const std::int64_t end = std::min(begin + length, options_.keys);
    spans_.push_back({begin, end, nullptr, nullptr});
  }
  // Made in another order than they are used, so that addresses go up and down.
  std::vector<std::size_t> order(spans_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random_);
  for (const std::size_t i : order) {
    Span& span = spans_[i];
    const std::int64_t rows = span.end - span.begin;
    span.keys = make_block(options_.k, rows, options_.dims, options_.k_column, options_.row_gap, 1);
    span.values =
        make_block(options_.v, rows, options_.value_dims, options_.v_column, options_.row_gap, 1);
  }
  if (spans_.empty()) return;
  call_.k = spans_[0].keys->bytes.data();
  call_.v = spans_[0].values->bytes.data();
  call_.k_rows = {options_.k, spans_[0].keys->step, spans_[0].keys->column};
  call_.v_rows = {options_.v, spans_[0].values->step, spans_[0].values->column};
  const auto offset = [](const Block& block, const void* from) {
    const auto difference =
        reinterpret_cast<std::intptr_t>(block.bytes.data()) - reinterpret_cast<std::intptr_t>(from);
    return difference / size_of(block.dtype);
  };
  for (const Span& span : spans_)
    key_spans_.push_back(
        {span.begin, span.end, offset(*span.keys, call_.k), offset(*span.values, call_.v)});
}

void ForwardCase::make_rows() {
  for (int q = 0; q < options_.queries; ++q) {
    for (int h = 0; h < options_.heads; ++h) {
      const auto i = static_cast<std::int64_t>(rows_.size());
      QueryRow row{.h = h,
                   .q_idx = options_.q_begin + q,
                   .q_offset = i * q_->step,
                   .out_offset = i * out_->step,
                   .stat_offset = i,
                   .visible = {nullptr, -1}};
      if (!options_.runs.empty()) {
        const std::vector<KeyRun>& runs = options_.runs[static_cast<std::size_t>(i)];
        row.visible = {runs.data(), static_cast<std::int64_t>(runs.size())};
      }
      rows_.push_back(row);
    }
  }
}

void ForwardCase::compile_mods() {
  const Precision precision = call_.f64 ? Precision::kF64 : Precision::kF32;
  formula::CompileOptions decode{
      .precision = precision,
      .extents = {{0, 0},
                  {0, options_.heads - 1},
                  {options_.q_begin, options_.q_begin + options_.queries - 1},
                  {0, std::max<std::int64_t>(options_.keys, 1) - 1}},
      .vary = {Vary::kConstant, Vary::kRowList, Vary::kRowList, Vary::kLaneRange},
      .max_rows = kernels::kManyDecodeRows,
      .groups = kernels::kTileKeys / kernels::kGroupLanes,
      .max_per_row = true};
  programs_.reserve(2);
  if (options_.score) {
    const Formula score = formula::simplify(options_.score->formula(), precision);
    programs_.push_back(formula::compile({.score_mod = &score}, decode));
    call_.decode.score = &programs_.back();
  }
  if (options_.mask) {
    const Formula mask = formula::simplify(options_.mask->formula(), precision);
    programs_.push_back(formula::compile({.mask_mod = &mask, .mask_only = true}, decode));
    call_.decode.mask = &programs_.back();
    mask_ = evaluate(*options_.mask, {1, options_.heads, options_.queries, options_.keys},
                     {.q_begin = options_.q_begin});
  }
}

kernels::KeySequence ForwardCase::sequence() const {
  return {key_spans_.data(), static_cast<std::int64_t>(key_spans_.size()), options_.keys};
}

const ForwardCase::Span& ForwardCase::span_of(std::int64_t key) const {
  return *std::partition_point(spans_.begin(), spans_.end(),
                               [&](const Span& span) { return span.end <= key; });
}

bool ForwardCase::visible(std::size_t row, std::int64_t key) const {
  if (options_.runs.empty()) return true;
  for (const KeyRun& run : options_.runs[row]) {
    if (key < run.begin || key >= run.end) continue;
    if (run.full) return true;
    const std::int64_t q = static_cast<std::int64_t>(row) / options_.heads,
                       h = static_cast<std::int64_t>(row) % options_.heads;
    return mask_.view().data_as<bool>()[(h * options_.queries + q) * options_.keys + key];
  }
  return false;
}

void ForwardCase::plant_key(std::int64_t key, double value) {
  const Span& span = span_of(key);
  for (int d = 0; d < options_.dims; ++d) span.keys->write(key - span.begin, d, value);
}
void ForwardCase::plant_value(std::int64_t key, double value) {
  const Span& span = span_of(key);
  for (int d = 0; d < options_.value_dims; ++d) span.values->write(key - span.begin, d, value);
}

void ForwardCase::clear_outputs() {
  std::fill(out_->bytes.begin(), out_->bytes.end(), char{0x5a});
  std::fill(lse_.begin(), lse_.end(), char{0x5a});
  std::fill(max_.begin(), max_.end(), char{0x5a});
}

template <class T>
RowOutput<T> ForwardCase::expected(std::size_t row) const {
  RowInput<T> input;
  const auto read_row = [](const Block& block, std::int64_t at, int columns, std::vector<T>& to) {
    to.resize(static_cast<std::size_t>(columns));
    for (int i = 0; i < columns; ++i)
      to[static_cast<std::size_t>(i)] = static_cast<T>(block.read(at, i));
    return to.data();
  };
  const auto at = static_cast<std::int64_t>(row);
  read_row(*q_, at, options_.dims, input.q);
  input.keys = options_.keys;
  input.value_dims = options_.value_dims;
  std::vector<T> key_row, value_row;
  input.key = [&](std::int64_t key) {
    const Span& span = span_of(key);
    return read_row(*span.keys, key - span.begin, options_.dims, key_row);
  };
  input.value = [&](std::int64_t key) {
    const Span& span = span_of(key);
    return read_row(*span.values, key - span.begin, options_.value_dims, value_row);
  };
  if (!options_.runs.empty()) input.visible = [&](std::int64_t key) { return visible(row, key); };
  if (options_.score) {
    input.mod = [&](std::vector<T>& scores) {
      Tensor all({1, options_.heads, 1, options_.keys}, dtype_of<T>);
      T* head = all.view().template data_as<T>() + at % options_.heads * options_.keys;
      std::copy(scores.begin(), scores.end(), head);
      const Tensor done =
          evaluate(*options_.score, all, {.q_begin = options_.q_begin + at / options_.heads});
      const T* from = done.view().template data_as<T>() + at % options_.heads * options_.keys;
      std::copy_n(from, options_.keys, scores.begin());
    };
  }
  std::vector<double> factors;
  if (options_.dropout.p > 0) {
    factors =
        reference::dropout_factors({options_.dropout.p, options_.dropout.seed},
                                   {rows_[row].b, rows_[row].h, rows_[row].q_idx}, options_.keys);
    input.kept = [&](std::int64_t key) {
      return static_cast<T>(factors[static_cast<std::size_t>(key)]);
    };
  }
  input.scale = options_.scale;
  input.pairs = options_.pairs;
  input.tiles = options_.pairs && call_.table->pairs->tiles != nullptr;
  return row_by_rules(input);
}

template <class T>
std::string ForwardCase::difference_in(std::size_t row) const {
  const RowOutput<T> want = expected<T>(row);
  const auto at = static_cast<std::int64_t>(row);
  for (int d = 0; d < options_.value_dims; ++d) {
    char narrowed[8] = {};
    write_number(narrowed, options_.out,
                 static_cast<double>(want.out[static_cast<std::size_t>(d)]));
    const double wanted = read_number(narrowed, options_.out), got = out_->read(at, d);
    if (!same(wanted, got))
      return fmt::format("row {} column {}: {:a}, by the rules {:a}", row, d, got, wanted);
  }
  const auto stat = [&](const std::vector<char>& from) {
    T x;
    std::memcpy(&x, from.data() + row * sizeof(T), sizeof(T));
    return static_cast<double>(x);
  };
  if (!same(stat(lse_), static_cast<double>(want.lse)))
    return fmt::format("row {} lse: {:a}, by the rules {:a}", row, stat(lse_),
                       static_cast<double>(want.lse));
  if (!same(stat(max_), static_cast<double>(want.max_score)))
    return fmt::format("row {} max score: {:a}, by the rules {:a}", row, stat(max_),
                       static_cast<double>(want.max_score));
  return "";
}

std::string ForwardCase::difference(std::size_t row) const {
  return call_.f64 ? difference_in<double>(row) : difference_in<float>(row);
}

std::string ForwardCase::first_difference() const {
  for (std::size_t row = 0; row < rows_.size(); ++row)
    if (const std::string text = difference(row); !text.empty()) return text;
  return "";
}

template RowOutput<float> ForwardCase::expected(std::size_t) const;
template RowOutput<double> ForwardCase::expected(std::size_t) const;

}  // namespace quire::testing

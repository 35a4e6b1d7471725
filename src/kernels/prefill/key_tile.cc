// Uses keys in place or copies them. Rows that lie far apart (heads inside positions) are copied:
// their addresses share few sets of the L1 cache, and every query tile of an item reads the copy.
// Kernels layer.
#include "kernels/prefill/key_tile.h"

#include <algorithm>
#include <cstring>

#include "kernels/coding/rotate.h"
#include "kernels/coding/tile_rules.h"
#include "kernels/prefill/pair_scope.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {
namespace {

// Rows of codes, from one of them on.
template <class T>
DecodeRowsArgs<T> coded_rows(const RowCoding& coding, const RowScales& scales, const RowsView& rows,
                             int64_t scale_offset) {
  const int size = scale_bytes(coding);
  return {.coding = coding,
          .codes = static_cast<const char*>(rows.data),
          .code_step = rows.row_step,
          .scales = static_cast<const char*>(scales.data) + scale_offset * size,
          .scale_step = scales.row_step * size,
          .rows = rows.rows,
          .columns = rows.columns};
}

// Scales of a tile, one for each row of codes; finding rules writes a few too many.
float* take_scales(const ForwardCall& call, const RowCoding& coding, ScratchLayout& layout) {
  return call.pairs && is_coded(coding) ? layout.take<float>(kTileKeys + 16) : nullptr;
}

// From row to row of values in scratch, or from column to column where tiles turn them.
ptrdiff_t values_step(const ForwardCall& call) {
  const int turned = call.pairs ? pair_functions(call).turned_step : 0;
  return turned != 0 ? turned : whole_panels(call.value_dims);
}

const char* row_address(const void* data, const ForwardTensor& tensor, int64_t offset) {
  return static_cast<const char*>(data) + offset * static_cast<int64_t>(dtype_size(tensor.dtype));
}

}  // namespace

const KeySpan& find_span(const KeySequence& keys, int64_t key) noexcept {
  return *std::upper_bound(keys.spans, keys.spans + keys.span_count, key,
                           [](int64_t at, const KeySpan& span) { return at < span.end; });
}

template <class T>
KeyTileLoader<T>::KeyTileLoader(const ForwardCall& call, const KeySequence& keys,
                                ScratchLayout& layout)
    : call_(call),
      sequence_(keys),
      key_step_(call.pairs ? row_pairs(call) : call.dims),
      value_step_(values_step(call)),
      value_columns_(whole_panels(call.value_dims)),
      keys_(layout.take<T>(kTileKeys * key_step_)),
      values_(layout.take<T>(
          static_cast<size_t>(kTileKeys * ptrdiff_t{tile_columns(call.value_dims)}))),
      half_values_(layout.take<uint16_t>(
          call.pairs ? static_cast<size_t>(kTileKeys * whole_panels(call.value_dims)) : 0)),
      key_scales_(take_scales(call, call.k_coding, layout)),
      value_scales_(take_scales(call, call.v_coding, layout)) {
  if (!call.integers) return;
  key_rules_ = take_rules(call.k_coding, call.dims, layout);
  value_rules_ = take_rules(call.v_coding, call.value_dims, layout);
  key_rules_.scales = key_scales_;
  value_rules_.scales = value_scales_;
}

template <class T>
bool KeyTileLoader<T>::keys_lie_well() const noexcept {
  const ForwardTensor& k = call_.k_rows;
  if (call_.rope.half > 0 || is_coded(call_.k_coding)) return false;
  if (k.column_step != 1 || k.row_step != call_.dims) return false;
  return call_.pairs ? call_.dims == 2 * key_step_ : k.dtype == dtype_of<T>;
}

template <class T>
bool KeyTileLoader<T>::values_lie_well() const noexcept {
  const ForwardTensor& v = call_.v_rows;
  return !call_.pairs && !is_coded(call_.v_coding) && v.dtype == dtype_of<T> &&
         v.column_step == 1 && v.row_step == call_.value_dims && call_.value_dims % kPanel == 0;
}

// Latent keys: one row serves as key and as value, in place or copied. Not for pairs, which
// interleave values differently, nor where whole panels of a value would reach beyond its key.
template <class T>
bool KeyTileLoader<T>::values_are_keys(const KeySpan& span) const noexcept {
  return call_.v_in_k && !call_.pairs && span.key_offset == span.value_offset &&
         whole_panels(call_.value_dims) <= call_.dims;
}

template <class T>
bool KeyTileLoader<T>::copies(int64_t key, int rows) const noexcept {
  const KeySpan& span = find_span(sequence_, key);
  return key + rows > span.end || !keys_lie_well() || !(values_are_keys(span) || values_lie_well());
}

template <class T>
KeyTile KeyTileLoader<T>::load(int64_t key, int rows, const bool* wanted,
                               bool with_values) noexcept {
  const KeySpan& span = find_span(sequence_, key);
  const bool in_place = wanted == nullptr && key + rows <= span.end;
  const bool keys_direct = in_place && keys_lie_well();
  const bool shared = with_values && values_are_keys(span);
  const bool values_direct = (in_place && values_lie_well()) || !with_values || shared;
  const bool paired_in_place =
      in_place && !values_direct && call_.pairs && !is_coded(call_.v_coding);
  if (paired_in_place) {
    const ForwardTensor& v = call_.v_rows;
    pair_values(
        {.data = row_address(call_.v, v, span.value_offset + (key - span.begin) * v.row_step),
         .dtype = v.dtype,
         .row_step = v.row_step,
         .column_step = v.column_step,
         .rows = rows,
         .columns = call_.value_dims});
  }
  const bool copies_values = !values_direct && !paired_in_place;
  if (!keys_direct || copies_values) copy(key, rows, wanted, !keys_direct, copies_values);
  for (int row = 0; call_.k_mixed > 1 && row < rows; ++row)
    rotate(keys_ + row * key_step_, call_.dims, call_.k_mixed);
  if (call_.rope.half > 0)
    forward_functions<T>(*call_.table)
        .rotate({.tables = &call_.rope,
                 .rows = keys_,
                 .step = key_step_,
                 .count = rows,
                 .position = key});
  KeyTile result{keys_, values_, key_step_, value_step_, key_scales_, value_scales_};
  if (keys_direct) {
    result.keys = row_address(call_.k, call_.k_rows,
                              span.key_offset + (key - span.begin) * call_.k_rows.row_step);
  }
  if (shared) {
    result.values = result.keys;
    result.value_step = result.key_step;
  } else if (values_direct && with_values) {
    result.values = row_address(call_.v, call_.v_rows,
                                span.value_offset + (key - span.begin) * call_.v_rows.row_step);
  }
  return result;
}

template <class T>
void KeyTileLoader<T>::copy(int64_t key, int rows, const bool* wanted, bool with_keys,
                            bool with_values) noexcept {
  for (int row = 0; row < rows;) {
    if (wanted != nullptr && !wanted[row]) {
      if (with_keys) std::memset(keys_ + row * key_step_, 0, key_step_ * sizeof(T));
      if (with_values && !call_.pairs)
        std::memset(values_ + row * value_step_, 0, value_step_ * sizeof(T));
      if (with_values && call_.pairs) {
        std::memset(half_values_ + ptrdiff_t{row} * call_.value_dims, 0,
                    static_cast<size_t>(call_.value_dims) * 2);
      }
      if (key_scales_ != nullptr) key_scales_[row] = 0;
      if (value_scales_ != nullptr) value_scales_[row] = 0;
      ++row;
      continue;
    }
    const KeySpan& span = find_span(sequence_, key + row);
    int end = row + 1;
    while (end < rows && key + end < span.end && (wanted == nullptr || wanted[end])) ++end;
    copy_run(span, key, row, end, with_keys, with_values);
    row = end;
  }
  if (with_values && call_.pairs) {
    pair_values({.data = half_values_,
                 .dtype = DType::bf16,
                 .row_step = call_.value_dims,
                 .rows = rows,
                 .columns = call_.value_dims});
  }
}

// Values of 16 bits to pairs of keys.
template <class T>
void KeyTileLoader<T>::pair_values(const RowsView& from) noexcept {
  pair_functions(call_).pair_values(from, reinterpret_cast<uint32_t*>(values_), value_step_,
                                    static_cast<int>(value_columns_));
}

// Rows [begin, end) of the tile, all in one span.
template <class T>
void KeyTileLoader<T>::copy_run(const KeySpan& span, int64_t key, int begin, int end,
                                bool with_keys, bool with_values) noexcept {
  const int64_t ahead = key + begin - span.begin;
  const auto view = [&](const void* data, const ForwardTensor& tensor, int64_t offset,
                        int columns) {
    return RowsView{.data = row_address(data, tensor, offset + ahead * tensor.row_step),
                    .dtype = tensor.dtype,
                    .row_step = tensor.row_step,
                    .column_step = tensor.column_step,
                    .rows = end - begin,
                    .columns = columns};
  };
  const RowsView keys = view(call_.k, call_.k_rows, span.key_offset, call_.dims);
  const RowsView values = view(call_.v, call_.v_rows, span.value_offset, call_.value_dims);
  const int64_t key_scale = span.key_scale_offset + ahead * call_.k_scales.row_step;
  const int64_t value_scale = span.value_scale_offset + ahead * call_.v_scales.row_step;
  if (call_.pairs) {
    if (with_keys)
      write_pairs(call_.k_coding, call_.k_scales, keys, key_scale,
                  reinterpret_cast<uint16_t*>(keys_) + ptrdiff_t{begin} * 2 * key_step_,
                  2 * key_step_, begin, key_scales_, key_rules_);
    if (with_values)
      write_pairs(call_.v_coding, call_.v_scales, values, value_scale,
                  half_values_ + ptrdiff_t{begin} * call_.value_dims, call_.value_dims, begin,
                  value_scales_, value_rules_);
    return;
  }
  if (with_keys)
    write_rows(call_.k_coding, call_.k_scales, keys, key_scale, keys_ + begin * key_step_,
               key_step_);
  if (with_values)
    write_rows(call_.v_coding, call_.v_scales, values, value_scale, values_ + begin * value_step_,
               value_step_);
}

// Copies rows in 16 bits; codes become their own numbers, with scales kept separately. Columns up
// to `step` are 0.
template <class T>
void KeyTileLoader<T>::write_pairs(const RowCoding& coding, const RowScales& scales,
                                   const RowsView& rows, int64_t scale_offset, uint16_t* to,
                                   ptrdiff_t step, int first, float* all_scales,
                                   const IntegerRules& rules) noexcept {
  if (!is_coded(coding)) return copy_bf16(rows, to, step);
  DecodeRowsArgs<uint16_t> args = coded_rows<uint16_t>(coding, scales, rows, scale_offset);
  args.out = to;
  args.out_step = step;
  args.out_columns = static_cast<int>(step);
  if (call_.integers && become_integers(coding))
    return write_integers(args, rules_from(rules, coding, first));
  pair_functions(call_).widen_codes(args);
  copy_scales(args.scales, args.scale_step, rows.rows, all_scales + first);
}

// Codes as integers that their scales make of them.
template <class T>
void KeyTileLoader<T>::write_integers(const DecodeRowsArgs<uint16_t>& args,
                                      const IntegerRules& rules) noexcept {
  const bool in_blocks = args.coding.in_blocks;
  call_.table->coding->find_integers({.coding = args.coding,
                                      .scales = in_blocks ? args.codes : args.scales,
                                      .scale_step = in_blocks ? args.code_step : args.scale_step,
                                      .rows = args.rows,
                                      .columns = args.columns,
                                      .to = rules});
  call_.table->coding->integer_rows({.coding = args.coding,
                                     .codes = args.codes,
                                     .code_step = args.code_step,
                                     .rows = args.rows,
                                     .columns = args.columns,
                                     .by = rules,
                                     .out = reinterpret_cast<int16_t*>(args.out),
                                     .out_step = args.out_step,
                                     .out_columns = args.out_columns});
}

// Copies rows in compute type, decoded if they are codes; columns up to `step` are 0.
template <class T>
void KeyTileLoader<T>::write_rows(const RowCoding& coding, const RowScales& scales,
                                  const RowsView& rows, int64_t scale_offset, T* to,
                                  ptrdiff_t step) noexcept {
  if (!is_coded(coding)) {
    forward_functions<T>(*call_.table).copy_rows({rows, to, step, static_cast<int>(step)});
    return;
  }
  DecodeRowsArgs<T> args = coded_rows<T>(coding, scales, rows, scale_offset);
  args.out = to;
  args.out_step = step;
  args.out_columns = static_cast<int>(step);
  decode_rows(*call_.table, args);
}

// Copies bits; the remaining columns become 0.
template <class T>
void KeyTileLoader<T>::copy_bf16(const RowsView& from, uint16_t* to, ptrdiff_t to_step) noexcept {
  const auto* row = static_cast<const uint16_t*>(from.data);
  for (int r = 0; r < from.rows; ++r, row += from.row_step, to += to_step) {
    if (from.column_step == 1)
      std::memcpy(to, row, static_cast<size_t>(from.columns) * 2);
    else
      for (int c = 0; c < from.columns; ++c) to[c] = row[c * from.column_step];
    for (ptrdiff_t c = from.columns; c < to_step; ++c) to[c] = 0;
  }
}

template class KeyTileLoader<float>;
template class KeyTileLoader<double>;

}  // namespace quire::kernels

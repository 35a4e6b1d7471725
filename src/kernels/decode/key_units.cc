// Converts spans to units. No SIMD. Kernels layer.
#include "kernels/decode/key_units.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/coding/rotate.h"
#include "kernels/coding/tile_rules.h"
#include "kernels/kernel_table.h"
#include "kernels/prefill/pair_scope.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {
namespace {

ptrdiff_t whole_lines(ptrdiff_t bytes) { return (bytes + 63) / 64 * 64; }

template <class E>
void copy_strided(const char* from, ptrdiff_t step, int count, char* to) {
  for (int i = 0; i < count; ++i, from += step, to += sizeof(E)) std::memcpy(to, from, sizeof(E));
}

}  // namespace

// Gallops in steps of 1, 2, 4, ... past the key, then searches the last step by halves.
const KeySpan& SpanCursor::search(int64_t key) noexcept {
  const KeySpan* const spans = keys_.spans;
  int64_t begin = 0, end = at_;
  if (key >= spans[at_].end) {
    int64_t step = 1;
    begin = at_ + 1;
    for (end = begin; end < keys_.span_count && key >= spans[end].end; step *= 2) {
      begin = end + 1;
      end += step;
    }
    end = std::min(end, keys_.span_count);
  }
  const KeySpan* found =
      std::upper_bound(spans + begin, spans + end, key,
                       [](int64_t wanted, const KeySpan& span) { return wanted < span.end; });
  at_ = found - spans;
  return *found;
}

namespace {

// Whether rows are codes that can be read in place: one byte each under a scale per key, in chains
// that are whole chunks of any ISA's loads.
bool are_direct(const ForwardCall& call, const RowCoding& coding, int columns) {
  const int chain = chain_dims(columns, false);
  return coding.codes == CodeType::kI8 && coding.group == 0 && !call.f64 && call.table != nullptr &&
         call.table->lanes > 1 && columns % 32 == 0 && chain % 32 == 0;
}

}  // namespace

bool fuses_rope(const ForwardCall& call) {
  return may_fuse_rope(call.rope, call.dims) && !is_coded(call.k_coding) && !call.f64 &&
         call.table != nullptr && call.table->lanes > 1;
}

template <class T>
DecodeKind unit_kind(const ForwardCall& call, bool values) {
  if (std::is_same_v<T, double>) return DecodeKind::kOwn;
  if (!values && call.rope.half > 0 && !fuses_rope(call)) return DecodeKind::kOwn;
  const RowCoding& coding = values ? call.v_coding : call.k_coding;
  if (call.integers && become_integers(coding)) return DecodeKind::kIntegerCodes;
  if (call.integers) return DecodeKind::kIntegers;
  if (is_coded(coding) && call.pairs) return DecodeKind::kCodePairs;
  if (is_coded(coding)) {
    const int columns = values ? call.value_dims : call.dims;
    return are_direct(call, coding, columns) ? DecodeKind::kI8 : DecodeKind::kOwn;
  }
  const DType dtype = (values ? call.v_rows : call.k_rows).dtype;
  if (dtype == DType::bf16 && call.pairs)
    return tiles_of(call) != nullptr ? DecodeKind::kTiles : DecodeKind::kPairs;
  if (dtype == DType::bf16) return DecodeKind::kBf16;
  return dtype == DType::f16 ? DecodeKind::kF16 : DecodeKind::kOwn;
}

template <class T>
UnitRows<T>::UnitRows(const ForwardCall& call, const KeySequence& keys, bool values,
                      ScratchLayout& layout)
    : call_(call),
      rows_(values ? call.v_rows : call.k_rows),
      coding_(values ? call.v_coding : call.k_coding),
      scales_(values ? call.v_scales : call.k_scales),
      data_(static_cast<const char*>(values ? call.v : call.k)),
      values_(values),
      kind_(unit_kind<T>(call, values)),
      rotated_(!values && call.rope.half > 0 && !fuses_rope(call)),
      is_direct_(kind_ == DecodeKind::kI8 || kind_ == DecodeKind::kCodePairs ||
                 kind_ == DecodeKind::kIntegers),
      is_made_(kind_ == DecodeKind::kIntegerCodes),
      converted_(rotated_ || (is_coded(coding_) && !call.pairs) ||
                 (std::is_same_v<T, double> && rows_.dtype != DType::f64)),
      side_by_side_(rows_.column_step == 1),
      columns_(values ? call.value_dims : call.dims),
      element_(is_coded(coding_) ? 1 : static_cast<ptrdiff_t>(dtype_size(rows_.dtype))),
      step_(rows_.row_step * element_),
      row_bytes_(is_coded(coding_) ? code_bytes(coding_, columns_) : columns_ * element_),
      lines_(static_cast<int>(whole_lines(row_bytes_) / 64)),
      slot_step_(whole_lines(columns() * (converted_ ? static_cast<ptrdiff_t>(sizeof(T))
                                          : is_made_ ? 2
                                                     : element_))),
      slots_(layout.take<char>(slot_bytes(call))),
      unit_scales_(layout.take<float>(is_direct_ || is_made_ ? kTileKeys + kUnitKeys : 0)),
      spans_(keys),
      ahead_spans_(keys) {
  if (!is_made_) return;
  rules_ = take_rules(coding_, columns_, layout);
  rules_.scales = unit_scales_;
}

template <class T>
int UnitRows<T>::columns() const {
  return is_made_ ? (columns_ + kDecodeColumns - 1) / kDecodeColumns * kDecodeColumns : columns_;
}

// Whether rope is fused is not known while scratch is counted.
template <class T>
size_t UnitRows<T>::slot_bytes(const ForwardCall& call) const {
  if (values_ || call.rope.half == 0) return slots() * kUnitKeys * slot_step_;
  return kSlots * kUnitKeys * whole_lines(columns_ * static_cast<ptrdiff_t>(sizeof(T)));
}

template <class T>
const char* UnitRows<T>::address(const KeySpan& span, int64_t key) const noexcept {
  const int64_t offset = values_ ? span.value_offset : span.key_offset;
  return data_ + (offset + (key - span.begin) * rows_.row_step) * element_;
}

template <class T>
void UnitRows<T>::place(int64_t key, int keys, PlacedUnits& units) noexcept {
  if (is_coded(coding_) && converted_) place_scales(key, keys, units.scales);
  for (int unit = 0, begin = 0; begin < keys;) {
    const KeySpan& span = spans_.find(key + begin);
    const int64_t there = side_by_side_ ? span.end - key : 0;
    const char* at = address(span, key + begin);
    // All units of this span, then one that leaves it.
    for (; begin < keys && std::min(begin + kUnitKeys, keys) <= there; begin += kUnitKeys) {
      units.at[unit++] = at;
      at += kUnitKeys * step_;
    }
    if (begin >= keys || (side_by_side_ && begin >= there)) continue;
    units.at[unit] = nullptr;
    place_rows(key + begin, std::min(kUnitKeys, keys - begin), units.rows + unit * kUnitKeys);
    begin += kUnitKeys;
    ++unit;
  }
}

// `keys` of a unit, from `key` on.
template <class T>
void UnitRows<T>::place_rows(int64_t key, int keys, const char** rows) noexcept {
  const char* row = nullptr;
  for (int i = 0; i < keys;) {
    const KeySpan& span = spans_.find(key + i);
    row = address(span, key + i);
    rows[i++] = row;
    const auto end = static_cast<int>(std::min<int64_t>(keys, span.end - key));
    for (; i < end; ++i) rows[i] = row += step_;
  }
  for (int i = keys; i < kUnitKeys; ++i) rows[i] = row;
}

// Rows step_ apart, in compute type.
template <class T>
void UnitRows<T>::convert(const char* from, int rows, char* to) const noexcept {
  const RowsView view{.data = from,
                      .dtype = rows_.dtype,
                      .row_step = rows_.row_step,
                      .column_step = rows_.column_step,
                      .rows = rows,
                      .columns = columns_};
  forward_functions<T>(*call_.table)
      .copy_rows({.from = view,
                  .out = reinterpret_cast<T*>(to),
                  .out_step = slot_step_ / static_cast<ptrdiff_t>(sizeof(T)),
                  .out_columns = columns_});
}

template <class T>
void UnitRows<T>::place_list(int64_t key, const int16_t* keys, int count, int place,
                             PlacedUnits& units) noexcept {
  const char** const rows = units.rows + place;
  const char** const scales = units.scales + place;
  const bool has_scales = is_coded(coding_);
  const KeySpan& of_first = spans_.find(key + keys[0]);
  const bool lie_together = !has_scales && key + keys[count - 1] < of_first.end;
  const char* const at = address(of_first, key);
  for (int i = 0; lie_together && i < count; ++i) rows[i] = at + keys[i] * step_;
  for (int i = 0; !lie_together && i < count; ++i) {
    const KeySpan& span = spans_.find(key + keys[i]);
    rows[i] = address(span, key + keys[i]);
    if (!has_scales) continue;
    const int64_t offset = values_ ? span.value_scale_offset : span.key_scale_offset;
    scales[i] = static_cast<const char*>(scales_.data) +
                (offset + (key + keys[i] - span.begin) * scales_.row_step) * scale_bytes(coding_);
  }
  for (; (place + count) % kUnitKeys != 0; ++count) {
    rows[count] = rows[count - 1];
    if (has_scales) scales[count] = scales[count - 1];
  }
  for (int i = 0; is_direct_ && i < count; ++i) std::memcpy(unit_scales_ + place + i, scales[i], 4);
  std::fill(units.at + place / kUnitKeys, units.at + (place + count) / kUnitKeys, nullptr);
}

template <class T>
void UnitRows<T>::prefetch(int64_t key) noexcept {
  const char* const at = address(ahead_spans_.find(key), key);
  const int lines = rows_.column_step == 1 ? lines_ : 1;
  for (int line = 0; line < lines; ++line) __builtin_prefetch(at + line * 64, 0, 2);
  // A row that begins within a line ends in one more.
  if (lines > 1) __builtin_prefetch(at + row_bytes_ - 1, 0, 2);
}

template <class T>
void UnitRows<T>::place_scales(int64_t key, int keys, const char** scales) noexcept {
  const ptrdiff_t size = scale_bytes(coding_);
  for (int i = 0; i < keys;) {
    const KeySpan& span = spans_.find(key + i);
    const int64_t offset = values_ ? span.value_scale_offset : span.key_scale_offset;
    const auto* const data = static_cast<const char*>(scales_.data);
    const char* at = data + (offset + (key + i - span.begin) * scales_.row_step) * size;
    const auto end = static_cast<int>(std::min<int64_t>(keys, span.end - key));
    for (; i < end; ++i, at += scales_.row_step * size) scales[i] = at;
  }
  // Padding rows get the scale of the last key.
  for (int i = keys; i % kUnitKeys != 0; ++i) scales[i] = scales[keys - 1];
}

template <class T>
const float* UnitRows<T>::load_scales(int64_t key, int keys) noexcept {
  if (!is_direct_ && !is_made_) return nullptr;
  if (is_made_) {
    find_integers(key, keys);
    std::fill(unit_scales_ + keys, unit_scales_ + kTileKeys, 0.0f);
    return unit_scales_;
  }
  for (int i = 0; i < keys;) {
    const KeySpan& span = spans_.find(key + i);
    const int64_t offset = values_ ? span.value_scale_offset : span.key_scale_offset;
    const auto* const from = static_cast<const char*>(scales_.data) +
                             (offset + (key + i - span.begin) * scales_.row_step) * 4;
    const auto end = static_cast<int>(std::min<int64_t>(keys, span.end - key));
    copy_scales(from, scales_.row_step * 4, end - i, unit_scales_ + i);
    i = end;
  }
  std::fill(unit_scales_ + keys, unit_scales_ + kTileKeys, 0.0f);
  return unit_scales_;
}

template <class T>
void UnitRows<T>::prefetch_scales(int64_t key, int keys) noexcept {
  if (!is_coded(coding_) || coding_.in_blocks || scales_.row_step == 0) return;
  const ptrdiff_t size = scale_bytes(coding_), step = scales_.row_step * size;
  for (int i = 0; i < keys;) {
    const KeySpan& span = ahead_spans_.find(key + i);
    const int64_t offset = values_ ? span.value_scale_offset : span.key_scale_offset;
    const char* const from = static_cast<const char*>(scales_.data) + offset * size;
    const auto end = static_cast<int>(std::min<int64_t>(keys, span.end - key));
    const char* const first = from + (key + i - span.begin) * step;
    const char* const last = from + (key + end - span.begin) * step;
    for (const char* line = first; line < last; line += 64) __builtin_prefetch(line, 0, 2);
    __builtin_prefetch(last - 1, 0, 2);
    i = end;
  }
}

// The rules of the keys of a tile, span by span.
template <class T>
void UnitRows<T>::find_integers(int64_t key, int keys) noexcept {
  for (int i = 0; i < keys;) {
    const KeySpan& span = spans_.find(key + i);
    const auto end = static_cast<int>(std::min<int64_t>(keys, span.end - key));
    FindIntegersArgs args{.coding = coding_,
                          .rows = end - i,
                          .columns = columns_,
                          .to = rules_from(rules_, coding_, i)};
    if (coding_.in_blocks) {
      args.scales = address(span, key + i);
      args.scale_step = step_;
    } else {
      const int64_t offset = values_ ? span.value_scale_offset : span.key_scale_offset;
      args.scale_step = scales_.row_step * scale_bytes(coding_);
      args.scales = static_cast<const char*>(scales_.data) + offset * scale_bytes(coding_) +
                    (key + i - span.begin) * args.scale_step;
    }
    call_.table->coding->find_integers(args);
    i = end;
  }
}

// Rows of a unit as integers; those that are not wanted are zeros and not read.
template <class T>
void UnitRows<T>::gather_integers(const PlacedUnits& units, uint32_t wanted, const DecodeUnit& unit,
                                  char* to) const noexcept {
  const char* const found = units.at[unit.place];
  const int first = unit.place * kUnitKeys;
  const auto write = [&](const char* from, int row, int count) {
    char* const out = to + row * slot_step_;
    call_.table->coding->integer_rows({.coding = coding_,
                                       .codes = from,
                                       .code_step = step_,
                                       .rows = count,
                                       .columns = columns_,
                                       .by = rules_from(rules_, coding_, first + row),
                                       .out = reinterpret_cast<int16_t*>(out),
                                       .out_step = slot_step_ / 2,
                                       .out_columns = columns()});
  };
  if (found != nullptr && wanted == kAllKeys) return write(found, 0, kUnitKeys);
  for (int i = 0; i < kUnitKeys; ++i) {
    if ((wanted >> i & 1) == 0)
      std::memset(to + i * slot_step_, 0, slot_step_);
    else
      write(found == nullptr ? units.rows[first + i] : found + i * step_, i, 1);
  }
}

template <class T>
void UnitRows<T>::decode(const char* from, const char* scale, int rows, char* to) const noexcept {
  decode_rows<T>(*call_.table, {.coding = coding_,
                                .codes = from,
                                .code_step = step_,
                                .scales = scale,
                                .scale_step = scales_.row_step * scale_bytes(coding_),
                                .rows = rows,
                                .columns = columns_,
                                .out = reinterpret_cast<T*>(to),
                                .out_step = slot_step_ / static_cast<ptrdiff_t>(sizeof(T))});
}

template <class T>
void UnitRows<T>::copy_row(const char* from, char* to) const noexcept {
  if (side_by_side_ && !converted_) {
    std::memcpy(to, from, columns_ * element_);
  } else if (converted_) {
    convert(from, 1, to);
  } else if (element_ == 2) {
    copy_strided<uint16_t>(from, rows_.column_step * 2, columns_, to);
  } else if (element_ == 4) {
    copy_strided<uint32_t>(from, rows_.column_step * 4, columns_, to);
  } else {
    copy_strided<uint64_t>(from, rows_.column_step * 8, columns_, to);
  }
}

template <class T>
bool UnitRows<T>::find(const PlacedUnits& units, uint32_t wanted, DecodeUnit& unit) const noexcept {
  if (converted_ && !is_direct_) return false;
  // Rows that end within a vector are gathered, and so is all of them where there are no vectors.
  if (is_made_ && (call_.table->lanes == 1 || columns_ % kDecodeColumns != 0)) return false;
  unit.at = units.at[unit.place];
  unit.begin = 0;
  unit.end = kUnitKeys;
  if (wanted != kAllKeys) {
    // All keys of a unit must be readable, since its lanes are loaded together; values only must
    // have no gaps, and pairs no missing half.
    unit.begin = std::countr_zero(wanted);
    unit.end = std::bit_width(wanted);
    if (!values_ || wanted >> unit.begin != (1u << (unit.end - unit.begin)) - 1) return false;
    if (call_.pairs && (unit.begin % 2 != 0 || unit.end % 2 != 0)) return false;
  }
  if (is_direct_ || is_made_) unit.scales = unit_scales_ + unit.place * kUnitKeys;
  if (unit.at != nullptr) return true;
  if (!side_by_side_) return false;
  unit.rows = units.rows + unit.place * kUnitKeys;
  unit.at = unit.rows[0];
  return true;
}

template <class T>
void UnitRows<T>::gather(const PlacedUnits& units, uint32_t wanted, int slot, int64_t first,
                         DecodeUnit& unit) noexcept {
  char* to = slots_ + slot * kUnitKeys * slot_step_;
  const char* const found = units.at[unit.place];
  const char* const* const rows = units.rows + unit.place * kUnitKeys;
  const char* const* const scales = units.scales + unit.place * kUnitKeys;
  unit.at = to;
  unit.begin = 0;
  unit.end = kUnitKeys;
  if (is_direct_ || is_made_) unit.scales = unit_scales_ + unit.place * kUnitKeys;
  if (is_made_) return gather_integers(units, wanted, unit, to);
  const bool is_decoded = is_coded(coding_) && converted_ && found != nullptr && wanted == kAllKeys;
  if (is_decoded) decode(found, scales[0], kUnitKeys, to);  // all in one span
  // All rows of a plain unit, a step apart.
  const char* const first_row = found == nullptr ? rows[0] : found;
  bool together = converted_ && !is_coded(coding_) && wanted == kAllKeys;
  for (int i = 1; together && found == nullptr && i < kUnitKeys; ++i)
    together = rows[i] - rows[0] == i * step_;
  if (together && rotated_ && rows_.column_step == 1) {
    forward_functions<T>(*call_.table)
        .rotate({.tables = &call_.rope,
                 .rows = reinterpret_cast<T*>(to),
                 .step = slot_step_ / static_cast<ptrdiff_t>(sizeof(T)),
                 .count = kUnitKeys,
                 .position = first + unit.place * kUnitKeys,
                 .from = first_row,
                 .dtype = rows_.dtype,
                 .from_step = rows_.row_step,
                 .columns = columns_});
    return;
  }
  if (together) convert(first_row, kUnitKeys, to);
  for (int i = 0; i < kUnitKeys && !together && !is_decoded; ++i, to += slot_step_) {
    const char* const from = found == nullptr ? rows[i] : found + i * step_;
    if ((wanted >> i & 1) == 0)
      std::memset(to, 0, slot_step_);
    else if (is_coded(coding_) && converted_)
      decode(from, scales[i], 1, to);
    else
      copy_row(from, to);
  }
  if (!rotated_) return;
  const int begin = std::countr_zero(wanted), end = std::bit_width(wanted);
  auto* const slots = reinterpret_cast<T*>(slots_ + slot * kUnitKeys * slot_step_);
  const ptrdiff_t step = slot_step_ / static_cast<ptrdiff_t>(sizeof(T));
  for (int i = begin; i < end; ++i) rotate(slots + i * step, columns_, call_.k_mixed);
  forward_functions<T>(*call_.table)
      .rotate({.tables = &call_.rope,
               .rows = slots + begin * step,
               .step = step,
               .count = end - begin,
               .position = first + unit.place * kUnitKeys + begin});
}

template DecodeKind unit_kind<float>(const ForwardCall&, bool);
template DecodeKind unit_kind<double>(const ForwardCall&, bool);
template class UnitRows<float>;
template class UnitRows<double>;

}  // namespace quire::kernels

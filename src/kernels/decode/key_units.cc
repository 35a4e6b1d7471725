// Spans to units. No SIMD. Kernels layer.
#include "kernels/decode/key_units.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/kernel_table.h"
#include "kernels/typed_functions.h"

namespace quire::kernels {
namespace {

constexpr uint32_t kAllKeys = (1u << kUnitKeys) - 1;

ptrdiff_t whole_lines(ptrdiff_t bytes) { return (bytes + 63) / 64 * 64; }

template <class E>
void copy_strided(const char* from, ptrdiff_t step, int count, char* to) {
  for (int i = 0; i < count; ++i, from += step, to += sizeof(E)) std::memcpy(to, from, sizeof(E));
}

}  // namespace

// Steps of 1, 2, 4, ... ahead until the key is behind, then halves of what is between.
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

template <class T>
DecodeKind unit_kind(const ForwardCall& call, bool values) {
  if (std::is_same_v<T, double> || (!values && call.rope.half > 0)) return DecodeKind::kOwn;
  const DType dtype = (values ? call.v_rows : call.k_rows).dtype;
  if (dtype == DType::bf16) return call.pairs ? DecodeKind::kPairs : DecodeKind::kBf16;
  return dtype == DType::f16 ? DecodeKind::kF16 : DecodeKind::kOwn;
}

template <class T>
UnitRows<T>::UnitRows(const ForwardCall& call, const KeySequence& keys, bool values,
                      ScratchLayout& layout)
    : call_(call),
      rows_(values ? call.v_rows : call.k_rows),
      data_(static_cast<const char*>(values ? call.v : call.k)),
      values_(values),
      rotated_(!values && call.rope.half > 0),
      converted_(rotated_ || (std::is_same_v<T, double> && rows_.dtype != DType::f64)),
      side_by_side_(rows_.column_step == 1 && !converted_),
      kind_(unit_kind<T>(call, values)),
      columns_(values ? call.value_dims : call.dims),
      element_(static_cast<ptrdiff_t>(dtype_size(rows_.dtype))),
      step_(rows_.row_step * element_),
      lines_(static_cast<int>(whole_lines(columns_ * element_) / 64)),
      slot_step_(
          whole_lines(columns_ * (converted_ ? static_cast<ptrdiff_t>(sizeof(T)) : element_))),
      slots_(layout.take<char>(static_cast<size_t>(kSlots * kUnitKeys * slot_step_))),
      spans_(keys) {}

template <class T>
const char* UnitRows<T>::address(const KeySpan& span, int64_t key) const noexcept {
  const int64_t offset = values_ ? span.value_offset : span.key_offset;
  return data_ + (offset + (key - span.begin) * rows_.row_step) * element_;
}

template <class T>
void UnitRows<T>::place(int64_t key, int keys, PlacedUnits& units) noexcept {
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
void UnitRows<T>::copy_row(const char* from, char* to) const noexcept {
  if (side_by_side_) {
    std::memcpy(to, from, static_cast<size_t>(columns_ * element_));
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
  unit.at = units.at[unit.place];
  unit.begin = 0;
  unit.end = kUnitKeys;
  if (wanted != kAllKeys) {
    // Keys must all be there, since the lanes of a unit are loaded together; values only must have
    // no holes, and pairs no halves.
    unit.begin = std::countr_zero(wanted);
    unit.end = std::bit_width(wanted);
    if (!values_ || wanted >> unit.begin != (1u << (unit.end - unit.begin)) - 1) return false;
    if (kind_ == DecodeKind::kPairs && (unit.begin % 2 != 0 || unit.end % 2 != 0)) return false;
  }
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
  unit.at = to;
  unit.begin = 0;
  unit.end = kUnitKeys;
  bool together = converted_ && wanted == kAllKeys && found == nullptr;
  for (int i = 1; together && i < kUnitKeys; ++i) together = rows[i] - rows[0] == i * step_;
  if (together && rotated_ && rows_.column_step == 1) {
    forward_functions<T>(*call_.table)
        .rotate({.tables = &call_.rope,
                 .rows = reinterpret_cast<T*>(to),
                 .step = slot_step_ / static_cast<ptrdiff_t>(sizeof(T)),
                 .count = kUnitKeys,
                 .position = first + unit.place * kUnitKeys,
                 .from = rows[0],
                 .dtype = rows_.dtype,
                 .from_step = rows_.row_step,
                 .columns = columns_});
    return;
  }
  if (together) convert(rows[0], kUnitKeys, to);
  for (int i = 0; i < kUnitKeys && !together; ++i, to += slot_step_) {
    if ((wanted >> i & 1) == 0)
      std::memset(to, 0, static_cast<size_t>(slot_step_));
    else
      copy_row(found == nullptr ? rows[i] : found + i * step_, to);
  }
  if (!rotated_) return;
  const int begin = std::countr_zero(wanted), end = std::bit_width(wanted);
  auto* const slots = reinterpret_cast<T*>(slots_ + slot * kUnitKeys * slot_step_);
  const ptrdiff_t step = slot_step_ / static_cast<ptrdiff_t>(sizeof(T));
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

// Spans to units. Kernels layer; no SIMD.
#include "kernels/key_units.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/kernel_table.h"

namespace quire::kernels {
namespace {

constexpr uint32_t kAllKeys = (1u << kUnitKeys) - 1;

ptrdiff_t whole_lines(ptrdiff_t bytes) { return (bytes + 63) / 64 * 64; }

template <class E>
void copy_strided(const char* from, ptrdiff_t step, int count, char* to) {
  for (int i = 0; i < count; ++i, from += step, to += sizeof(E)) std::memcpy(to, from, sizeof(E));
}

}  // namespace

template <class T>
DecodeKind unit_kind(const ForwardCall& call, bool values) {
  if (std::is_same_v<T, double>) return DecodeKind::kOwn;
  const DType dtype = (values ? call.v_rows : call.k_rows).dtype;
  if (dtype == DType::bf16) return call.pairs ? DecodeKind::kPairs : DecodeKind::kBf16;
  return dtype == DType::f16 ? DecodeKind::kF16 : DecodeKind::kOwn;
}

template <class T>
UnitRows<T>::UnitRows(const ForwardCall& call, const KeySequence& keys, bool values,
                      ScratchLayout& layout)
    : call_(call),
      sequence_(keys),
      rows_(values ? call.v_rows : call.k_rows),
      data_(static_cast<const char*>(values ? call.v : call.k)),
      values_(values),
      converted_(std::is_same_v<T, double> && rows_.dtype != DType::f64),
      kind_(unit_kind<T>(call, values)),
      columns_(values ? call.value_dims : call.dims),
      element_(static_cast<ptrdiff_t>(dtype_size(rows_.dtype))),
      step_(rows_.row_step * element_),
      lines_(static_cast<int>(whole_lines(columns_ * element_) / 64)),
      slot_step_(
          whole_lines(columns_ * (converted_ ? static_cast<ptrdiff_t>(sizeof(T)) : element_))),
      slots_(layout.take<char>(static_cast<size_t>(kSlots * kUnitKeys * slot_step_))) {}

template <class T>
const KeySpan& UnitRows<T>::span_of(int64_t key) noexcept {
  const KeySpan* spans = sequence_.spans;
  if (key >= spans[span_].begin) {
    if (key < spans[span_].end) return spans[span_];
    if (span_ + 1 < sequence_.span_count && key < spans[span_ + 1].end &&
        key >= spans[span_ + 1].begin)
      return spans[++span_];
  }
  const KeySpan* found =
      std::upper_bound(spans, spans + sequence_.span_count, key,
                       [](int64_t at, const KeySpan& span) { return at < span.end; });
  span_ = found - spans;
  return *found;
}

template <class T>
const char* UnitRows<T>::address(const KeySpan& span, int64_t key) const noexcept {
  const int64_t offset = values_ ? span.value_offset : span.key_offset;
  return data_ + (offset + (key - span.begin) * rows_.row_step) * element_;
}

template <class T>
void UnitRows<T>::place(int64_t key, int keys, PlacedUnits& units) noexcept {
  const bool side_by_side = rows_.column_step == 1 && !converted_;
  for (int unit = 0, begin = 0; begin < keys;) {
    const KeySpan& span = span_of(key + begin);
    const char* at = side_by_side ? address(span, key + begin) : nullptr;
    // All units of this span, then one that leaves it.
    const int64_t there = span.end - key;
    for (; begin < keys && std::min(begin + kUnitKeys, keys) <= there; begin += kUnitKeys) {
      units.at[unit++] = at;
      if (side_by_side) at += kUnitKeys * step_;
    }
    if (begin >= keys || begin >= there) continue;
    units.at[unit++] = nullptr;
    begin += kUnitKeys;
  }
}

template <class T>
void UnitRows<T>::copy_row(const char* from, char* to) const noexcept {
  if (converted_) {
    if constexpr (std::is_same_v<T, double>) {
      const RowsView row{.data = from,
                         .dtype = rows_.dtype,
                         .column_step = rows_.column_step,
                         .rows = 1,
                         .columns = columns_};
      call_.table->forward_f64->copy_rows({.from = row,
                                           .out = reinterpret_cast<double*>(to),
                                           .out_step = columns_,
                                           .out_columns = columns_});
    }
  } else if (rows_.column_step == 1) {
    std::memcpy(to, from, static_cast<size_t>(columns_ * element_));
  } else if (element_ == 2) {
    copy_strided<uint16_t>(from, rows_.column_step * 2, columns_, to);
  } else if (element_ == 4) {
    copy_strided<uint32_t>(from, rows_.column_step * 4, columns_, to);
  } else {
    copy_strided<uint64_t>(from, rows_.column_step * 8, columns_, to);
  }
}

template <class T>
bool UnitRows<T>::find(const PlacedUnits& units, int64_t key, uint32_t wanted,
                       DecodeUnit& unit) noexcept {
  unit.at = units.at[unit.place];
  unit.begin = 0;
  unit.end = kUnitKeys;
  if (wanted == kAllKeys && unit.at != nullptr) return true;
  // Keys must all be there, since the lanes of a unit are loaded together; values only must have no
  // holes, and pairs no halves.
  unit.begin = std::countr_zero(wanted);
  unit.end = std::bit_width(wanted);
  if (!values_ || wanted >> unit.begin != (1u << (unit.end - unit.begin)) - 1) return false;
  if (kind_ == DecodeKind::kPairs && (unit.begin % 2 != 0 || unit.end % 2 != 0)) return false;
  if (unit.at != nullptr) return true;
  if (rows_.column_step != 1 || converted_) return false;
  const KeySpan& span = span_of(key + unit.begin);
  if (key + unit.end > span.end) return false;
  unit.at = address(span, key + unit.begin) - unit.begin * step_;
  return true;
}

template <class T>
void UnitRows<T>::prefetch(int64_t key, int keys) noexcept {
  const int64_t found = span_;
  for (int i = 0; i < keys; ++i) {
    const char* const row = address(span_of(key + i), key + i);
    if (rows_.column_step != 1) {
      __builtin_prefetch(row, 0, 2);
      continue;
    }
    for (int line = 0; line < lines_; ++line) __builtin_prefetch(row + 64 * line, 0, 2);
  }
  span_ = found;
}

template <class T>
void UnitRows<T>::gather(int64_t key, uint32_t wanted, int slot, DecodeUnit& unit) noexcept {
  char* to = slots_ + slot * kUnitKeys * slot_step_;
  unit.at = to;
  unit.begin = 0;
  unit.end = kUnitKeys;
  for (int i = 0; i < kUnitKeys; ++i, to += slot_step_) {
    if (wanted >> i & 1)
      copy_row(address(span_of(key + i), key + i), to);
    else
      std::memset(to, 0, static_cast<size_t>(slot_step_));
  }
}

template DecodeKind unit_kind<float>(const ForwardCall&, bool);
template DecodeKind unit_kind<double>(const ForwardCall&, bool);
template class UnitRows<float>;
template class UnitRows<double>;

}  // namespace quire::kernels

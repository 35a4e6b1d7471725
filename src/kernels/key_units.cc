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
UnitAhead UnitRows<T>::ahead(int64_t key, int count) noexcept {
  const KeySpan& span = span_of(key);
  if (key + count > span.end || rows_.column_step != 1) return {};
  const ptrdiff_t bytes = columns_ * element_;
  return {address(span, key), step_, static_cast<int>(whole_lines(bytes) / 64)};
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
bool UnitRows<T>::find(int64_t key, int count, uint32_t wanted, DecodeUnit& unit) noexcept {
  if (rows_.column_step != 1 || converted_) return false;
  // Keys must all be there, since the lanes of a unit are loaded together; values only must have no
  // holes, and pairs no halves.
  const int begin = std::countr_zero(wanted), end = std::bit_width(wanted);
  if (!values_ && (wanted != kAllKeys || count != kUnitKeys)) return false;
  if (values_ && wanted >> begin != (1u << (end - begin)) - 1) return false;
  if (values_ && kind_ == DecodeKind::kPairs && (begin % 2 != 0 || end % 2 != 0)) return false;
  const KeySpan& span = span_of(key + begin);
  if (key + end > span.end) return false;
  unit.at = address(span, key + begin) - begin * step_;
  unit.begin = begin;
  unit.end = end;
  return true;
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

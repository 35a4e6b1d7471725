// Reading captured buffers in tile programs: at an offset per element, at affine offsets, and sums
// over trailing axes. Offsets were proved or clamped into the buffer for every lane that exists;
// lanes beyond a tile's edge read nothing and give 0. bf16 and f16 widen, f64 is rounded to the
// program's float. Kernels layer.
#pragma once
#include "kernels/float16-inl.h"
#include "kernels/fma-inl.h"
#include "kernels/tile/tile_int-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Element of a buffer of E at an offset. A bool is read as the byte it is: any other than 0 is
// true.
template <class T, class E>
HWY_INLINE T element(const void* data, int64_t offset) {
  if constexpr (std::is_same_v<E, bool>)
    return static_cast<const uint8_t*>(data)[offset] != 0 ? T{1} : T{0};
  else
    return widened<T>(static_cast<const E*>(data)[offset]);
}

// Elements that are loaded as they are stored, in 32 bits.
template <class T, class E>
inline constexpr bool kIsPlain =
    std::is_same_v<T, E> && (std::is_same_v<T, float> || std::is_same_v<T, int32_t>);

// 16 offsets of one panel to 16 elements.
template <class T, class E, class Offset>
HWY_INLINE void gather_panel(const void* data, const Offset* offsets, size_t valid,
                             T (&result)[kPanelLanes]) {
  if constexpr (kIsPlain<T, E> && std::is_same_v<Offset, int32_t>) {
    if (HWY_LIKELY(valid == kPanelLanes)) {
      const hn::Rebind<T, F32> d;
      QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v) hn::StoreU(
          hn::GatherIndex(d, static_cast<const T*>(data), hn::LoadU(kI32, offsets + v * kLanes)), d,
          result + v * kLanes);
      return;
    }
  }
  for (size_t j = 0; j < kPanelLanes; ++j)
    result[j] = j < valid ? element<T, E>(data, offsets[j]) : T{0};
}

template <class T, class E, class Offset>
HWY_INLINE void gather_rows(const TileArgs& args, const void* data) {
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next()) {
      T result[kPanelLanes];
      gather_panel<T, E>(data, reinterpret_cast<const Offset*>(at.a), valid_lanes(args, panel, r),
                         result);
      store_panel(at.out, result);
    }
  }
}

// One row of lanes at start, start + step, ...
template <class T, class E>
HWY_INLINE void strided_panel(const void* data, int64_t start, int64_t step, size_t valid,
                              T (&result)[kPanelLanes]) {
  if (HWY_LIKELY(valid == kPanelLanes) && step == 1) {
    for (size_t j = 0; j < kPanelLanes; ++j)
      result[j] = element<T, E>(data, start + static_cast<int64_t>(j));
    return;
  }
  for (size_t j = 0; j < kPanelLanes; ++j)
    result[j] = j < valid ? element<T, E>(data, start + static_cast<int64_t>(j) * step) : T{0};
}

// Sixteen rows of a large buffer are sixteen streams, more than the hardware follows. 64 columns
// ahead is in the next chunk of rows: with this prefetch a bias[q_idx, kv_idx] costs 20 % of
// attention, without it 33 %.
constexpr ptrdiff_t kAheadColumns = 64;

// Rows in fours and full panels only, where the *rows* are contiguous in memory: bias[q_idx,
// kv_idx] with queries across the lanes. 32 bits are moved, whatever they mean. Returns how many
// rows it did.
template <class T, class E>
HWY_INLINE int64_t transposed_rows([[maybe_unused]] const E* from,
                                   [[maybe_unused]] const TileArgs& args,
                                   [[maybe_unused]] const PanelCursor& at,
                                   [[maybe_unused]] size_t valid) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kIsPlain<T, E>)
    if (args.row_step == 1 && valid == kPanelLanes)
      return transpose_columns(reinterpret_cast<const float*>(from), args.lane_step, at.rows,
                               at.out, at.out_row, kAheadColumns);
#endif
  return 0;
}

template <class T, class E>
HWY_INLINE void strided_rows(const TileArgs& args, const void* data) {
  const int64_t base = *reinterpret_cast<const int64_t*>(args.a) + args.first;
  for (int panel = 0; panel < args.panels; ++panel) {
    const int64_t first = base + panel * kPanelLanes * args.lane_step;
    PanelCursor at(args, panel);
    int64_t r = 0;
    if constexpr (kIsPlain<T, E>) {
      const size_t valid = args.valid_step == 0 ? valid_lanes(args, panel, 0) : 0;
      r = transposed_rows<T>(static_cast<const E*>(data) + first, args, at, valid);
      at.out += r * at.out_row;
    }
    for (; r < at.rows; ++r, at.out += at.out_row) {
      T result[kPanelLanes];
      strided_panel<T, E>(data, first + r * args.row_step, args.lane_step,
                          valid_lanes(args, panel, r), result);
      store_panel(at.out, result);
    }
  }
}

// Gather and strided: `Rows` is one of the two above, as a template over the element type.
template <class T, class Offset>
struct Gather {
  template <class E>
  static HWY_INLINE void rows(const TileArgs& args, const void* data) {
    gather_rows<T, E, Offset>(args, data);
  }
};
template <class T>
struct Strided {
  template <class E>
  static HWY_INLINE void rows(const TileArgs& args, const void* data) {
    strided_rows<T, E>(args, data);
  }
};

template <class Rows>
void load_float(const TileArgs& args) noexcept {
  const TileBuffer& buffer = args.buffers[args.instruction->buffer];
  switch (buffer.dtype) {
    case DType::f32:
      return Rows::template rows<float>(args, buffer.data);
    case DType::f64:
      return Rows::template rows<double>(args, buffer.data);
    case DType::bf16:
      return Rows::template rows<Bf16Bits>(args, buffer.data);
    case DType::f16:
      return Rows::template rows<F16Bits>(args, buffer.data);
    default:
      return;
  }
}
template <class Rows>
void load_int(const TileArgs& args) noexcept {
  const TileBuffer& buffer = args.buffers[args.instruction->buffer];
  switch (buffer.dtype) {
    case DType::i8:
      return Rows::template rows<int8_t>(args, buffer.data);
    case DType::u8:
      return Rows::template rows<uint8_t>(args, buffer.data);
    case DType::i16:
      return Rows::template rows<int16_t>(args, buffer.data);
    case DType::i32:
      return Rows::template rows<int32_t>(args, buffer.data);
    case DType::i64:
      return Rows::template rows<int64_t>(args, buffer.data);
    case DType::boolean:
      return Rows::template rows<bool>(args, buffer.data);
    default:
      return;
  }
}

template <class T>
inline T any_element(const TileBuffer& buffer, int64_t offset) {
  switch (buffer.dtype) {
    case DType::f32:
      return element<T, float>(buffer.data, offset);
    case DType::f64:
      return element<T, double>(buffer.data, offset);
    case DType::bf16:
      return element<T, Bf16Bits>(buffer.data, offset);
    case DType::f16:
      return element<T, F16Bits>(buffer.data, offset);
    case DType::i8:
      return element<T, int8_t>(buffer.data, offset);
    case DType::u8:
      return element<T, uint8_t>(buffer.data, offset);
    case DType::i16:
      return element<T, int16_t>(buffer.data, offset);
    case DType::i32:
      return element<T, int32_t>(buffer.data, offset);
    case DType::i64:
      return element<T, int64_t>(buffer.data, offset);
    case DType::boolean:
      return element<T, bool>(buffer.data, offset);
  }
  return T{0};
}

HWY_INLINE int64_t trailing_offset(const TileBuffer& buffer, int64_t i) {
  return buffer.trailing_offsets == nullptr ? i * buffer.trailing_step : buffer.trailing_offsets[i];
}

// The chains of sum and dot: 16 of them, one per lane, trailing index ascending, each from 0.
HWY_INLINE void chain_step(float (&acc)[kPanelLanes], const float (&a)[kPanelLanes],
                           const float (&b)[kPanelLanes]) {
  QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v) {
    const size_t i = v * kLanes;
    hn::StoreU(fma(hn::LoadU(kF32, a + i), hn::LoadU(kF32, b + i), hn::LoadU(kF32, acc + i)), kF32,
               acc + i);
  }
}
HWY_INLINE void chain_step(double (&acc)[kPanelLanes], const double (&a)[kPanelLanes],
                           const double (&b)[kPanelLanes]) {
  for (size_t j = 0; j < kPanelLanes; ++j) acc[j] = std::fma(a[j], b[j], acc[j]);
}
HWY_INLINE void chain_step(int64_t (&acc)[kPanelLanes], const int64_t (&a)[kPanelLanes],
                           const int64_t (&b)[kPanelLanes]) {
  for (size_t j = 0; j < kPanelLanes; ++j)
    acc[j] = IntAdd::apply(acc[j], IntMul::apply(a[j], b[j]));
}

template <class T, class A>
HWY_NOINLINE void trailing_elements(const TileBuffer& buffer, const char* offsets, int64_t i,
                                    size_t valid, T (&to)[kPanelLanes]) {
  const int64_t at = trailing_offset(buffer, i);
  for (size_t j = 0; j < kPanelLanes; ++j)
    to[j] = j < valid ? any_element<T>(buffer, A::template lane<int64_t>(offsets, j) + at) : T{0};
}

// a: offsets of the first buffer; b: of the second (dot only). A sum is a dot with ones: fma(x, 1,
// acc) is acc + x.
template <class T, class A, class B, bool kDot>
void trailing_chain(const TileArgs& args) noexcept {
  const TileBuffer& first = args.buffers[args.instruction->buffer];
  const TileBuffer& second =
      args.buffers[kDot ? args.instruction->other_buffer : args.instruction->buffer];
  for (int panel = 0; panel < args.panels; ++panel) {
    PanelCursor at(args, panel);
    for (int64_t r = 0; r < at.rows; ++r, at.next()) {
      const size_t valid = valid_lanes(args, panel, r);
      T acc[kPanelLanes] = {}, x[kPanelLanes], y[kPanelLanes];
      for (T& one : y) one = T{1};
      for (int64_t i = 0; i < first.trailing_count; ++i) {
        trailing_elements<T, A>(first, at.a, i, valid, x);
        if constexpr (kDot) trailing_elements<T, B>(second, at.b, i, valid, y);
        chain_step(acc, x, y);
      }
      store_panel(at.out, acc);
    }
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

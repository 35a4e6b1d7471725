// dot(a[.., lane], b[.., row]) in tile programs: a product of two small matrices. The lanes' rows
// are transposed once per call, then each row of the tile is one chain per lane, several rows at a
// time. The chains are those of trailing_chain (tile_load-inl.h), to the bit. f32 only. Kernels
// layer.
#pragma once
#include "kernels/tile/tile_load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

constexpr int64_t kDotBlock = 64;  // trailing elements at a time: 4 KiB of lanes
// 8 chains a lane hide the latency of an fma where a panel is one vector, 4 where it is two.
constexpr int64_t kDotRows = kPanelVectors == 1 ? 8 : kPanelVectors == 2 ? 4 : 1;

// Which side of the dot lies where. Offsets are int64.
struct DotSide {
  const TileBuffer& buffer;
  const char* offsets;
  ptrdiff_t step;  // to the next row's offset
};

HWY_INLINE bool lies_together(const TileBuffer& buffer) {
  return buffer.dtype == DType::f32 && buffer.trailing_offsets == nullptr &&
         buffer.trailing_step == 1;
}

// Elements [first, first + count) from an offset on: in place, or copied to `room`.
HWY_INLINE const float* dot_elements(const TileBuffer& buffer, int64_t offset, int64_t first,
                                     int64_t count, float* room) {
  if (lies_together(buffer)) return static_cast<const float*>(buffer.data) + offset + first;
  for (int64_t i = 0; i < count; ++i)
    room[i] = any_element<float>(buffer, offset + trailing_offset(buffer, first + i));
  return room;
}

// A block of the lanes of a panel, transposed: [element][lane].
HWY_NOINLINE void turn_lanes(const DotSide& side, size_t valid, int64_t first, int64_t count,
                             float (&lanes)[kDotBlock][kPanelLanes]) {
  float room[kDotBlock];
  for (size_t j = 0; j < kPanelLanes; ++j) {
    if (j >= valid) {
      for (int64_t i = 0; i < count; ++i) lanes[i][j] = 0;
      continue;
    }
    const int64_t offset = reinterpret_cast<const int64_t*>(side.offsets)[j];
    const float* from = dot_elements(side.buffer, offset, first, count, room);
    for (int64_t i = 0; i < count; ++i) lanes[i][j] = from[i];
  }
}

// R rows of one panel over a block: chains begin at 0 or go on from what the block before stored.
template <int64_t R>
HWY_INLINE void dot_rows(const float (&lanes)[kDotBlock][kPanelLanes],
                         const float* const (&rows)[R], int64_t count, char* out, ptrdiff_t out_row,
                         bool begins) {
  V acc[R][kPanelVectors];
  QUIRE_UNROLL for (int64_t r = 0; r < R; ++r)
      QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v) acc[r][v] =
          begins ? hn::Zero(kF32)
                 : hn::LoadU(kF32, reinterpret_cast<const float*>(out + r * out_row) + v * kLanes);
  for (int64_t i = 0; i < count; ++i) {
    QUIRE_UNROLL for (int64_t r = 0; r < R; ++r) {
      const V y = hn::Set(kF32, rows[r][i]);
      QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v) acc[r][v] =
          fma(hn::LoadU(kF32, lanes[i] + v * kLanes), y, acc[r][v]);
    }
  }
  QUIRE_UNROLL for (int64_t r = 0; r < R; ++r)
      QUIRE_UNROLL for (size_t v = 0; v < kPanelVectors; ++v)
          hn::StoreU(acc[r][v], kF32, reinterpret_cast<float*>(out + r * out_row) + v * kLanes);
}

template <int64_t R>
HWY_INLINE void dot_block(const DotSide& side, const float (&lanes)[kDotBlock][kPanelLanes],
                          int64_t row, int64_t first, int64_t count, char* out, ptrdiff_t out_row) {
  float room[R][kDotBlock];
  const float* rows[R];
  for (int64_t r = 0; r < R; ++r) {
    const int64_t offset = *reinterpret_cast<const int64_t*>(side.offsets + (row + r) * side.step);
    rows[r] = dot_elements(side.buffer, offset, first, count, room[r]);
  }
  dot_rows<R>(lanes, rows, count, out + row * out_row, out_row, first == 0);
}

// `by_lane` has one offset per lane, the same for all rows, `by_row` one per row.
HWY_NOINLINE void lane_row_dot(const TileArgs& args, const DotSide& by_lane,
                               const DotSide& by_row) {
  const int64_t elements = by_lane.buffer.trailing_count;
  for (int panel = 0; panel < args.panels; ++panel) {
    const DotSide lanes_side{by_lane.buffer,
                             by_lane.offsets + panel * kPanelLanes * ptrdiff_t{sizeof(int64_t)}, 0};
    char* const out = args.out + panel * args.out_panel;
    float lanes[kDotBlock][kPanelLanes];
    for (int64_t first = 0; first < elements || first == 0; first += kDotBlock) {
      const int64_t count = HWY_MIN(kDotBlock, elements - first);
      turn_lanes(lanes_side, valid_lanes(args, panel, 0), first, count, lanes);
      int64_t row = 0;
      for (; row + kDotRows <= args.rows; row += kDotRows)
        dot_block<kDotRows>(by_row, lanes, row, first, count, out, args.out_row);
      for (; row < args.rows; ++row)
        dot_block<1>(by_row, lanes, row, first, count, out, args.out_row);
    }
  }
}

// kDotF of f32, where one side may be one number per row.
template <class A, class B>
void float_dot(const TileArgs& args) noexcept {
  const TileBuffer& first = args.buffers[args.instruction->buffer];
  const TileBuffer& second = args.buffers[args.instruction->other_buffer];
  if (args.valid_step == 0) {
    if (std::is_same_v<B, PerRow> && args.a_row == 0)
      return lane_row_dot(args, {first, args.a, 0}, {second, args.b, args.b_row});
    if (std::is_same_v<A, PerRow> && args.b_row == 0)
      return lane_row_dot(args, {second, args.b, 0}, {first, args.a, args.a_row});
  }
  trailing_chain<float, A, B, true>(args);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

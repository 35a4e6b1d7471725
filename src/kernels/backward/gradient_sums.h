// The arithmetic of private sums: contributions d_modified * factor of a block of a tile added to
// what its pattern keeps. Plain loops over panels of 16 lanes, which the compiler vectorises (sums
// of lanes: a primitive of the ISA); each sum has one order, whatever the ISA. Kernels layer.
#pragma once
#include <cstdint>

#include "kernels/backward/functions.h"
#include "kernels/backward/gradient_memory.h"
#include "kernels/tile/tile_runner.h"

namespace quire::kernels {

/// What the loops need of a tile.
struct GradientTile {
  const TileRunner& runner;
  const GradientSite& site;
  int lanes = 0;               // that exist
  int64_t query = 0, key = 0;  // of lane 0 and row 0, counted from the head's first
};

template <class T>
void add_lanes(const GradientTile& tile, const GradientBlock& block,
               const BackwardFunctions<T>& functions, T* sums) noexcept;  // [64]
template <class T>
void add_rows(const GradientTile& tile, const GradientBlock& block, T* sums) noexcept;  // [key][16]
template <class T>
void add_diagonals(const GradientTile& tile, const GradientBlock& block,
                   const SiteSums& sums) noexcept;
/// Adds directly to the gradient, at affine offsets.
template <class T>
void add_direct(const GradientTile& tile, const GradientBlock& block, T* gradient) noexcept;
/// Adds to a private copy, at an index per element; a dot's other side is read from `other`, which
/// is null for sums and loads.
template <class T>
void add_gathered(const GradientTile& tile, const GradientBlock& block, const TargetCopy& to,
                  const TileBuffer* other) noexcept;
/// d_modified * factor of whole rows, [panel][max_rows][16] with panels `panel_step` apart; panels
/// outside the block are 0.
template <class T>
void store_weights(const GradientTile& tile, const GradientBlock& block, T* weights,
                   int64_t panel_step) noexcept;

/// The element of a captured buffer at an offset.
template <class T>
T buffer_element(const TileBuffer& buffer, int64_t offset) noexcept;
/// Offset of element `t` under an index.
inline int64_t trailing_offset_of(const TileBuffer& buffer, int64_t t) noexcept {
  return buffer.trailing_offsets == nullptr ? t * buffer.trailing_step : buffer.trailing_offsets[t];
}

/// An index or offset at (row, lane).
inline int64_t integer_at(const TileOperand& operand, const char* row, int lane) noexcept {
  const int place = operand.broadcast ? 0 : lane;
  return operand.type == TileType::kInt32 ? reinterpret_cast<const int32_t*>(row)[place]
                                          : reinterpret_cast<const int64_t*>(row)[place];
}

}  // namespace quire::kernels

// Gradients of the two sides of dot(a[.., q_idx], b[.., kv_idx]): products of the tile's
// contributions with the other side's rows, by the primitives of attention. Kernels layer.
#pragma once
#include <cstdint>

#include "kernels/backward/gradient_sums.h"
#include "kernels/prefill/forward_functions.h"

namespace quire::kernels {

/// `width` elements of a buffer, from an offset on, in compute type.
template <class T>
OtherRow load_other_row(const TileBuffer& buffer, int64_t offset, int64_t width, T* to) noexcept;

/// Patterns kDotLane and kDotRow.
template <class T>
void add_products(const GradientTile& tile, const GradientBlock& block, const SiteSums& sums,
                  const GradientMemory& memory, const ForwardFunctions<T>& functions) noexcept;

}  // namespace quire::kernels

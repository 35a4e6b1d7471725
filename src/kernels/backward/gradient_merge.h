// Moves the private sums of one head of an item to the gradients: they are cleared when the head
// begins and added in a fixed order when its turn comes. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/backward/gradient_memory.h"
#include "kernels/backward/gradient_program.h"

namespace quire::kernels {

/// What one head of an item covers: which numbers its private sums are for.
struct GradientHead {
  int ordinal = 0;
  int64_t q_begin = 0, q_len = 0;    // q_idx of the tiles to come; they begin at q_begin + 64 i
  int64_t kv_begin = 0, kv_len = 0;  // kv_idx likewise; tiles begin anywhere
};

/// Clears only the sums that the head can touch, which may be far fewer than the longest head has.
/// `bytes`: size of a number.
void clear_sums(const GradientSite& site, const SiteSums& sums, const GradientHead& head,
                size_t bytes) noexcept;

/// A site's sums and where they go.
template <class T>
struct SiteMerge {
  const GradientSite& site;
  const SiteSums& sums;
  const TileBuffer* other;  // a dot's other side; null: not a dot
  T* gradient;
};

/// Destroys the sums.
template <class T>
void merge_sums(const SiteMerge<T>& merge, const GradientHead& head) noexcept;

/// Adds a private copy of a gradient, if there is one, and leaves it 0.
template <class T>
void merge_copy(const TargetCopy& copy, int64_t elements, T* gradient) noexcept;

}  // namespace quire::kernels

// Random captured buffers for random formulas: the shapes that mods really read (one slope per
// head, a document id per position, a table of biases, rotary halves) and arbitrary ones.
// Deterministic from the generator's state. Tests only.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "quire/buffer.h"

namespace quire::testing {

/// The ranges of a formula's index arguments: 0 <= b < extents.b and so on.
struct Extents {
  std::int64_t b = 2, h = 3, q = 70, kv = 300;
};

/// A number in 0..n-1. (Not std::uniform_int_distribution, whose numbers differ between standard
/// libraries.)
inline std::int64_t below(std::mt19937_64& random, std::int64_t n) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
}
/// True in `percent` of 100 cases.
inline bool chance(std::mt19937_64& random, int percent) { return below(random, 100) < percent; }

struct RandomBufferOptions {
  Extents extents = {};
  bool floats = true;           // buffers of floats too
  bool wants_gradient = false;  // all float buffers do
  std::vector<Tensor>* memory =
      nullptr;  // if given: some are odd strided views, borrowed from tensors put here
};

/// `count` buffers with data and different names, of any dtype, of rank 0 to 3. Integers lie in
/// -kv..kv, floats in -4..4.
std::vector<Buffer> random_buffers(std::mt19937_64& random, int count,
                                   const RandomBufferOptions& options);

/// The smallest and largest element of a buffer of integers or bools; 0 and 0 if it is empty.
struct IntRange {
  std::int64_t low, high;
};
IntRange element_range(const Buffer& buffer);

}  // namespace quire::testing

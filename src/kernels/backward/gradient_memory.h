// GradientMemory: the private sums of one thread of the backward pass: their addresses in its
// scratch and their sizes, by pattern. Holds no arithmetic. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/backward/gradient_program.h"
#include "kernels/scratch_layout.h"
#include "kernels/tile/tile_runner.h"

namespace quire::kernels {

inline constexpr int64_t round_to_16(int64_t n) { return (n + 15) / 16 * 16; }

/// Elements of a private copy that are merged or skipped together.
inline constexpr int64_t kTouchedLine = 64;
/// A gather into a few elements hits the same one again and again; neighbouring lanes then add to
/// different copies, so that no addition waits for the one before. 4 copies up to 4,096 elements.
inline constexpr int64_t kCopiesLimit = 4096;
constexpr int gather_copies(int64_t elements) { return elements <= kCopiesLimit ? 4 : 1; }

/// A row of the other side of a product.
enum class OtherRow : uint8_t {
  kMissing,  // not brought in yet
  kFinite,
  kWild,  // holds inf or NaN: must not be multiplied by the weight 0 of what does not see it
};

/// The sums of one site, of compute type T, and the index each of them belongs to (-1: none yet).
///   kUniform   sums[64 lanes]
///   kLane      sums[query]
///   kRow       sums[key][16]: partial, by lane % 16
///   kDiagonal  sums[16][pitch]: query - key + first_diagonal of keys with key % 16 = s lies at
///              [s][that + s], so that the vectors of all rows begin at multiples of 16
///   kDotLane   sums[query][columns], kDotRow: sums[key][columns]
/// Queries and keys are counted from the head's first.
struct SiteSums {
  void* sums = nullptr;
  int64_t count = 0;  // elements of `sums`
  int64_t* index = nullptr;
  int64_t* other = nullptr;  // dot: the other side's offset
  int64_t entries = 0;       // of both
  int64_t pitch = 0;
  int64_t first_diagonal = 0;
  int64_t columns = 0;  // products: width rounded up to 16
  void* others =
      nullptr;  // products: the other side's rows in compute type, [key or lane][columns]
  OtherRow* other_rows = nullptr;  // what is known of each
  int64_t other_count = 0;
};

/// The private copy of a gradient, if a site gathers into it.
struct TargetCopy {
  void* copy = nullptr;  // [copies][elements rounded up to lines]
  int64_t step = 0;      // between copies
  int copies = 0;
  uint8_t* touched = nullptr;  // a byte per line
  int64_t lines = 0;
};

/// Part of a tile, and d_modified in it.
struct GradientBlock {
  ScoreTile d_modified;
  int row_begin = 0, row_end = 0, panel_begin = 0, panel_end = 0;
};

struct GradientMemory {
  void* tile_scratch;
  void* max;              // [64]
  SiteSums* sites;        // one per site
  TargetCopy* targets;    // one per target
  void* weights;          // products: d_modified * factor, [panel][row][16]
  int64_t weights_panel;  // elements between panels
  void* turned;           // of 16 rows, transposed: [64 lanes][16 rows]
  bool* passed;           // per query turn

  GradientMemory(const GradientProgram& program, const GradientSizes& sizes, ScratchLayout& layout);
};

}  // namespace quire::kernels

// What a tile program's runner hands to the function behind an opcode, and the tables of those
// functions. Plain structs: every ISA's object includes this. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/tile/tile_program.h"

namespace quire::kernels {

/// One call: `rows` function rows of `panels` x 16 lanes. Rows are tile rows, or groups of 64
/// elements of a value that is not per element. All steps in bytes.
struct TileArgs {
  const char* a;
  const char* b;
  const char* c;
  char* out;
  ptrdiff_t a_row, b_row, c_row, out_row;
  ptrdiff_t a_panel, b_panel, out_panel;
  int64_t rows;
  int panels;
  // Lanes of function row r that exist: valid - r * valid_step. Only functions that read memory by
  // index need it.
  int64_t valid, valid_step;
  // kIota, kStrided: number or offset at (row, lane) = *a + first + row * row_step + lane *
  // lane_step.
  int64_t first, row_step, lane_step;
  // The last instruction: which elements are visible (a word a row), and the running maximum of 64
  // lanes.
  const char* visible;
  ptrdiff_t visible_row;
  void* max;
  const TileInstruction* instruction;
  const TileBuffer* buffers;
  const int64_t* list;  // kList
  bool* suspect;        // checks: set when something is outside
};

using TileFunction = void (*)(const TileArgs&) noexcept;

/// Which operands are one number per row.
enum class TileAccess : uint8_t {
  kVectorVector,
  kVectorBroadcast,
  kBroadcastVector,
  kBroadcastBroadcast
};
inline constexpr int kTileAccessCount = 4;

/// What becomes of a result.
enum class TileFinish : uint8_t {
  kStore,        // a temporary
  kScore,        // the score tile, and the running maximum
  kMaskedScore,  // the same; hidden elements become -inf
};
inline constexpr int kTileFinishCount = 3;

/// Null where a combination cannot occur.
struct TileFunctions {
  TileFunction at[kTileOpCount][kTileAccessCount][kTileFinishCount];
};

}  // namespace quire::kernels

// Runs a tile program over tiles. One runner per thread; it owns nothing: program, functions and
// scratch are the caller's. Plain C++: the vector code is behind the function table. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/tile/tile_functions.h"
#include "kernels/tile/tile_program.h"

namespace quire::kernels {

/// Where a tile lies. For each coordinate, as the program's `vary` says, the constant or first
/// value, or a list with one value per lane or row.
struct TileCoords {
  int64_t start[kCoordCount] = {};
  const int64_t* list[kCoordCount] = {};
  int rows = 0;   // <= max_rows
  int lanes = 0;  // <= 64 * groups
};

/// The scores of a tile, changed in place: element (row, lane) is at data + row * row_step + lane /
/// 64 * group_step + lane % 64 / 16 * panel_step + lane % 16 floats. Steps in bytes. Whole panels
/// are written; lanes beyond the tile's edge become -inf.
struct ScoreTile {
  void* data = nullptr;
  ptrdiff_t row_step = 0;
  ptrdiff_t group_step = 0;
  ptrdiff_t panel_step = 0;
};

/// The first fault of a visible element, in the logical order b, h, q, kv.
struct TileFault {
  bool found = false;
  int64_t at[kCoordCount] = {};
  const TileProgram* program = nullptr;
  int check = -1;     // into the program's checks
  int64_t value = 0;  // the index

  bool before(const TileFault& other) const;
};

class TileRunner {
 public:
  /// scratch: program.scratch_bytes, aligned to 64.
  TileRunner(const TileProgram& program, const TileFunctions& functions, void* scratch)
      : program_(program), functions_(functions), scratch_(static_cast<char*>(scratch)) {}

  /// Computes everything that does not vary per element. Call before apply or mask.
  void begin(const TileCoords& coords) noexcept;

  /// Scores of rows [row_begin, row_end) to modified, masked scores. `max` is raised by what was
  /// stored: 64 floats per group, or, if the program says max_per_row, 64 per row, from row_begin
  /// on. `visible`, if not null, hides more than the program's own mask: a word for each (row,
  /// group that has lanes), from row 0 of the tile on, as mask() gives them.
  void apply(const ScoreTile& scores, int row_begin, int row_end, void* max,
             const uint64_t* visible = nullptr) noexcept;

  /// The visible elements as words [rows][groups]. For programs without a score.
  void mask(uint64_t* words) noexcept;

  /// One of the program's outputs at a row: the number of lane 0 (or of all, if it is broadcast),
  /// the others after it.
  const char* row_of(const TileOperand& output, int row) const noexcept {
    return address(output, {row, 0, 1, true}, {});
  }

  /// Over all tiles since construction.
  const TileFault& fault() const { return fault_; }

 private:
  // A run of function rows: tile rows of one group, or groups of one row.
  struct Chunk {
    int row, group;   // of the first function row
    int rows;         // function rows
    bool along_rows;  // next function row is the next tile row, else the next group
  };

  void run_phase(TileClass phase, int elements) noexcept;
  void expand_masks() noexcept;
  // `visible`: the words of its function rows, out.
  void run_chunk(const Chunk& chunk, const ScoreTile& scores, void* max,
                 uint64_t* visible) noexcept;
  const char* address(const TileOperand& operand, const Chunk& chunk,
                      const ScoreTile& scores) const noexcept;
  ptrdiff_t step(const TileOperand& operand, const Chunk& chunk,
                 const ScoreTile& scores) const noexcept;
  TileArgs chunk_args(const TileInstruction& in, const Chunk& chunk,
                      const ScoreTile& scores) noexcept;
  void common_args(const TileInstruction& in, TileArgs& args) noexcept;
  bool visible_words(const Chunk& chunk, uint64_t* words) const noexcept;
  void find_faults(const Chunk& chunk, const uint64_t* words) noexcept;
  int64_t value_at(const TileOperand& operand, int row, int lane,
                   const Chunk& chunk) const noexcept;
  int64_t coordinate(Coord coord, int row, int lane) const noexcept;
  uint64_t existing_lanes(int group) const noexcept;
  bool* suspects() const noexcept {
    return reinterpret_cast<bool*>(scratch_ + program_.suspect_offset);
  }

  const TileProgram& program_;
  const TileFunctions& functions_;
  char* scratch_;
  TileCoords coords_;
  const uint64_t* visible_ = nullptr;  // while apply runs
  TileFault fault_;
};

}  // namespace quire::kernels

// The tile program: a mod as a list of typed instructions over tiles of (rows x lanes) elements.
// formula/ builds it, tile_runner.h runs it, the functions behind the opcodes are compiled once per
// ISA (tile_*-inl.h). Plain data, no SIMD; one program serves all threads and all ISAs. Kernels
// layer.
//
// A tile has up to max_rows rows and `groups` groups of 64 lanes. Every value has a class that says
// along which axes it varies. It is computed once for each place along those axes; its numbers
// never depend on its class:
//   uniform   once per tile start, 1 number
//   lane      one number per lane            row       one number per row
//   diagonal  a function of (row - lane): a window of rows + lanes - 1 numbers; element (row, lane)
//             is number rows - 1 - row + lane of it, so that
//             every row reads contiguous lanes
//   element   one number per element, in chunks of rows that stay in L1
// Bools are bits: a 64-bit word per 64 elements.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quire/dtype.h"

namespace quire::kernels {

inline constexpr int kGroupLanes = 64;  // lanes of a mask word
inline constexpr int kPanelLanes = 16;  // lanes a function handles before it moves to the next row
inline constexpr int kMaxChunkRows = 48;

enum class TileClass : uint8_t { kUniform, kLane, kRow, kDiagonal, kElement };
inline constexpr int kTileClassCount = 5;

/// kFloat is f32, or f64 in a program of that precision. kInt32 only where every value was proved
/// to fit.
enum class TileType : uint8_t { kFloat, kInt32, kInt64, kMask };

/// Opcodes. Suffix: F float, I int32, L int64, M mask; of conversions and gathers, first the source
/// or offset type. Those that compute one operation of formulas come from the table of operations.
enum class TileOp : uint8_t {
  // floats -> float
  kCopyF,
#define QUIRE_FLOAT_OP(name, ...) k##name##F,
#define QUIRE_NUMBER_OP(name, ...) k##name##F,
#define QUIRE_FLOAT_FUNCTION(name, ...) k##name##F,
#include "quire/op_table.inc"
  kSoftcapF,  // c * tanh(a / b) in one pass; b and c are uniform, a is per element
// int32
#define QUIRE_INT_OP(name, ...) k##name##I,
#define QUIRE_NUMBER_OP(name, ...) k##name##I,
#include "quire/op_table.inc"
// int64, in the same order
#define QUIRE_INT_OP(name, ...) k##name##L,
#define QUIRE_NUMBER_OP(name, ...) k##name##L,
#include "quire/op_table.inc"
  kShlL,
  kShrL,
  kPowL,
  // conversions
  kIntToF,
  kLongToF,
  kFToLong,
  kIntToLong,
  kLongToInt,
  kMaskToInt,
  // comparisons to bits
  kLtF,
  kLeF,
  kEqF,
  kNeF,
  kLtI,
  kLeI,
  kEqI,
  kNeI,
  kLtL,
  kLeL,
  kEqL,
  kNeL,
  // bits
  kAndM,
  kOrM,
  kXorM,
  kNotM,
  kExpandRowM,
  kExpandDiagonalM,
  // c ? a : b
  kSelectF,
  kSelectI,
  kSelectL,
  // leaves
  kConstF,
  kConstI,
  kConstL,
  kConstM,
  kStart,
  kList,
  // a + first + row_step * row + lane_step * lane
  kIotaI,
  kIotaL,
  // checks: an index wrapped and clamped; a divisor looked at. Both report what is outside.
  kIndexI,
  kIndexL,
  kDivisorI,
  kDivisorL,
  // buffers: at an offset per element, or at affine offsets (as kIota)
  kGatherIntF,
  kGatherLongF,
  kGatherIntI,
  kGatherLongI,
  kGatherIntL,
  kGatherLongL,
  kStridedF,
  kStridedI,
  kStridedL,
  kSumF,
  kSumL,
  kDotF,
  kDotL,
};
inline constexpr int kTileOpCount = static_cast<int>(TileOp::kDotL) + 1;

/// Whether an f32 operation can write the score tile itself: the cheap ones, and tanh for
/// soft-capping. Any other function costs so much that a separate pass adds little, and three
/// variants of each would be much code.
constexpr bool finishes(TileOp op) {
  switch (op) {
    case TileOp::kCopyF:
    case TileOp::kNegF:
    case TileOp::kAbsF:
    case TileOp::kTanhF:
    case TileOp::kReluF:
    case TileOp::kAddF:
    case TileOp::kSubF:
    case TileOp::kMulF:
    case TileOp::kDivF:
    case TileOp::kMinF:
    case TileOp::kMaxF:
    case TileOp::kSoftcapF:
    case TileOp::kSelectF:
      return true;
    default:
      return false;
  }
}

/// The coordinates a tile is laid out over.
enum class Coord : uint8_t { kB, kH, kQ, kKv };
inline constexpr int kCoordCount = 4;

/// How a coordinate runs over a tile.
enum class Vary : uint8_t {
  kConstant,   // the same everywhere
  kLaneRange,  // start + lane
  kLaneList,   // one per lane, from a list
  kRowRange,   // start + row
  kRowList,    // one per row, from a list
};

/// Where a value lies and how it is walked. Address of the element at (row, lane of group):
/// offset + row * row_step + group * group_step, relative to the space.
struct TileOperand {
  enum class Space : uint8_t { kScratch, kChunk, kScore };
  int32_t offset = 0;
  int32_t row_step = 0;
  int32_t group_step = 0;
  TileClass value_class = TileClass::kUniform;
  TileType type = TileType::kFloat;
  Space space = Space::kScratch;
  bool broadcast = false;  // one number for all lanes of a row
  bool used = false;
};

struct TileInstruction {
  TileOp op = TileOp::kCopyF;
  TileOperand a = {}, b = {}, c = {}, out = {};
  int64_t imm = 0;        // constants: the bits; kIndex: the axis' size; kStart, kList: the Coord
  int64_t lane_step = 0;  // kIota, kStrided
  int64_t row_step = 0;
  int16_t buffer = -1;        // gathers, kSum, kDot
  int16_t other_buffer = -1;  // kDot
  int16_t check = -1;         // kIndex, kDivisor: which check it reports to
};

/// A captured buffer as kernels see it. Offsets are in elements.
struct TileBuffer {
  const void* data = nullptr;
  DType dtype = DType::f32;
  // kSum, kDot: the trailing elements, at `trailing_step` apart or, if not null, at these offsets.
  int64_t trailing_count = 1;
  int64_t trailing_step = 1;
  const int64_t* trailing_offsets = nullptr;
  std::string name = {};
};

/// A mistake that counts only where an element is visible.
struct TileCheck {
  enum class Kind : uint8_t { kIndex, kDivisor };
  Kind kind = Kind::kIndex;
  TileOperand value = {};  // the index or divisor, kept until the chunk is done
  std::string buffer_name = {};
  int axis = 0;
  int64_t size = 0;  // of the axis
};

struct TileProgram {
  bool f64 = false;  // precision of kFloat
  int max_rows = 0;
  int groups = 1;
  Vary vary[kCoordCount] = {};
  bool max_per_row = false;  // decode: the running max is one vector per row, not one per group

  std::vector<TileInstruction> phases[kTileClassCount];  // by the class of the result, in order
  std::vector<TileInstruction> expands;  // masks of rows and diagonals to words, once per tile
  int chunk_rows = kMaxChunkRows;        // function rows per pass over the element phase
  bool has_score = false;                // the last element instruction writes the score tile
  bool has_mask = false;
  TileOperand mask;  // bits of the visible elements, if has_mask
  /// Numbers that stay readable until the next tile, those per element for the rows that were
  /// applied: how each is read at a row of the first group (TileRunner::row_of).
  std::vector<TileOperand> outputs;

  std::vector<TileBuffer> buffers;
  std::vector<std::shared_ptr<const void>>
      keep_alive;  // what buffers and trailing_offsets point into
  std::vector<TileCheck> checks;

  size_t suspect_offset = 0;  // one bool per check: whether it saw something outside in this tile
  size_t scratch_bytes = 0;   // everything
};

}  // namespace quire::kernels

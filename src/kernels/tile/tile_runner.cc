// Addresses, loops and checks of tile programs. No SIMD. Kernels layer.
#include "kernels/tile/tile_runner.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "kernels/tile/wrapping.h"

namespace quire::kernels {
namespace {

ptrdiff_t element_bytes(TileType type, bool f64) {
  switch (type) {
    case TileType::kFloat:
      return f64 ? 8 : 4;
    case TileType::kInt32:
      return 4;
    case TileType::kInt64:
      return 8;
    case TileType::kMask:
      return 0;
  }
  return 0;
}

// Bytes of 64 elements: what one function row of a value that is not per element takes.
ptrdiff_t group_bytes(TileType type, bool f64) {
  return type == TileType::kMask ? 8 : kGroupLanes * element_bytes(type, f64);
}

TileAccess access_of(const TileOperand& a, const TileOperand& b) {
  if (a.broadcast)
    return b.broadcast ? TileAccess::kBroadcastBroadcast : TileAccess::kBroadcastVector;
  return b.broadcast ? TileAccess::kVectorBroadcast : TileAccess::kVectorVector;
}

TileFunction function_of(const TileFunctions& functions, const TileInstruction& in,
                         TileAccess access, TileFinish finish) {
  return functions.at[static_cast<int>(in.op)][static_cast<int>(access)][static_cast<int>(finish)];
}

bool is_affine(TileOp op) {
  return op == TileOp::kIotaI || op == TileOp::kIotaL || op == TileOp::kStridedF ||
         op == TileOp::kStridedI || op == TileOp::kStridedL;
}

// Bit 0 to all 64.
void spread_bit(char* at) {
  uint64_t word;
  std::memcpy(&word, at, 8);
  word = uint64_t{0} - (word & 1);
  std::memcpy(at, &word, 8);
}

int groups_of(int elements) { return (elements + kGroupLanes - 1) / kGroupLanes; }

}  // namespace

bool TileFault::before(const TileFault& other) const {
  if (found != other.found) return found;
  return std::tie(at[0], at[1], at[2], at[3], check) <
         std::tie(other.at[0], other.at[1], other.at[2], other.at[3], other.check);
}

void TileRunner::common_args(const TileInstruction& in, TileArgs& args) noexcept {
  args.visible = scratch_;
  args.visible_row = 0;
  args.max = nullptr;
  args.instruction = &in;
  args.buffers = program_.buffers.data();
  args.suspect = in.check >= 0 ? &suspects()[in.check] : nullptr;
  args.a_panel = in.a.broadcast ? 0 : kPanelLanes * element_bytes(in.a.type, program_.f64);
  args.b_panel = in.b.broadcast ? 0 : kPanelLanes * element_bytes(in.b.type, program_.f64);
  args.out_panel = in.out.type == TileType::kMask
                       ? kPanelLanes / 8
                       : kPanelLanes * element_bytes(in.out.type, program_.f64);
}

// Values that are not per element: whole groups of 64 in a row, of the phase's own class or
// uniform.
void TileRunner::run_phase(TileClass phase, int elements) noexcept {
  const bool uniform = phase == TileClass::kUniform;
  const int rows = groups_of(elements);
  for (const TileInstruction& in : program_.phases[static_cast<int>(phase)]) {
    TileArgs args;
    common_args(in, args);
    const auto flat_step = [&](const TileOperand& operand) -> ptrdiff_t {
      return operand.value_class == TileClass::kUniform ? 0
                                                        : group_bytes(operand.type, program_.f64);
    };
    args.a = scratch_ + in.a.offset;
    args.b = scratch_ + in.b.offset;
    args.c = scratch_ + in.c.offset;
    args.out = scratch_ + in.out.offset;
    args.a_row = flat_step(in.a);
    args.b_row = flat_step(in.b);
    args.c_row = flat_step(in.c);
    args.out_row = flat_step(in.out);
    args.rows = rows;
    args.panels = uniform ? 1 : kGroupLanes / kPanelLanes;
    args.valid = elements;
    args.valid_step = kGroupLanes;
    args.first = args.row_step = args.lane_step = 0;
    args.list = nullptr;
    if (in.op == TileOp::kStart) {
      args.a = reinterpret_cast<const char*>(&coords_.start[in.imm]);
    } else if (in.op == TileOp::kList) {
      args.list = coords_.list[in.imm];
    } else if (is_affine(in.op)) {  // steps may be any int64 and wrap like the integers themselves
      const int64_t along = phase == TileClass::kLane ? in.lane_step : in.row_step;
      args.lane_step = phase == TileClass::kDiagonal ? wrapping_mul(in.row_step, -1) : along;
      args.first = phase == TileClass::kDiagonal ? wrapping_mul(in.row_step, coords_.rows - 1) : 0;
      args.row_step = wrapping_mul(args.lane_step, kGroupLanes);
    }
    // In the uniform phase everything is one number in lane 0, so any access reads the same; its
    // bit stands for all.
    const TileAccess access = uniform ? TileAccess::kVectorVector : access_of(in.a, in.b);
    function_of(functions_, in, access, TileFinish::kStore)(args);
    if (uniform && in.out.type == TileType::kMask) spread_bit(args.out);
  }
}

void TileRunner::expand_masks() noexcept {
  for (const TileInstruction& in : program_.expands) {
    TileArgs args;
    common_args(in, args);
    args.a = scratch_ + in.a.offset;
    args.b = args.c = scratch_;
    args.a_row = args.b_row = args.c_row = 0;
    args.out = scratch_ + in.out.offset;
    args.out_row = in.out.row_step;
    args.rows = coords_.rows;
    args.first = groups_of(coords_.lanes);
    function_of(functions_, in, TileAccess::kVectorVector, TileFinish::kStore)(args);
  }
}

void TileRunner::begin(const TileCoords& coords) noexcept {
  coords_ = coords;
  std::fill_n(suspects(), program_.checks.size(), false);
  run_phase(TileClass::kUniform, 1);
  run_phase(TileClass::kLane, coords.lanes);
  run_phase(TileClass::kRow, coords.rows);
  run_phase(TileClass::kDiagonal, coords.rows + coords.lanes - 1);
  expand_masks();
}

uint64_t TileRunner::existing_lanes(int group) const noexcept {
  const int left = coords_.lanes - group * kGroupLanes;
  return left >= kGroupLanes ? ~uint64_t{0} : left <= 0 ? 0 : (uint64_t{1} << left) - 1;
}

const char* TileRunner::address(const TileOperand& operand, const Chunk& chunk,
                                const ScoreTile& scores) const noexcept {
  switch (operand.space) {
    case TileOperand::Space::kChunk:
      return scratch_ + operand.offset;
    case TileOperand::Space::kScore:
      return static_cast<const char*>(scores.data) + chunk.row * scores.row_step +
             chunk.group * scores.group_step;
    case TileOperand::Space::kScratch:
      break;
  }
  const char* at = scratch_ + operand.offset + ptrdiff_t{chunk.row} * operand.row_step +
                   ptrdiff_t{chunk.group} * operand.group_step;
  if (operand.value_class == TileClass::kDiagonal && operand.type != TileType::kMask)
    at += (coords_.rows - 1) * element_bytes(operand.type, program_.f64);
  return at;
}

ptrdiff_t TileRunner::step(const TileOperand& operand, const Chunk& chunk,
                           const ScoreTile& scores) const noexcept {
  switch (operand.space) {
    case TileOperand::Space::kChunk:
      return group_bytes(operand.type, program_.f64);
    case TileOperand::Space::kScore:
      return chunk.along_rows ? scores.row_step : scores.group_step;
    case TileOperand::Space::kScratch:
      break;
  }
  return chunk.along_rows ? operand.row_step : operand.group_step;
}

TileArgs TileRunner::chunk_args(const TileInstruction& in, const Chunk& chunk,
                                const ScoreTile& scores) noexcept {
  TileArgs args;
  common_args(in, args);
  args.a = address(in.a, chunk, scores);
  args.b = address(in.b, chunk, scores);
  args.c = address(in.c, chunk, scores);
  args.out = const_cast<char*>(address(in.out, chunk, scores));
  args.a_row = step(in.a, chunk, scores);
  args.b_row = step(in.b, chunk, scores);
  args.c_row = step(in.c, chunk, scores);
  args.out_row = step(in.out, chunk, scores);
  if (in.a.space == TileOperand::Space::kScore) args.a_panel = scores.panel_step;
  if (in.b.space == TileOperand::Space::kScore) args.b_panel = scores.panel_step;
  if (in.out.space == TileOperand::Space::kScore) args.out_panel = scores.panel_step;
  args.rows = chunk.rows;
  const int lanes = coords_.lanes - chunk.group * kGroupLanes;
  const int widest =
      std::min(lanes, kGroupLanes);  // of the first function row; later ones are not wider
  args.panels = (widest + kPanelLanes - 1) / kPanelLanes;
  args.valid = lanes;
  args.valid_step = chunk.along_rows ? 0 : kGroupLanes;
  args.first = wrapping_add(wrapping_mul(in.row_step, chunk.row),
                            wrapping_mul(in.lane_step, int64_t{kGroupLanes} * chunk.group));
  args.row_step = chunk.along_rows ? in.row_step : wrapping_mul(in.lane_step, kGroupLanes);
  args.lane_step = in.lane_step;
  args.list = nullptr;
  return args;
}

// The visible elements of a chunk, a word per function row; returns whether all are.
bool TileRunner::visible_words(const Chunk& chunk, uint64_t* words) const noexcept {
  const char* at = program_.has_mask ? address(program_.mask, chunk, {}) : nullptr;
  const ptrdiff_t next = program_.has_mask ? step(program_.mask, chunk, {}) : 0;
  uint64_t all = ~uint64_t{0};
  for (int i = 0; i < chunk.rows; ++i) {
    uint64_t word = existing_lanes(chunk.along_rows ? chunk.group : chunk.group + i);
    if (at != nullptr) {
      uint64_t bits;
      std::memcpy(&bits, at + i * next, 8);
      word &= bits;
    }
    if (visible_ != nullptr) {
      const int row = chunk.along_rows ? chunk.row + i : chunk.row;
      const int group = chunk.along_rows ? chunk.group : chunk.group + i;
      word &= visible_[ptrdiff_t{row} * groups_of(coords_.lanes) + group];
    }
    words[i] = word;
    all &= word;
  }
  return all == ~uint64_t{0};
}

void TileRunner::run_chunk(const Chunk& chunk, const ScoreTile& scores, void* max,
                           uint64_t* visible) noexcept {
  const auto& instructions = program_.phases[static_cast<int>(TileClass::kElement)];
  const size_t plain = instructions.size() - (program_.has_score ? 1 : 0);
  for (size_t i = 0; i < plain; ++i) {
    const TileInstruction& in = instructions[i];
    function_of(functions_, in, access_of(in.a, in.b),
                TileFinish::kStore)(chunk_args(in, chunk, scores));
  }
  const bool all = visible_words(chunk, visible);
  if (program_.has_score) {
    const TileInstruction& in = instructions[plain];
    TileArgs args = chunk_args(in, chunk, scores);
    args.visible = reinterpret_cast<const char*>(visible);
    args.visible_row = 8;
    args.max = max;
    function_of(functions_, in, access_of(in.a, in.b),
                all ? TileFinish::kScore : TileFinish::kMaskedScore)(args);
  }
  if (std::any_of(suspects(), suspects() + program_.checks.size(), [](bool s) { return s; }))
    find_faults(chunk, visible);
}

void TileRunner::apply(const ScoreTile& scores, int row_begin, int row_end, void* max,
                       const uint64_t* visible) noexcept {
  visible_ = visible;
  const int groups = groups_of(coords_.lanes), most = program_.chunk_rows;
  const ptrdiff_t max_step = group_bytes(TileType::kFloat, program_.f64);
  char* to = static_cast<char*>(max);
  uint64_t words[kMaxChunkRows];
  if (program_.max_per_row) {
    for (int row = row_begin; row < row_end; ++row, to += max_step)
      for (int group = 0; group < groups; group += most)
        run_chunk({row, group, std::min(most, groups - group), false}, scores, to, words);
    return;
  }
  for (int group = 0; group < groups; ++group, to += max_step)
    for (int row = row_begin; row < row_end; row += most)
      run_chunk({row, group, std::min(most, row_end - row), true}, scores, to, words);
}

void TileRunner::mask(uint64_t* words) noexcept {
  visible_ = nullptr;
  const int groups = groups_of(coords_.lanes), most = program_.chunk_rows;
  uint64_t visible[kMaxChunkRows];
  for (int group = 0; group < groups; ++group) {
    for (int row = 0; row < coords_.rows; row += most) {
      const int rows = std::min(most, coords_.rows - row);
      run_chunk({row, group, rows, true}, {}, nullptr, visible);
      for (int i = 0; i < rows; ++i) words[ptrdiff_t{row + i} * groups + group] = visible[i];
    }
  }
}

int64_t TileRunner::coordinate(Coord coord, int row, int lane) const noexcept {
  const int i = static_cast<int>(coord);
  switch (program_.vary[i]) {
    case Vary::kConstant:
      return coords_.start[i];
    case Vary::kLaneRange:
      return coords_.start[i] + lane;
    case Vary::kRowRange:
      return coords_.start[i] + row;
    case Vary::kLaneList:
      return coords_.list[i][lane];
    case Vary::kRowList:
      return coords_.list[i][row];
  }
  return 0;
}

int64_t TileRunner::value_at(const TileOperand& operand, int row, int lane,
                             const Chunk& chunk) const noexcept {
  const int i =
      chunk.along_rows ? row - chunk.row : lane / kGroupLanes - chunk.group;  // function row
  const char* at = address(operand, chunk, {}) + i * step(operand, chunk, {});
  if (!operand.broadcast) at += lane % kGroupLanes * element_bytes(operand.type, program_.f64);
  if (operand.type == TileType::kInt32) {
    int32_t value;
    std::memcpy(&value, at, 4);
    return value;
  }
  int64_t value;
  std::memcpy(&value, at, 8);
  return value;
}

// Slow: only runs where a check saw something outside, and most of that is hidden.
void TileRunner::find_faults(const Chunk& chunk, const uint64_t* words) noexcept {
  for (size_t c = 0; c < program_.checks.size(); ++c) {
    if (!suspects()[c]) continue;
    const TileCheck& check = program_.checks[c];
    for (int i = 0; i < chunk.rows; ++i) {
      const int row = chunk.along_rows ? chunk.row + i : chunk.row;
      const int group = chunk.along_rows ? chunk.group : chunk.group + i;
      for (int j = 0; j < kGroupLanes; ++j) {
        if ((words[i] >> j & 1) == 0) continue;
        const int lane = group * kGroupLanes + j;
        const int64_t value = value_at(check.value, row, lane, chunk);
        const bool bad = check.kind == TileCheck::Kind::kDivisor
                             ? value == 0
                             : value < -check.size || value >= check.size;
        if (!bad) continue;
        TileFault fault{
            .found = true, .program = &program_, .check = static_cast<int>(c), .value = value};
        for (int k = 0; k < kCoordCount; ++k)
          fault.at[k] = coordinate(static_cast<Coord>(k), row, lane);
        if (fault.before(fault_)) fault_ = fault;
      }
    }
  }
}

}  // namespace quire::kernels

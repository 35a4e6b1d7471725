// Assigns instructions to phases and results to scratch memory, and lets temporaries share
// addresses. Formula layer.
#include "formula/compile/emit.h"

#include <algorithm>
#include <array>
#include <vector>

#include "formula/compile/low_graph.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::formula {

using kernels::TileClass;
using kernels::TileInstruction;
using kernels::TileOp;
using kernels::TileOperand;
using kernels::TileProgram;
using kernels::TileType;

namespace {

constexpr std::size_t kAlign = 64;
// Chunk temporaries should stay in half of L1 next to the scores; 48 rows of one, 32 of two, 24 of
// three, 16 of four.
constexpr std::size_t kChunkBytes = 18 * 1024;
constexpr int kMinChunkRows = 8;

class Emitter {
 public:
  Emitter(const LowGraph& low, const CompileOptions& options) : low_(low), options_(options) {}

  TileProgram emit(const LowRoots& roots);

 private:
  // Temporaries of the element phase, by size: 4 or 8 bytes per element, or bits.
  enum Pool { kPool4, kPool8, kPoolBits, kPoolCount };

  void mark_used(const LowRoots& roots);
  void emit_outputs(const std::vector<LowId>& outputs);
  void reserve_phases();
  void keep_score();
  void emit_node(LowId id);
  void emit_final(LowId score, bool fused);
  TileInstruction instruction(LowId id, TileClass phase);
  TileOperand operand(LowId id, TileClass phase);
  TileOperand result_place(LowId id);
  void release_arguments(const LowNode& node);
  std::int32_t expanded(LowId id);
  void place_chunk_temporaries();

  std::int32_t allocate(std::size_t bytes);
  std::size_t element_bytes(TileType type) const;
  Pool pool_of(TileType type) const;
  bool can_finish(LowId id) const;

  const LowGraph& low_;
  const CompileOptions& options_;
  TileProgram program_;
  std::vector<int> uses_;                 // remaining uses; checks and results count
  std::vector<char> kept_;                // outputs: their element values live for the whole tile
  std::vector<TileOperand> places_;       // of nodes emitted so far
  std::vector<std::int32_t> expansions_;  // offset of a mask spread to words, -1 if not yet
  std::array<std::vector<int>, kPoolCount> free_;
  std::array<int, kPoolCount> slots_ = {};
  TileOperand kept_score_;  // if it is an output
  std::size_t bytes_ = 0;
};

std::size_t Emitter::element_bytes(TileType type) const {
  if (type == TileType::kInt32) return 4;
  if (type == TileType::kInt64) return 8;
  return options_.precision == Precision::kF64 ? 8 : 4;
}

Emitter::Pool Emitter::pool_of(TileType type) const {
  if (type == TileType::kMask) return kPoolBits;
  return element_bytes(type) == 4 ? kPool4 : kPool8;
}

std::int32_t Emitter::allocate(std::size_t bytes) {
  const std::size_t at = bytes_;
  bytes_ += (bytes + kAlign - 1) / kAlign * kAlign;
  if (bytes_ > std::size_t{1} << 30)
    fail(ErrorKind::value, "formula", "the mod needs more than 1 GiB of scratch memory per thread");
  return static_cast<std::int32_t>(at);
}

void Emitter::mark_used(const LowRoots& roots) {
  uses_.assign(low_.size(), 0);
  kept_.assign(low_.size(), 0);
  const auto use = [&](LowId id) {
    if (id != kNoLow) ++uses_[id];
  };
  use(roots.score);
  use(roots.mask);
  for (const LowId output : roots.outputs) {
    use(output);
    kept_[output] = 1;
  }
  for (const LowCheck& check : low_.checks()) {
    use(check.node);
    use(check.value);
  }
  for (LowId id = low_.size() - 1; id >= 0; --id) {
    if (uses_[id] == 0) continue;
    use(low_[id].a);
    use(low_[id].b);
    use(low_[id].c);
  }
}

// Where the result of a node goes. Chunk temporaries get slot numbers now and addresses when all
// are known.
TileOperand Emitter::result_place(LowId id) {
  const LowNode& node = low_[id];
  TileOperand place{.value_class = node.value_class, .type = node.type, .used = true};
  const bool bits = node.type == TileType::kMask;
  const std::size_t group = bits ? 8 : kernels::kGroupLanes * element_bytes(node.type);
  const auto groups_of = [](int elements) {
    return static_cast<std::size_t>((elements + kernels::kGroupLanes - 1) / kernels::kGroupLanes);
  };
  switch (node.value_class) {
    case TileClass::kUniform:
      place.offset = allocate(group);
      break;
    case TileClass::kLane:
      place.offset = allocate(group * options_.groups);
      break;
    case TileClass::kRow:
      place.offset = allocate(group * groups_of(options_.max_rows));
      break;
    case TileClass::kDiagonal:  // one extra group: the last row reads 64 lanes from its start
      place.offset = allocate(
          group * (groups_of(options_.max_rows + options_.groups * kernels::kGroupLanes) + 1));
      break;
    case TileClass::kElement: {
      if (kept_[id]) {
        place.group_step = static_cast<std::int32_t>(group);
        place.row_step = place.group_step * options_.groups;
        place.offset = allocate(options_.max_rows * place.row_step);
        break;
      }
      const Pool pool = pool_of(node.type);
      place.space = TileOperand::Space::kChunk;
      if (free_[pool].empty()) free_[pool].push_back(slots_[pool]++);
      place.offset = free_[pool].back();
      free_[pool].pop_back();
      break;
    }
  }
  return place;
}

// The bits of rows or diagonals as a word per row (and group), made once per tile.
std::int32_t Emitter::expanded(LowId id) {
  std::int32_t& offset = expansions_[id];
  if (offset >= 0) return offset;
  const bool diagonal = low_[id].value_class == TileClass::kDiagonal;
  const int words = diagonal ? options_.groups : 1;
  offset = allocate(options_.max_rows * words * 8);
  TileInstruction in{.op = diagonal ? TileOp::kExpandDiagonalM : TileOp::kExpandRowM};
  in.a = places_[id];
  in.out = {.offset = offset,
            .row_step = 8 * words,
            .value_class = low_[id].value_class,
            .type = TileType::kMask,
            .used = true};
  program_.expands.push_back(in);
  return offset;
}

// How a node is read in a phase. Within its own phase (or if uniform, in any) a value is flat,
// which the runner knows.
TileOperand Emitter::operand(LowId id, TileClass phase) {
  const LowNode& node = low_[id];
  TileOperand place = places_[id];
  const bool bits = node.type == TileType::kMask;
  const auto bytes = static_cast<std::int32_t>(bits ? 0 : element_bytes(node.type));
  const std::int32_t group = bits ? 8 : kernels::kGroupLanes * bytes;
  switch (node.value_class) {
    case TileClass::kUniform:
      place.broadcast = !bits && phase != TileClass::kUniform;
      break;
    case TileClass::kLane:
      place.group_step = group;
      break;
    case TileClass::kRow:
      if (phase != TileClass::kElement) break;
      place.broadcast = !bits;
      if (bits) place.offset = expanded(id);
      place.row_step = bits ? 8 : bytes;
      break;
    case TileClass::kDiagonal:
      if (phase != TileClass::kElement) break;
      if (bits) place.offset = expanded(id);
      place.row_step = bits ? 8 * options_.groups : -bytes;
      place.group_step = group;
      break;
    case TileClass::kElement:
      break;
  }
  return place;
}

TileInstruction Emitter::instruction(LowId id, TileClass phase) {
  const LowNode& node = low_[id];
  TileInstruction in{.op = node.op,
                     .imm = node.imm,
                     .lane_step = node.lane_step,
                     .row_step = node.row_step,
                     .buffer = node.buffer,
                     .other_buffer = node.other_buffer};
  if (node.a != kNoLow) in.a = operand(node.a, phase);
  if (node.b != kNoLow) in.b = operand(node.b, phase);
  if (node.c != kNoLow) in.c = operand(node.c, phase);
  in.check = static_cast<std::int16_t>(low_.check_of(id));
  return in;
}

void Emitter::release_arguments(const LowNode& node) {
  for (const LowId arg : {node.a, node.b, node.c}) {
    if (arg == kNoLow || --uses_[arg] > 0) continue;
    const TileOperand& place = places_[arg];
    if (place.space == TileOperand::Space::kChunk)
      free_[pool_of(low_[arg].type)].push_back(place.offset);
  }
}

void Emitter::reserve_phases() {
  std::array<std::size_t, kernels::kTileClassCount> counts = {};
  for (LowId id = 0; id < low_.size(); ++id)
    if (uses_[id] > 0) ++counts[static_cast<std::size_t>(low_[id].value_class)];
  for (std::size_t i = 0; i < counts.size(); ++i) program_.phases[i].reserve(counts[i]);
}

void Emitter::emit_node(LowId id) {
  const LowNode& node = low_[id];
  TileOperand& place = places_[id];
  if (node.is_score) {
    place = {.value_class = TileClass::kElement,
             .type = TileType::kFloat,
             .space = TileOperand::Space::kScore,
             .used = true};
    return;
  }
  TileInstruction in = instruction(id, node.value_class);
  release_arguments(
      node);  // first: the result may reuse the memory of an argument, element by element
  place = result_place(id);
  in.out = place;
  program_.phases[static_cast<int>(node.value_class)].push_back(in);
}

// Whether the instruction of `id` can write the score tile directly.
bool Emitter::can_finish(LowId id) const {
  const LowNode& node = low_[id];
  if (node.is_score || node.value_class != TileClass::kElement ||
      options_.precision == Precision::kF64)
    return false;
  return kernels::finishes(node.op) && uses_[id] == 1;
}

void Emitter::emit_final(LowId score, bool fused) {
  TileInstruction in;
  if (fused) {
    in = instruction(score, TileClass::kElement);
  } else {
    if (!places_[score].used) emit_node(score);
    in.op = TileOp::kCopyF;
    in.a = operand(score, TileClass::kElement);
  }
  in.out = {.value_class = TileClass::kElement,
            .type = TileType::kFloat,
            .space = TileOperand::Space::kScore,
            .used = true};
  program_.phases[static_cast<int>(TileClass::kElement)].push_back(in);
}

// Copies the score before the mod, if it is an output: the last instruction overwrites it.
void Emitter::keep_score() {
  for (LowId id = 0; id < low_.size(); ++id) {
    if (!low_[id].is_score || !kept_[id]) continue;
    TileInstruction in{.op = TileOp::kCopyF};
    in.a = operand(id, TileClass::kElement);
    in.out = result_place(id);
    program_.phases[static_cast<int>(TileClass::kElement)].push_back(in);
    kept_score_ = in.out;
  }
}

void Emitter::emit_outputs(const std::vector<LowId>& outputs) {
  for (const LowId id : outputs)
    program_.outputs.push_back(low_[id].is_score ? kept_score_ : operand(id, TileClass::kElement));
}

// Turns slot numbers into offsets: first the 8-byte slots, then 4-byte, then bits.
void Emitter::place_chunk_temporaries() {
  const std::size_t row8 = 8 * kernels::kGroupLanes, row4 = 4 * kernels::kGroupLanes;
  const auto count = [&](Pool pool) { return static_cast<std::size_t>(slots_[pool]); };
  const std::size_t per_row = count(kPool8) * row8 + count(kPool4) * row4;
  const auto fitting = static_cast<int>(kChunkBytes / std::max<std::size_t>(per_row, 1) / 8 * 8);
  program_.chunk_rows = std::clamp(fitting, kMinChunkRows, kernels::kMaxChunkRows);
  const std::size_t rows = program_.chunk_rows;
  std::array<std::vector<std::int32_t>, kPoolCount> offsets;
  for (const Pool pool : {kPool8, kPool4, kPoolBits}) {
    const std::size_t row = pool == kPool8 ? row8 : pool == kPool4 ? row4 : 8;
    for (int i = 0; i < slots_[pool]; ++i) offsets[pool].push_back(allocate(row * rows));
  }
  const auto place = [&](TileOperand& operand) {
    if (operand.used && operand.space == TileOperand::Space::kChunk)
      operand.offset = offsets[pool_of(operand.type)][operand.offset];
  };
  for (TileInstruction& in : program_.phases[static_cast<int>(TileClass::kElement)])
    for (TileOperand* each : {&in.a, &in.b, &in.c, &in.out}) place(*each);
  for (kernels::TileCheck& check : program_.checks) place(check.value);
  place(program_.mask);
}

TileProgram Emitter::emit(const LowRoots& roots) {
  const LowId score = roots.score, mask = roots.mask;
  program_.f64 = options_.precision == Precision::kF64;
  program_.max_rows = options_.max_rows;
  program_.groups = options_.groups;
  std::copy(std::begin(options_.vary), std::end(options_.vary), std::begin(program_.vary));
  program_.max_per_row = options_.max_per_row;
  program_.has_score = score != kNoLow;
  program_.has_mask = mask != kNoLow;
  program_.buffers = low_.buffers;
  program_.keep_alive = low_.keep_alive;
  if (low_.checks().size() > 32767)
    fail(ErrorKind::value, "formula", "a mod may have at most 32,767 reads that need a check");

  mark_used(roots);
  // Decided before anything is emitted: uses_ counts down, and a mask may also use the score's
  // value.
  const bool fused = program_.has_score && can_finish(score);
  places_.assign(low_.size(), TileOperand());
  expansions_.assign(low_.size(), -1);
  reserve_phases();
  for (LowId id = 0; id < low_.size(); ++id) {
    if (uses_[id] == 0) continue;
    if (id == score && fused) continue;
    emit_node(id);
  }
  if (program_.has_mask) program_.mask = operand(mask, TileClass::kElement);
  for (const LowCheck& check : low_.checks()) {
    program_.checks.push_back({.kind = check.kind,
                               .value = operand(check.value, TileClass::kElement),
                               .buffer_name = check.buffer_name,
                               .axis = check.axis,
                               .size = check.size});
  }
  keep_score();
  if (program_.has_score) emit_final(score, fused);
  emit_outputs(roots.outputs);
  place_chunk_temporaries();
  program_.suspect_offset = allocate(low_.checks().size() + 1);
  program_.scratch_bytes = bytes_;
  return std::move(program_);
}

}  // namespace

TileProgram emit(const LowGraph& low, const LowRoots& roots, const CompileOptions& options) {
  return Emitter(low, options).emit(roots);
}

}  // namespace quire::formula

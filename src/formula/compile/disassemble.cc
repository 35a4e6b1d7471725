// Names of opcodes and of operands' locations. Formula layer.
#include "formula/compile/disassemble.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::formula {

using kernels::TileClass;
using kernels::TileInstruction;
using kernels::TileOp;
using kernels::TileOperand;
using kernels::TileProgram;
using kernels::TileType;

namespace {

// In the order of TileOp.
// clang-format off
constexpr std::string_view kNames[] = {
    /* floats */ "copy",
#define QUIRE_FLOAT_OP(name, text, ...) text,
#define QUIRE_NUMBER_OP(name, text, ...) text,
#define QUIRE_FLOAT_FUNCTION(name, function, ...) #function,
#include "quire/op_table.inc"
    "softcap",
    /* int32 */
#define QUIRE_INT_OP(name, text, ...) text,
#define QUIRE_NUMBER_OP(name, text, ...) text,
#include "quire/op_table.inc"
    /* int64 */
#define QUIRE_INT_OP(name, text, ...) text,
#define QUIRE_NUMBER_OP(name, text, ...) text,
#include "quire/op_table.inc"
    "shift_left", "shift_right", "pow",
    /* conversions */ "to_float", "to_float", "to_int", "widen", "narrow", "to_int",
    /* comparisons to bits */ "lt", "le", "eq", "ne", "lt", "le", "eq", "ne", "lt", "le", "eq",
    "ne",
    /* bits */ "and", "or", "xor", "not", "expand rows", "expand diagonals",
    /* c ? a : b */ "select", "select", "select",
    /* leaves */ "const", "const", "const", "const", "start", "list",
    /* affine */ "iota", "iota",
    /* checks */ "check index", "check index", "check divisor", "check divisor",
    /* buffers */ "gather", "gather", "gather", "gather", "gather", "gather", "strided",
    "strided", "strided", "sum", "sum", "dot", "dot",
};
// clang-format on
static_assert(std::size(kNames) == kernels::kTileOpCount);

constexpr std::array<std::string_view, kernels::kTileClassCount> kPhases = {
    "uniform", "lane", "row", "diagonal", "element"};
constexpr std::array<std::string_view, kernels::kCoordCount> kCoords = {"b", "h", "q_idx",
                                                                        "kv_idx"};

class Listing {
 public:
  explicit Listing(const TileProgram& program) : program_(program) {}
  std::string text();

 private:
  std::string place(const TileOperand& operand);
  std::string line(const TileInstruction& in);
  std::string what(const TileInstruction& in);
  std::string constant(const TileInstruction& in) const;
  std::string_view type_name(TileType type) const;

  const TileProgram& program_;
  std::map<std::pair<int, std::int32_t>, int> indices_;  // (class, offset) to number
  std::array<int, kernels::kTileClassCount> next_ = {};
};

std::string_view Listing::type_name(TileType type) const {
  switch (type) {
    case TileType::kFloat:
      return program_.f64 ? "f64" : "f32";
    case TileType::kInt32:
      return "i32";
    case TileType::kInt64:
      return "i64";
    case TileType::kMask:
      return "bits";
  }
  return "?";
}

std::string Listing::place(const TileOperand& operand) {
  if (operand.space == TileOperand::Space::kScore) return "score";
  const int kind = static_cast<int>(operand.value_class);
  const auto [at, is_new] = indices_.try_emplace({kind, operand.offset}, next_[kind]);
  if (is_new) ++next_[kind];
  return fmt::format("{}{}", "ulrdt"[kind], at -> second);
}

std::string Listing::constant(const TileInstruction& in) const {
  if (in.op == TileOp::kConstM) return in.imm != 0 ? "true" : "false";
  if (in.op != TileOp::kConstF) return std::to_string(in.imm);
  if (program_.f64) return fmt::format("{}", std::bit_cast<double>(in.imm));
  return fmt::format("{}", std::bit_cast<float>(static_cast<std::int32_t>(in.imm)));
}

std::string Listing::what(const TileInstruction& in) {
  const std::string_view name = kNames[static_cast<std::size_t>(in.op)];
  const auto buffer = [&](int i) { return program_.buffers[i].name; };
  switch (in.op) {
    case TileOp::kConstF:
    case TileOp::kConstI:
    case TileOp::kConstL:
    case TileOp::kConstM:
      return fmt::format("{} {}", name, constant(in));
    case TileOp::kStart:
    case TileOp::kList:
      return fmt::format("{} of {}", name, kCoords[in.imm]);
    case TileOp::kIotaI:
    case TileOp::kIotaL:
      return fmt::format("{} {}, {:+} a lane, {:+} a row", name, place(in.a), in.lane_step,
                         in.row_step);
    case TileOp::kStridedF:
    case TileOp::kStridedI:
    case TileOp::kStridedL:
      return fmt::format("{} {} at {}, {:+} a lane, {:+} a row", name, buffer(in.buffer),
                         place(in.a), in.lane_step, in.row_step);
    case TileOp::kIndexI:
    case TileOp::kIndexL:
      return fmt::format("{} {} of {}", name, place(in.a), in.imm);
    case TileOp::kSumF:
    case TileOp::kSumL:
      return fmt::format("{} {} at {}", name, buffer(in.buffer), place(in.a));
    case TileOp::kDotF:
    case TileOp::kDotL:
      return fmt::format("{} {} at {}, {} at {}", name, buffer(in.buffer), place(in.a),
                         buffer(in.other_buffer), place(in.b));
    default:
      break;
  }
  if (in.op >= TileOp::kGatherIntF && in.op <= TileOp::kGatherLongL)
    return fmt::format("{} {} at {}", name, buffer(in.buffer), place(in.a));
  std::string text = fmt::format("{} {}", name, place(in.a));
  if (in.b.used) text += ", " + place(in.b);
  if (in.c.used) text += " by " + place(in.c);
  return text;
}

std::string Listing::line(const TileInstruction& in) {
  const std::string right = what(in);  // first: arguments are numbered before results
  const bool score = in.out.space == TileOperand::Space::kScore;
  const std::string left =
      score ? "score" : fmt::format("{}.{}", place(in.out), type_name(in.out.type));
  std::string text = fmt::format("{:<8} = {}", left, right);
  if (score)
    text += program_.has_mask
                ? fmt::format("   (hidden: -inf by {}; store; max)", place(program_.mask))
                : "   (store; max)";
  return text;
}

std::string Listing::text() {
  std::string lines;
  for (std::size_t phase = 0; phase < kPhases.size(); ++phase) {
    std::string_view head = kPhases[phase];
    if (phase + 1 == kPhases.size()) {  // once per tile, between the diagonals and the elements
      for (const TileInstruction& in : program_.expands)
        lines += fmt::format("  {:<9} {}\n", "", line(in));
    }
    for (const TileInstruction& in : program_.phases[phase]) {
      lines += fmt::format("  {:<9} {}\n", head, line(in));
      head = "";
    }
  }
  if (!program_.has_score && program_.has_mask)
    lines += fmt::format("  {:<9} {:<8} = {}\n", "result", "mask", place(program_.mask));
  lines += fmt::format(
      "  {} bytes of scratch a thread; {} rows at a time per element; checks of reads and "
      "divisions: {}\n",
      program_.scratch_bytes, program_.chunk_rows, program_.checks.size());
  return lines;
}

}  // namespace

std::string disassemble(const TileProgram& program) { return Listing(program).text(); }

}  // namespace quire::formula

// The table of spellings. Layer: formula.
#include "formula/text/op_names.h"

#include <array>
#include <utility>

#include "formula/type_rules.h"

namespace quire::formula {
namespace {

constexpr Spelling function(Op op, std::string_view name) {
  return {op, name, "", Precedence::kAtom};
}

constexpr std::array<Spelling, kOpCount> kSpellings = {{
    function(Op::kScore, "score"),
    function(Op::kBatch, "b"),
    function(Op::kHead, "h"),
    function(Op::kQIdx, "q_idx"),
    function(Op::kKvIdx, "kv_idx"),
    function(Op::kIntConst, "int constant"),
    function(Op::kFloatConst, "float constant"),
    function(Op::kBoolConst, "bool constant"),
    function(Op::kToInt, "int"),
    function(Op::kToFloat, "float"),
    function(Op::kToBool, "bool"),
    {Op::kNeg, "neg", "-", Precedence::kPrefix},
    function(Op::kAbs, "abs"),
    function(Op::kSign, "sign"),
    function(Op::kFloor, "floor"),
    function(Op::kCeil, "ceil"),
    function(Op::kRound, "round"),
    function(Op::kTrunc, "trunc"),
    {Op::kNot, "logical_not", "~", Precedence::kPrefix},
    {Op::kBitNot, "bitwise_not", "~", Precedence::kPrefix},
    function(Op::kExp, "exp"),
    function(Op::kExp2, "exp2"),
    function(Op::kExpm1, "expm1"),
    function(Op::kLog, "log"),
    function(Op::kLog2, "log2"),
    function(Op::kLog1p, "log1p"),
    function(Op::kSqrt, "sqrt"),
    function(Op::kRsqrt, "rsqrt"),
    function(Op::kSin, "sin"),
    function(Op::kCos, "cos"),
    function(Op::kTanh, "tanh"),
    function(Op::kSigmoid, "sigmoid"),
    function(Op::kErf, "erf"),
    function(Op::kRelu, "relu"),
    function(Op::kGelu, "gelu"),
    function(Op::kGeluTanh, "gelu_tanh"),
    function(Op::kSilu, "silu"),
    function(Op::kSoftplus, "softplus"),
    {Op::kAdd, "add", "+", Precedence::kSum},
    {Op::kSub, "sub", "-", Precedence::kSum},
    {Op::kMul, "mul", "*", Precedence::kProduct},
    {Op::kDiv, "true_div", "/", Precedence::kProduct},
    {Op::kFloorDiv, "floor_div", "//", Precedence::kProduct},
    {Op::kMod, "remainder", "%", Precedence::kProduct},
    {Op::kPow, "pow", "**", Precedence::kPower},
    function(Op::kMin, "minimum"),
    function(Op::kMax, "maximum"),
    {Op::kShl, "shift_left", "<<", Precedence::kShift},
    {Op::kShr, "shift_right", ">>", Precedence::kShift},
    {Op::kBitAnd, "bitwise_and", "&", Precedence::kBitAnd},
    {Op::kBitOr, "bitwise_or", "|", Precedence::kBitOr},
    {Op::kBitXor, "bitwise_xor", "^", Precedence::kBitXor},
    {Op::kAnd, "logical_and", "&", Precedence::kBitAnd},
    {Op::kOr, "logical_or", "|", Precedence::kBitOr},
    {Op::kXor, "logical_xor", "^", Precedence::kBitXor},
    {Op::kLt, "less", "<", Precedence::kCompare},
    {Op::kLe, "less_equal", "<=", Precedence::kCompare},
    {Op::kGt, "greater", ">", Precedence::kCompare},
    {Op::kGe, "greater_equal", ">=", Precedence::kCompare},
    {Op::kEq, "equal", "==", Precedence::kCompare},
    {Op::kNe, "not_equal", "!=", Precedence::kCompare},
    function(Op::kWhere, "where"),
    function(Op::kClamp, "clamp"),
    function(Op::kLoad, "load"),
    function(Op::kSum, "sum"),
    function(Op::kDot, "dot"),
}};

constexpr bool in_order() {
  for (int i = 0; i < kOpCount; ++i)
    if (static_cast<int>(kSpellings[static_cast<std::size_t>(i)].op) != i) return false;
  return true;
}
static_assert(in_order(), "kSpellings follows the order of Op");

constexpr std::array<std::pair<std::string_view, Op>, 4> kAliases = {
    {{"min", Op::kMin}, {"max", Op::kMax}, {"mod", Op::kMod}, {"floor_divide", Op::kFloorDiv}}};

}  // namespace

const Spelling& spelling(Op op) { return kSpellings[static_cast<std::size_t>(op)]; }

std::string_view display_name(Op op) {
  const Spelling& s = spelling(op);
  return s.symbol.empty() ? s.name : s.symbol;
}

std::optional<Op> find_function(std::string_view name) {
  for (const auto& [alias, op] : kAliases)
    if (alias == name) return op;
  for (const Spelling& s : kSpellings)
    if (s.op >= Op::kToInt && s.op <= Op::kNe && s.name == name) return s.op;
  return std::nullopt;
}

std::string_view type_name(ValueType type) {
  switch (type) {
    case ValueType::kInt:
      return "int";
    case ValueType::kFloat:
      return "float";
    case ValueType::kBool:
      return "bool";
  }
  return "?";
}

}  // namespace quire::formula

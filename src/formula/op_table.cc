// Looks operations up by name. Formula layer.
#include "formula/op_table.h"

#include <utility>

#include "formula/type_rules.h"

namespace quire::formula {
namespace {

constexpr std::array<std::pair<std::string_view, Op>, 4> kAliases = {
    {{"min", Op::kMin}, {"max", Op::kMax}, {"mod", Op::kMod}, {"floor_divide", Op::kFloorDiv}}};

}  // namespace

std::string_view display_name(Op op) {
  return op_info(op).symbol.empty() ? op_info(op).name : op_info(op).symbol;
}

std::optional<Op> find_function(std::string_view name) {
  for (const auto& [alias, op] : kAliases)
    if (alias == name) return op;
  for (const OpInfo& one : kOps) {
    const bool callable = (one.arity == 1 || one.arity == 2) && one.rule != TypeRule::kRead;
    if (callable && one.name == name) return one.op;
  }
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

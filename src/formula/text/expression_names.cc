// The part of the expression parser that handles names: constants, functions, buffers, sums and dot
// products. Formula layer.
#include <fmt/format.h>

#include <array>
#include <limits>
#include <span>

#include "formula/text/expression_parser.h"
#include "formula/text/names.h"
#include "formula/type_rules.h"
#include "quire/error.h"

namespace quire::formula {
// Returns true after a complete value, false if an argument or an index must follow.
bool ExpressionParser::name() {
  const Token name = tokens_.token();
  const Symbol* symbol = symbols_.find(name.text);
  if (symbol != nullptr && symbol->buffer != nullptr) return begin_slice(*symbol->buffer);
  if (symbol == nullptr) {
    if (const auto call = find_call(name.text)) {
      begin_call(*call);
      return false;
    }
  }
  const NodeId id =
      symbol != nullptr ? symbol->value : build(name.place, [&] { return constant(name); });
  if (id == kNoNode) fail_unknown(name);
  push_value(id, name.place);
  tokens_.advance();
  return true;
}

// An argument of the mod or a constant; otherwise kNoNode.
NodeId ExpressionParser::constant(const Token& name) const {
  if (const auto leaf = find_leaf(name.text)) return make_leaf(graph_, *leaf);
  if (name.text == "True" || name.text == "true") return make_bool(graph_, true);
  if (name.text == "False" || name.text == "false") return make_bool(graph_, false);
  if (name.text == "inf") return make_float(graph_, std::numeric_limits<double>::infinity());
  if (name.text == "nan") return make_float(graph_, std::numeric_limits<double>::quiet_NaN());
  return kNoNode;
}

void ExpressionParser::fail_unknown(const Token& name) const {
  if (name.is_word("and") || name.is_word("or")) tokens_.fail_expected("a value");
  const std::string_view nearest = symbols_.nearest(name.text);
  const std::string hint =
      nearest.empty() ? "" : fmt::format("; did you mean {}?", quoted(nearest));
  tokens_.fail(name.place, fmt::format("unknown name {}{}", quoted(name.text), hint));
}

void ExpressionParser::begin_call(Op op) {
  const Token name = tokens_.token();
  tokens_.advance();
  const Token& bracket = tokens_.token();
  if (!bracket.is("(")) {
    tokens_.fail(name.place,
                 fmt::format("{} is a function; write {}(...)", quoted(name.text), name.text));
  }
  push({.kind = op == Op::kSum || op == Op::kDot ? Kind::kReduce : Kind::kCall,
        .op = op,
        .name = name.text,
        .place = name.place,
        .bracket = bracket.place,
        .first_value = values_.size()});
  tokens_.advance();
}

void ExpressionParser::check_arity(const Frame& frame, std::size_t needs, std::size_t got) const {
  if (needs == got) return;
  tokens_.fail(frame.place, fmt::format("{} needs {} argument{}; got {}", quoted(frame.name), needs,
                                        needs == 1 ? "" : "s", got));
}

// Like make_binary, without the rewriting.
NodeId ExpressionParser::plain_power(NodeId a, NodeId b) const {
  const ValueType type = numeric_type(graph_[a].type, graph_[b].type);
  const std::array<NodeId, 2> args = {make_cast(graph_, a, type), make_cast(graph_, b, type)};
  return make_like(graph_, graph_, {.op = Op::kPow, .type = type}, args);
}

void ExpressionParser::end_call(const Frame& frame) {
  check_arity(frame, op_info(frame.op).arity, values_.size() - frame.first_value);
  const std::vector<NodeId> args = take_values(frame.first_value);
  const NodeId id = build(frame.place, [&] {
    if (frame.name == kPlainPower) return plain_power(args[0], args[1]);
    if (frame.op == Op::kWhere) return make_where(graph_, args[0], args[1], args[2]);
    if (frame.op == Op::kClamp) return make_clamp(graph_, args[0], args[1], args[2]);
    return args.size() == 1 ? make_unary(graph_, frame.op, args[0])
                            : make_binary(graph_, frame.op, args[0], args[1]);
  });
  push_value(id, frame.place);
}

// A buffer's name: returns true if it has no indices, false if indices must follow.
bool ExpressionParser::begin_slice(const Buffer& buffer) {
  const Token name = tokens_.token();
  tokens_.advance();
  const Token& bracket = tokens_.token();
  if (bracket.is("(")) {
    tokens_.fail(bracket.place,
                 fmt::format("{} is a buffer; write {}[...]", quoted(name.text), name.text));
  }
  if (!bracket.is("[")) {
    end_slice(buffer, values_.size(), name.place);
    return true;
  }
  push({.kind = Kind::kIndex,
        .place = name.place,
        .bracket = bracket.place,
        .first_value = values_.size(),
        .buffer = &buffer});
  tokens_.advance();
  return false;
}

void ExpressionParser::check_index(const Frame& frame) const {
  const Value& index = values_.back();
  if (graph_[index.id].type != ValueType::kFloat) return;
  tokens_.fail(index.place,
               fmt::format("an index of buffer {} must be an integer; got float",
                           quoted(frame.buffer->name())),
               ErrorKind::type);
}

// The indices are the values from `first` on. Gives an element, or an argument of the enclosing sum
// or dot.
void ExpressionParser::end_slice(const Buffer& buffer, std::size_t first, std::size_t place) {
  if (top_is(Kind::kReduce)) {
    Frame& reduction = frames_.back();
    if (reduction.slice_count == 0) reduction.split = values_.size() - first;
    if (reduction.slice_count < 2) reduction.slices[reduction.slice_count] = &buffer;
    ++reduction.slice_count;
    return;
  }
  const std::vector<NodeId> indices = take_values(first);
  push_value(build(place, [&] { return make_load(graph_, buffer, indices); }), place);
}

// An argument of sum or dot, which must be a buffer; the result is that of begin_slice.
bool ExpressionParser::reduction_argument() {
  const Token token = tokens_.token();
  const Frame& frame = frames_.back();
  if (token.is(")") && frame.slice_count == 0) return true;  // close() counts the arguments
  const Symbol* symbol = token.kind == Token::Kind::kName ? symbols_.find(token.text) : nullptr;
  if (symbol == nullptr || symbol->buffer == nullptr) {
    tokens_.fail(token.place,
                 fmt::format("{} needs {}; got {}", quoted(frame.name),
                             frame.op == Op::kSum ? "a buffer, as in sum(table[h])"
                                                  : "two buffers, as in dot(a[q_idx], b[kv_idx])",
                             describe(token)));
  }
  return begin_slice(*symbol->buffer);
}

void ExpressionParser::end_reduction(const Frame& frame) {
  check_arity(frame, op_info(frame.op).arity, frame.slice_count);
  const std::vector<NodeId> values = take_values(frame.first_value);
  const std::span<const NodeId> indices = values;
  const NodeId id = build(frame.place, [&] {
    if (frame.op == Op::kSum) return make_sum(graph_, *frame.slices[0], indices);
    return make_dot(graph_, *frame.slices[0], indices.first(frame.split), *frame.slices[1],
                    indices.subspan(frame.split));
  });
  push_value(id, frame.place);
}

}  // namespace quire::formula

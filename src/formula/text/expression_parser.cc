// The part of the expression parser that handles operators and brackets, by precedence with
// explicit stacks. Formula layer.
#include "formula/text/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "formula/text/parse.h"
#include "quire/error.h"

namespace quire::formula {
namespace {

struct Infix {
  std::string_view symbol;
  Op op;
  Precedence precedence;
};

// & | ^ are logic if both sides are bools: build.h decides by type.
constexpr std::array kInfix = std::to_array<Infix>({
    {"+", Op::kAdd, Precedence::kSum},
    {"-", Op::kSub, Precedence::kSum},
    {"*", Op::kMul, Precedence::kProduct},
    {"/", Op::kDiv, Precedence::kProduct},
    {"//", Op::kFloorDiv, Precedence::kProduct},
    {"%", Op::kMod, Precedence::kProduct},
    {"**", Op::kPow, Precedence::kPower},
    {"<", Op::kLt, Precedence::kCompare},
    {"<=", Op::kLe, Precedence::kCompare},
    {">", Op::kGt, Precedence::kCompare},
    {">=", Op::kGe, Precedence::kCompare},
    {"==", Op::kEq, Precedence::kCompare},
    {"!=", Op::kNe, Precedence::kCompare},
    {"&", Op::kBitAnd, Precedence::kBitAnd},
    {"|", Op::kBitOr, Precedence::kBitOr},
    {"^", Op::kBitXor, Precedence::kBitXor},
    {"<<", Op::kShl, Precedence::kShift},
    {">>", Op::kShr, Precedence::kShift},
    {"and", Op::kAnd, Precedence::kAnd},
    {"&&", Op::kAnd, Precedence::kAnd},
    {"or", Op::kOr, Precedence::kOr},
    {"||", Op::kOr, Precedence::kOr},
});

const Infix* find_infix(const Token& token) {
  if (token.kind != Token::Kind::kSymbol && token.kind != Token::Kind::kName) return nullptr;
  for (const Infix& infix : kInfix)
    if (infix.symbol == token.text) return &infix;
  return nullptr;
}

}  // namespace

NodeId ExpressionParser::read() {
  do {
    operand();
  } while (operators());
  const NodeId id = values_.back().id;
  values_.pop_back();
  return id;
}

// ---- The stacks.

void ExpressionParser::push(Frame frame) {
  if (frame.is_level() && ++depth_ > kMaxDepth)
    tokens_.fail(frame.place, fmt::format("nested deeper than {} levels", kMaxDepth));
  if (!frame.is_operator()) tokens_.open_bracket();
  frames_.push_back(frame);
}

ExpressionParser::Frame ExpressionParser::pop() {
  const Frame frame = frames_.back();
  frames_.pop_back();
  if (frame.is_level()) --depth_;
  if (!frame.is_operator()) tokens_.close_bracket();
  return frame;
}

std::vector<NodeId> ExpressionParser::take_values(std::size_t first) {
  std::vector<NodeId> ids;
  for (std::size_t i = first; i < values_.size(); ++i) ids.push_back(values_[i].id);
  values_.resize(first);
  return ids;
}

// Errors of build.h are reported at `place`.
NodeId ExpressionParser::build(std::size_t place, FunctionRef<NodeId()> make) const {
  try {
    return make();
  } catch (const Error& error) {
    std::string_view message = error.what();
    constexpr std::string_view kFrom = "[formula] ";
    if (message.starts_with(kFrom)) message.remove_prefix(kFrom.size());
    tokens_.fail(place, std::string(message), error.kind());
  }
}

// Applies the operator on top of the stack.
void ExpressionParser::reduce() {
  const Frame frame = pop();
  const Value b = values_.back();
  if (frame.kind == Kind::kPrefix) {
    const bool is_plus = frame.op == Op::kAdd;
    values_.back() = {
        is_plus ? b.id : build(frame.place, [&] { return make_unary(graph_, frame.op, b.id); }),
        frame.place};
    return;
  }
  values_.pop_back();
  Value& a = values_.back();
  a.id = build(frame.place, [&] { return make_binary(graph_, frame.op, a.id, b.id); });
}

// Applies the operators that bind the value before an infix operator more tightly than it does.
void ExpressionParser::reduce_above(Precedence precedence) {
  while (top_is_operator()) {
    const Precedence top = frames_.back().precedence;
    if (top < precedence) return;
    // ** groups to the right; comparisons do not group at all.
    if (top == precedence && (top == Precedence::kPower || top == Precedence::kCompare)) return;
    reduce();
  }
}

void ExpressionParser::reduce_all() {
  while (top_is_operator()) reduce();
}

// ---- Where a value is expected.

// Reads prefixes, opening brackets and the names before them up to the first complete value.
void ExpressionParser::operand() {
  for (;;) {
    if (top_is(Kind::kReduce)) {
      if (reduction_argument()) return;
      continue;
    }
    if (prefix()) continue;
    const Token token = tokens_.token();
    switch (token.kind) {
      case Token::Kind::kInt:
        return integer();
      case Token::Kind::kFloat:
        push_value(build(token.place, [&] { return make_float(graph_, token.real); }), token.place);
        return tokens_.advance();
      case Token::Kind::kName:
        if (name()) return;
        continue;
      default:
        break;
    }
    const bool is_empty_call =
        token.is(")") && top_is(Kind::kCall) && values_.size() == frames_.back().first_value;
    if (is_empty_call) return;  // close() counts the arguments
    if (!token.is("(")) tokens_.fail_expected("a value");
    push({.kind = Kind::kGroup,
          .place = token.place,
          .bracket = token.place,
          .first_value = values_.size()});
    tokens_.advance();
  }
}

bool ExpressionParser::prefix() {
  const Token& token = tokens_.token();
  const bool is_not = token.is("!") || token.is_word("not");
  if (!is_not && !token.is("-") && !token.is("+") && !token.is("~")) return false;
  // As in Python, which has no a + not b.
  if (is_not && top_is_operator() && frames_.back().precedence > Precedence::kNot) {
    tokens_.fail(token.place,
                 fmt::format("{} binds more weakly than the operator in front of it; put it in "
                             "parentheses",
                             quoted(token.text)));
  }
  push({.kind = Kind::kPrefix,
        .op = is_not          ? Op::kNot
              : token.is("-") ? Op::kNeg
              : token.is("~") ? Op::kBitNot
                              : Op::kAdd,
        .precedence = is_not ? Precedence::kNot : Precedence::kPrefix,
        .place = token.place});
  tokens_.advance();
  return true;
}

void ExpressionParser::integer() {
  const Token token = tokens_.token();
  constexpr std::uint64_t kLargest = std::numeric_limits<std::int64_t>::max();
  const bool is_negated = top_is(Kind::kPrefix) && frames_.back().op == Op::kNeg;
  if (token.integer > kLargest && (!is_negated || tokens_.following().is("**")))
    tokens_.fail(token.place, "number too large: an integer has 64 bits");
  // 2**63 wraps to the smallest integer, which the minus before it leaves unchanged.
  const std::int64_t value = token.integer;
  push_value(build(token.place, [&] { return make_int(graph_, value); }), token.place);
  tokens_.advance();
}

// ---- After a value.

// Reads closing brackets, then an operator or a comma: true. False at the end of the expression.
bool ExpressionParser::operators() {
  for (;;) {
    const Token& token = tokens_.token();
    if (const Infix* found = find_infix(token)) {
      infix(found->op, found->precedence);
      return true;
    }
    if (token.is(",")) {
      comma();
      return true;
    }
    if (token.is(")") || token.is("]")) {
      if (close()) return true;
      continue;
    }
    if (token.kind != Token::Kind::kEnd && token.kind != Token::Kind::kSeparator)
      fail_behind_value();
    reduce_all();
    if (!frames_.empty()) fail_unclosed();
    return false;
  }
}

void ExpressionParser::infix(Op op, Precedence precedence) {
  const Token token = tokens_.token();
  if (top_is(Kind::kReduce)) {
    tokens_.fail(token.place, fmt::format("{} adds over a buffer, not over a value; got {}",
                                          quoted(frames_.back().name), describe(token)));
  }
  reduce_above(precedence);
  if (precedence == Precedence::kCompare && top_is_operator() &&
      frames_.back().precedence == Precedence::kCompare) {
    tokens_.fail(token.place,
                 fmt::format("comparisons cannot be chained; write (a {} b) & (b {} c)",
                             op_info(frames_.back().op).symbol, token.text));
  }
  push({.kind = Kind::kInfix, .op = op, .precedence = precedence, .place = token.place});
  tokens_.advance();
}

void ExpressionParser::comma() {
  reduce_all();
  if (frames_.empty()) tokens_.fail_expected("an operator");
  if (top_is(Kind::kGroup)) tokens_.fail_expected("')'");
  if (top_is(Kind::kIndex)) check_index(frames_.back());
  tokens_.advance();
}

// Completes what the current closing bracket ends. True if a further index was opened, as in
// a[i][j].
bool ExpressionParser::close() {
  reduce_all();
  const Token token = tokens_.token();
  if (frames_.empty())
    tokens_.fail(token.place, fmt::format("{} without an opening one", quoted(token.text)));
  if (token.is("]") != top_is(Kind::kIndex)) fail_unclosed();
  if (top_is(Kind::kIndex)) check_index(frames_.back());
  const Frame frame = pop();
  tokens_.advance();
  switch (frame.kind) {
    case Kind::kCall:
      end_call(frame);
      break;
    case Kind::kReduce:
      end_reduction(frame);
      break;
    case Kind::kIndex:
      if (tokens_.token().is("[")) {
        push(frame);
        tokens_.advance();
        return true;
      }
      end_slice(*frame.buffer, frame.first_value, frame.place);
      break;
    default:
      values_.back().place = frame.place;
      break;
  }
  return false;
}

// ---- Errors.

void ExpressionParser::fail_behind_value() const {
  const Token& token = tokens_.token();
  if (token.is("="))
    tokens_.fail(token.place, "'=' only gives a name to a whole statement; to compare write ==");
  if (token.is("[")) tokens_.fail(token.place, "only a buffer can be indexed");
  if (token.is_word("if") || token.is_word("else")) {
    tokens_.fail(token.place,
                 fmt::format("there is no {}; write where(condition, a, b)", quoted(token.text)));
  }
  tokens_.fail_expected("an operator");
}

void ExpressionParser::fail_unclosed() const {
  const Frame& frame = frames_.back();
  tokens_.fail(tokens_.token().place,
               fmt::format("missing '{}' for the '{}' at {}; got {}",
                           frame.kind == Kind::kIndex ? ']' : ')', tokens_.text()[frame.bracket],
                           location(frame.bracket), describe(tokens_.token())));
}

// "column 7", or "line 2, column 7" in a text of several lines.
std::string ExpressionParser::location(std::size_t place) const {
  const std::string_view text = tokens_.text(), before = text.substr(0, place);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t column = place - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
  if (text.find('\n') == std::string_view::npos) return fmt::format("column {}", column);
  return fmt::format("line {}, column {}", line, column);
}

}  // namespace quire::formula

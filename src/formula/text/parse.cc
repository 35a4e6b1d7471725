// Parses the statements of the text form. Formula layer. The whole grammar:
//
//   text       = statement { (";" | newline) statement }     all but the last bind a name
//   statement  = [ name "=" ] expression
//   expression = operand { infix operand }
//   operand    = { "-" | "+" | "~" | "not" } primary
//   primary    = number | True | False | inf | nan | score | b | h | q_idx | kv_idx | name
//              | "(" expression ")"
//              | function "(" expression { "," expression } ")"
//              | slice | sum "(" slice ")" | dot "(" slice "," slice ")"
//   slice      = buffer { "[" expression { "," expression } "]" }
//
// Infix operators from weak to strong: or, and, not, comparisons, |, ^, &, << >>, + -, * / // %,
// prefixes, ** (which groups to the right). && || ! are and, or, not. names.h explains
// plain_pow(a, b).
#include "formula/text/parse.h"

#include <fmt/format.h>

#include "formula/graph.h"
#include "formula/text/expression_parser.h"
#include "formula/text/lexer.h"
#include "formula/text/names.h"
#include "formula/text/symbols.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::formula {
namespace {

class Parser {
 public:
  Parser(std::string_view text, const NamedBuffers& buffers) : symbols_(buffers), tokens_(text) {}

  Formula run() {
    NodeId last = kNoNode;       // the value of the last statement, unless it is a binding
    std::size_t last_place = 0;  // where that statement begins
    for (bool any = false;; any = true) {
      while (tokens_.token().kind == Token::Kind::kSeparator) tokens_.advance();
      if (tokens_.token().kind == Token::Kind::kEnd) {
        if (!any) fail(ErrorKind::value, "parse", "the text is empty");
        break;
      }
      if (last != kNoNode)
        tokens_.fail(last_place, "only the last value may stand without a name; write name = ...");
      last_place = tokens_.token().place;
      last = statement();
    }
    if (last == kNoNode)
      tokens_.fail(last_place, "the text ends with a binding; a value must follow");
    return Formula(graph_, last);
  }

 private:
  // The value, or kNoNode after a binding.
  NodeId statement() {
    const Token name = tokens_.token();
    if (name.kind != Token::Kind::kName || !tokens_.following().is("=")) return expression_.read();
    if (symbols_.find(name.text) != nullptr)
      tokens_.fail(name.place, fmt::format("the name {} is already in use", quoted(name.text)));
    if (!is_free_name(name.text)) {
      tokens_.fail(name.place,
                   fmt::format("{} cannot be given a value; the language uses that name",
                               quoted(name.text)));
    }
    tokens_.advance();
    tokens_.advance();
    symbols_.bind(name.text, expression_.read());
    return kNoNode;
  }

  Symbols symbols_;
  TokenStream tokens_;
  Graph graph_;
  ExpressionParser expression_{tokens_, symbols_, graph_};
};

}  // namespace

Formula parse(std::string_view text, const NamedBuffers& buffers) {
  if (text.size() > kMaxTextSize) {
    fail(ErrorKind::value, "parse", "a text may have at most {} bytes; got {}", kMaxTextSize,
         text.size());
  }
  return Parser(text, buffers).run();
}

}  // namespace quire::formula

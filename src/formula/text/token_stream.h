// The tokens of a text with one token in view, and the errors that point at them. Layer: formula.
#pragma once
#include <string>
#include <string_view>

#include "formula/text/lexer.h"
#include "formula/text/parse_error.h"
#include "quire/error.h"

namespace quire::formula {

class TokenStream {
 public:
  explicit TokenStream(std::string_view text)
      : text_(text), lexer_(text), token_(lexer_.next(false)) {}

  const Token& token() const { return token_; }
  /// The one behind token().
  Token following() const { return Lexer(lexer_).next(brackets_ > 0); }
  void advance() { token_ = lexer_.next(brackets_ > 0); }

  /// Around what stands in brackets, where the ends of lines are blanks. To be told before
  /// advance().
  void open_bracket() { ++brackets_; }
  void close_bracket() { --brackets_; }

  [[noreturn]] void fail(std::size_t place, const std::string& message,
                         ErrorKind kind = ErrorKind::value) const {
    fail_at(text_, place, kind, message);
  }
  /// "expected a value; got ')'", at token().
  [[noreturn]] void fail_expected(std::string_view what) const;

  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
  Lexer lexer_;
  Token token_;
  int brackets_ = 0;
};

/// "'name'", "the end of the text".
std::string describe(const Token& token);

}  // namespace quire::formula

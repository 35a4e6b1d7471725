// Lexer and TokenStream: split the text form into tokens, with one token of lookahead and errors
// that point at tokens. Meaning is left to the parser. Formula layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "formula/text/parse_error.h"
#include "quire/error.h"

namespace quire::formula {

struct Token {
  enum class Kind {
    kEnd,
    kSeparator,  // ; or, outside of brackets, the end of a line
    kName,       // identifiers, and the words and, or, not
    kInt,
    kFloat,
    kSymbol,
  };
  Kind kind = Kind::kEnd;
  std::string_view text;      // empty at the end
  std::size_t place = 0;      // of its first byte in the whole text
  std::uint64_t integer = 0;  // kInt: up to 2**63, which fits only after a minus
  double real = 0;            // kFloat

  bool is(std::string_view symbol) const { return kind == Kind::kSymbol && text == symbol; }
  bool is_word(std::string_view word) const { return kind == Kind::kName && text == word; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  /// The next token. Inside brackets, line ends are blanks. Throws Error for a character or a
  /// number that cannot be read.
  Token next(bool in_brackets);

 private:
  Token number();
  Token hexadecimal();
  void digits();
  Token integer(std::size_t begin, int base);
  Token real(std::size_t begin);
  char peek(std::size_t ahead = 0) const {
    return place_ + ahead < text_.size() ? text_[place_ + ahead] : '\0';
  }
  Token token(Token::Kind kind, std::size_t begin) const {
    return {.kind = kind, .text = text_.substr(begin, place_ - begin), .place = begin};
  }

  std::string_view text_;
  std::size_t place_ = 0;
};

class TokenStream {
 public:
  explicit TokenStream(std::string_view text)
      : text_(text), lexer_(text), token_(lexer_.next(false)) {}

  const Token& token() const { return token_; }
  /// The token after token().
  Token following() const { return Lexer(lexer_).next(brackets_ > 0); }
  void advance() { token_ = lexer_.next(brackets_ > 0); }

  /// Mark the inside of brackets, where line ends are blanks. Call before
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

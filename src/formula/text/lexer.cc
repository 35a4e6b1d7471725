// Scanning of numbers, names and symbols; errors that point at tokens. Formula layer.
#include "formula/text/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <system_error>

#include "formula/text/parse_error.h"

namespace quire::formula {
namespace {

// Longer ones first, so that the first match is the right one.
constexpr std::array<std::string_view, 28> kSymbols = {
    "**", "//", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+", "-", "*", "/",
    "%",  "<",  ">",  "=",  "!",  "&",  "|",  "^",  "~",  "(",  ")", "[", "]", ","};

constexpr std::uint64_t kMinusMin = std::uint64_t{1} << 63;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

std::string without_underscores(std::string_view text) {
  std::string digits(text);
  std::erase(digits, '_');
  return digits;
}

// Whether a decimal number that no double holds is too large (and not too small).
bool is_large(std::string_view number) {
  const std::size_t e = std::min(number.find_first_of("eE"), number.size());
  const std::string_view mantissa = number.substr(0, e);
  std::int64_t exponent = 0;
  if (e < number.size()) {
    const bool negative = number[e + 1] == '-';
    for (const char c : number.substr(e + 1))
      if (is_digit(c) && exponent < (std::int64_t{1} << 40)) exponent = 10 * exponent + (c - '0');
    if (negative) exponent = -exponent;
  }
  // The position of the first non-zero digit, relative to the decimal point.
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  const std::size_t first = std::min(mantissa.find_first_of("123456789"), mantissa.size());
  return static_cast<std::int64_t>(point) - static_cast<std::int64_t>(first) + exponent > 0;
}

}  // namespace

Token Lexer::next(bool in_brackets) {
  const auto is_blank = [&](char c) {
    return c == ' ' || c == '\t' || c == '\r' || (c == '\n' && in_brackets);
  };
  while (place_ < text_.size() && is_blank(text_[place_])) ++place_;
  const std::size_t begin = place_;
  if (begin == text_.size()) return token(Token::Kind::kEnd, begin);
  const char c = text_[begin];
  if (is_digit(c) || (c == '.' && is_digit(peek(1)))) return number();
  if (is_letter(c)) {
    while (is_letter(peek()) || is_digit(peek())) ++place_;
    return token(Token::Kind::kName, begin);
  }
  if (c == ';' || c == '\n') {
    ++place_;
    return token(Token::Kind::kSeparator, begin);
  }
  for (const std::string_view symbol : kSymbols) {
    if (!text_.substr(begin).starts_with(symbol)) continue;
    place_ += symbol.size();
    return token(Token::Kind::kSymbol, begin);
  }
  fail_at(text_, begin, ErrorKind::value, "unexpected " + describe_character(text_, begin));
}

// Digits with single underscores between them.
void Lexer::digits() {
  while (is_digit(peek()) || (peek() == '_' && is_digit(peek(1)))) ++place_;
}

Token Lexer::number() {
  const std::size_t begin = place_;
  if (peek() == '0' && (peek(1) == 'x' || peek(1) == 'X')) return hexadecimal();
  digits();
  bool is_real = false;
  if (peek() == '.') {
    is_real = true;
    ++place_;
    if (is_digit(peek())) digits();
  }
  if (peek() == 'e' || peek() == 'E') {
    const std::size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
    if (is_digit(peek(1 + sign))) {
      is_real = true;
      place_ += 1 + sign;
      digits();
    }
  }
  if (is_letter(peek()) || (peek() == '.' && is_real))
    fail_at(text_, place_, ErrorKind::value,
            "unexpected " + describe_character(text_, place_) + " in a number");
  return is_real ? real(begin) : integer(begin, 10);
}

Token Lexer::hexadecimal() {
  const std::size_t begin = place_;
  place_ += 2;
  if (!is_hex_digit(peek()))
    fail_at(text_, place_, ErrorKind::value, "expected a digit after '0x'");
  while (is_hex_digit(peek()) || (peek() == '_' && is_hex_digit(peek(1)))) ++place_;
  if (is_letter(peek()))
    fail_at(text_, place_, ErrorKind::value,
            "unexpected " + describe_character(text_, place_) + " in a number");
  return integer(begin, 16);
}

Token Lexer::integer(std::size_t begin, int base) {
  Token result = token(Token::Kind::kInt, begin);
  const std::string digits = without_underscores(result.text.substr(base == 16 ? 2 : 0));
  // Python rejects 010, because C reads it as 8.
  if (base == 10 && digits.size() > 1 && digits[0] == '0' &&
      digits.find_first_not_of('0') != std::string::npos)
    fail_at(text_, begin, ErrorKind::value, "an integer may not begin with 0");
  const auto [end, status] =
      std::from_chars(digits.data(), digits.data() + digits.size(), result.integer, base);
  if (status != std::errc() || result.integer > kMinusMin)
    fail_at(text_, begin, ErrorKind::value, "number too large: an integer has 64 bits");
  return result;
}

Token Lexer::real(std::size_t begin) {
  Token result = token(Token::Kind::kFloat, begin);
  const std::string digits = without_underscores(result.text);
  const auto [end, status] =
      std::from_chars(digits.data(), digits.data() + digits.size(), result.real);
  if (status == std::errc::result_out_of_range) {
    if (is_large(digits))
      fail_at(text_, begin, ErrorKind::value,
              "number too large for a float; write inf if that is meant");
    result.real = 0;
  }
  return result;
}

std::string describe(const Token& token) {
  if (token.kind == Token::Kind::kEnd) return "the end of the text";
  if (token.text == "\n") return "the end of the line";
  return quoted(token.text);
}

void TokenStream::fail_expected(std::string_view what) const {
  fail(token_.place, fmt::format("expected {}; got {}", what, describe(token_)));
}

}  // namespace quire::formula

// Errors that point at tokens. Layer: formula.
#include "formula/text/token_stream.h"

#include <fmt/format.h>

namespace quire::formula {

std::string describe(const Token& token) {
  if (token.kind == Token::Kind::kEnd) return "the end of the text";
  if (token.text == "\n") return "the end of the line";
  return quoted(token.text);
}

void TokenStream::fail_expected(std::string_view what) const {
  fail(token_.place, fmt::format("expected {}; got {}", what, describe(token_)));
}

}  // namespace quire::formula

// The parser's errors, by their whole text: message, line and caret.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "quire/error.h"
#include "quire/formula.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

const Buffer kSlopes(std::vector<float>{1, 2, 3});
const Buffer kDoc(std::vector<std::int32_t>{0, 0, 1, 1});
const Buffer kTable(Tensor({3, 4}, DType::f32));
const Buffer kGate(Tensor({}, DType::f32));
const NamedBuffers kBuffers = {
    {"slopes", kSlopes}, {"doc", kDoc}, {"table", kTable}, {"gate", kGate}};

void expect_parse_error(const std::string& text, const std::string& error,
                        ErrorKind kind = ErrorKind::value) {
  testing::expect_error(kind, "[parse] " + error, [&] { Formula::parse(text, kBuffers); });
}

TEST(ParseError, Names) {
  expect_parse_error("score + slope[h] * 2",
                     "unknown name 'slope'; did you mean 'slopes'?\n"
                     "  score + slope[h] * 2\n"
                     "          ^");
  expect_parse_error("q >= kv_idx", "unknown name 'q'; did you mean 'q_idx'?\n  q >= kv_idx\n  ^");
  expect_parse_error("sigmod(score)",
                     "unknown name 'sigmod'; did you mean 'sigmoid'?\n  sigmod(score)\n  ^");
  expect_parse_error("dcoument + 1", "unknown name 'dcoument'\n  dcoument + 1\n  ^");
  expect_parse_error(
      "dist = b; 1 + dits",
      "unknown name 'dits'; did you mean 'dist'?\n  dist = b; 1 + dits\n                ^");
  expect_parse_error("1 + tanh", "'tanh' is a function; write tanh(...)\n  1 + tanh\n      ^");
  expect_parse_error("doc(h)", "'doc' is a buffer; write doc[...]\n  doc(h)\n     ^");
  expect_parse_error("1 + or", "expected a value; got 'or'\n  1 + or\n      ^");
  expect_parse_error(std::string(60, 'x'),
                     "unknown name 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'\n  " +
                         std::string(60, 'x') + "\n  ^");
}

TEST(ParseError, Characters) {
  expect_parse_error("score $ 2", "unexpected character '$'\n  score $ 2\n        ^");
  expect_parse_error("q_idx \xe2\x89\xa5 kv_idx",
                     "unexpected character U+2265\n  q_idx ? kv_idx\n        ^");
  expect_parse_error("1 + (\xc3\xa4 + 2)", "unexpected character U+00E4\n  1 + (? + 2)\n       ^");
  expect_parse_error("1 +\xff 2", "unexpected byte 0xff\n  1 +? 2\n     ^");
  expect_parse_error("1 +\t\x1b[31m", "unexpected character U+001B\n  1 + ?[31m\n      ^");
  expect_parse_error(std::string("1 \0 2", 5), "unexpected character U+0000\n  1 ? 2\n    ^");
  expect_parse_error("1 # one", "unexpected character '#'\n  1 # one\n    ^");
}

TEST(ParseError, Numbers) {
  expect_parse_error(
      "1 + 99999999999999999999",
      "number too large: an integer has 64 bits\n  1 + 99999999999999999999\n      ^");
  expect_parse_error("9223372036854775808",
                     "number too large: an integer has 64 bits\n  9223372036854775808\n  ^");
  expect_parse_error("+9223372036854775808",
                     "number too large: an integer has 64 bits\n  +9223372036854775808\n   ^");
  expect_parse_error("-9223372036854775808 ** 2",
                     "number too large: an integer has 64 bits\n  -9223372036854775808 ** 2\n   ^");
  expect_parse_error("-9223372036854775809",
                     "number too large: an integer has 64 bits\n  -9223372036854775809\n   ^");
  expect_parse_error("0xffffffffffffffff",
                     "number too large: an integer has 64 bits\n  0xffffffffffffffff\n  ^");
  expect_parse_error("1e999",
                     "number too large for a float; write inf if that is meant\n  1e999\n  ^");
  expect_parse_error("1" + std::string(400, '0') + "e-10",
                     "number too large for a float; write inf if that is meant\n  1" +
                         std::string(71, '0') + "...\n  ^");
  expect_parse_error("0x", "expected a digit after '0x'\n  0x\n    ^");
  expect_parse_error("007", "an integer may not begin with 0\n  007\n  ^");
  expect_parse_error("2x", "unexpected character 'x' in a number\n  2x\n   ^");
  expect_parse_error("1__0", "unexpected character '_' in a number\n  1__0\n   ^");
  expect_parse_error("1.2.3", "unexpected character '.' in a number\n  1.2.3\n     ^");
  expect_parse_error("1e+", "unexpected character 'e' in a number\n  1e+\n   ^");
}

TEST(ParseError, Arity) {
  expect_parse_error("1 + tanh()", "'tanh' needs 1 argument; got 0\n  1 + tanh()\n      ^");
  expect_parse_error("tanh(1, 2)", "'tanh' needs 1 argument; got 2\n  tanh(1, 2)\n  ^");
  expect_parse_error("min(1, 2, 3)", "'min' needs 2 arguments; got 3\n  min(1, 2, 3)\n  ^");
  expect_parse_error("where(b, 1)", "'where' needs 3 arguments; got 2\n  where(b, 1)\n  ^");
  expect_parse_error("clamp(b)", "'clamp' needs 3 arguments; got 1\n  clamp(b)\n  ^");
  expect_parse_error("sum()", "'sum' needs 1 argument; got 0\n  sum()\n  ^");
  expect_parse_error("dot(slopes)", "'dot' needs 2 arguments; got 1\n  dot(slopes)\n  ^");
  expect_parse_error("dot(slopes, slopes, slopes)",
                     "'dot' needs 2 arguments; got 3\n  dot(slopes, slopes, slopes)\n  ^");
}

TEST(ParseError, Brackets) {
  expect_parse_error(
      "2 * (score",
      "missing ')' for the '(' at column 5; got the end of the text\n  2 * (score\n            ^");
  expect_parse_error(
      "tanh(score",
      "missing ')' for the '(' at column 5; got the end of the text\n  tanh(score\n            ^");
  expect_parse_error(
      "doc[h", "missing ']' for the '[' at column 4; got the end of the text\n  doc[h\n       ^");
  expect_parse_error("(score]",
                     "missing ')' for the '(' at column 1; got ']'\n  (score]\n        ^");
  expect_parse_error("doc[h)", "missing ']' for the '[' at column 4; got ')'\n  doc[h)\n       ^");
  expect_parse_error("a = (b; a",
                     "missing ')' for the '(' at column 5; got ';'\n  a = (b; a\n        ^");
  expect_parse_error("1\n+ (2",
                     "only the last value may stand without a name; write name = ...\n  1\n  ^");
  expect_parse_error(
      "x = 1\nx + (2\n* 3",
      "missing ')' for the '(' at line 2, column 5; got the end of the text\n  * 3\n     ^");
  expect_parse_error("score)", "')' without an opening one\n  score)\n       ^");
  expect_parse_error("()", "expected a value; got ')'\n  ()\n   ^");
  expect_parse_error("(1, 2)", "expected ')'; got ','\n  (1, 2)\n    ^");
}

TEST(ParseError, Structure) {
  expect_parse_error("", "the text is empty");
  expect_parse_error(" \n ; \t", "the text is empty");
  expect_parse_error("score score", "expected an operator; got 'score'\n  score score\n        ^");
  expect_parse_error("score 2.5", "expected an operator; got '2.5'\n  score 2.5\n        ^");
  expect_parse_error("score +", "expected a value; got the end of the text\n  score +\n         ^");
  expect_parse_error("score +\n1",
                     "expected a value; got the end of the line\n  score +\n         ^");
  expect_parse_error("* score", "expected a value; got '*'\n  * score\n  ^");
  expect_parse_error("1, 2", "expected an operator; got ','\n  1, 2\n   ^");
  expect_parse_error("tanh(1,)", "expected a value; got ')'\n  tanh(1,)\n         ^");
  expect_parse_error("1 if b else 2",
                     "there is no 'if'; write where(condition, a, b)\n  1 if b else 2\n    ^");
  expect_parse_error(
      "(b = 2)",
      "'=' only gives a name to a whole statement; to compare write ==\n  (b = 2)\n     ^");
  expect_parse_error("q_idx < kv_idx <= 3",
                     "comparisons cannot be chained; write (a < b) & (b <= c)\n  q_idx < kv_idx <= "
                     "3\n                 ^");
  expect_parse_error("b == h + 1 == q_idx",
                     "comparisons cannot be chained; write (a == b) & (b == c)\n  b == h + 1 == "
                     "q_idx\n             ^");
  expect_parse_error("b & not h",
                     "'not' binds more weakly than the operator in front of it; put it in "
                     "parentheses\n  b & not h\n      ^");
}

TEST(ParseError, Bindings) {
  expect_parse_error("x = 3", "the text ends with a binding; a value must follow\n  x = 3\n  ^");
  expect_parse_error("x = 1; x = 2; x",
                     "the name 'x' is already in use\n  x = 1; x = 2; x\n         ^");
  expect_parse_error("doc = 1; 2", "the name 'doc' is already in use\n  doc = 1; 2\n  ^");
  expect_parse_error(
      "score = 1; 2",
      "'score' cannot be given a value; the language uses that name\n  score = 1; 2\n  ^");
  expect_parse_error(
      "max = 1; 2",
      "'max' cannot be given a value; the language uses that name\n  max = 1; 2\n  ^");
  expect_parse_error(
      "inf = 1; 2",
      "'inf' cannot be given a value; the language uses that name\n  inf = 1; 2\n  ^");
  expect_parse_error("x = x + 1; x", "unknown name 'x'\n  x = x + 1; x\n      ^");
  expect_parse_error("1; 2",
                     "only the last value may stand without a name; write name = ...\n  1; 2\n  ^");
}

TEST(ParseError, Types) {
  expect_parse_error("1 + (score << 2)",
                     "'<<' needs integers; got float and int\n  1 + (score << 2)\n             ^",
                     ErrorKind::type);
  expect_parse_error("score & True",
                     "'&' needs integers or bools; got float and bool\n  score & True\n        ^",
                     ErrorKind::type);
  expect_parse_error("b + ~score",
                     "'~' needs an integer or a bool; got float\n  b + ~score\n      ^",
                     ErrorKind::type);
  expect_parse_error("table[h, 1 + score]",
                     "an index of buffer 'table' must be an integer; got float\n  table[h, 1 + "
                     "score]\n           ^",
                     ErrorKind::type);
  expect_parse_error(
      "doc[(score)]",
      "an index of buffer 'doc' must be an integer; got float\n  doc[(score)]\n      ^",
      ErrorKind::type);
}

TEST(ParseError, Ranks) {
  expect_parse_error("1 + table[h]",
                     "buffer 'table' has rank 2 (shape [3, 4]) and needs 2 indices; got 1\n  1 + "
                     "table[h]\n      ^");
  expect_parse_error(
      "table", "buffer 'table' has rank 2 (shape [3, 4]) and needs 2 indices; got 0\n  table\n  ^");
  expect_parse_error(
      "doc[b][h]",
      "buffer 'doc' has rank 1 (shape [4]) and needs 1 indices; got 2\n  doc[b][h]\n  ^");
  expect_parse_error(
      "gate[0]", "buffer 'gate' has rank 0 (shape []) and needs 0 indices; got 1\n  gate[0]\n  ^");
  expect_parse_error("score[0]", "only a buffer can be indexed\n  score[0]\n       ^");
  expect_parse_error("sum(doc[h])",
                     "'sum' needs a buffer with axes left to add over; buffer 'doc' has shape [4] "
                     "and got 1 indices\n  sum(doc[h])\n  ^");
  expect_parse_error("dot(table[h], slopes)",
                     "'dot' needs equal shapes; 'table' leaves [4] and 'slopes' leaves [3]\n  "
                     "dot(table[h], slopes)\n  ^");
  expect_parse_error(
      "sum(score)",
      "'sum' needs a buffer, as in sum(table[h]); got 'score'\n  sum(score)\n      ^");
  expect_parse_error("dot(table[h], 2)",
                     "'dot' needs two buffers, as in dot(a[q_idx], b[kv_idx]); got '2'\n  "
                     "dot(table[h], 2)\n                ^");
  expect_parse_error(
      "sum(table[h] * 2)",
      "'sum' adds over a buffer, not over a value; got '*'\n  sum(table[h] * 2)\n               ^");
}

TEST(ParseError, BufferNames) {
  const auto expect = [](const NamedBuffers& buffers, const std::string& error) {
    testing::expect_error(ErrorKind::value, error, [&] { Formula::parse("1", buffers); });
  };
  expect({{"a", kDoc}, {"a", kDoc}}, "[parse] two buffers are called 'a'");
  expect({{"tanh", kDoc}},
         "[parse] a buffer may not be called 'tanh'; the language uses that name");
  expect({{"b", kDoc}}, "[parse] a buffer may not be called 'b'; the language uses that name");
  expect({{"True", kDoc}},
         "[parse] a buffer may not be called 'True'; the language uses that name");
  expect({{"", kDoc}}, "[parse] a buffer's name must be an identifier; got ''");
  expect({{"a-b", kDoc}}, "[parse] a buffer's name must be an identifier; got 'a-b'");
  expect({{"2\n\xc3\xa4", kDoc}},
         "[parse] a buffer's name must be an identifier; got '2"
         "???"
         "'");
}

TEST(ParseError, LongLinesAreCutAroundThePlace) {
  std::string left, right;
  for (int i = 0; i < 40; ++i) left += "score + ", right += " + score";
  const std::string shown_left = left.substr(left.size() - 48);
  expect_parse_error(left + "$", "unexpected character '$'\n  ..." + left.substr(left.size() - 71) +
                                     "$\n  " + std::string(74, ' ') + "^");
  expect_parse_error("$" + right,
                     "unexpected character '$'\n  $" + right.substr(0, 71) + "...\n  ^");
  expect_parse_error(left + "$" + right, "unexpected character '$'\n  ..." + shown_left + "$" +
                                             right.substr(0, 23) + "...\n  " +
                                             std::string(51, ' ') + "^");
  // The line of the place alone, in characters rather than bytes.
  expect_parse_error("x = " + left + "1\n(\xc3\xa4)\n" + right,
                     "unexpected character U+00E4\n  (?)\n   ^");
}

}  // namespace
}  // namespace quire

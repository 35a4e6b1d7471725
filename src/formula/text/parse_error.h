// Errors of the text form: a message, the line it refers to and a caret under the position. Formula
// layer.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "quire/error.h"

namespace quire::formula {

/// Throws Error with
///   [parse] unknown name 'slope'; did you mean 'slopes'?
///     score + slope[h] * 2
///             ^
/// for the byte `place` of `text` (its size: the end of the text). Long lines are cut around the
/// place; bytes that a terminal might not show as one column become '?'.
[[noreturn]] void fail_at(std::string_view text, std::size_t place, ErrorKind kind,
                          const std::string& message);

/// 'name', cut if it is long, with '?' for bytes that are not printable ASCII.
std::string quoted(std::string_view name);

/// The character at `place`, for a message: 'x', U+2265 or byte 0xff.
std::string describe_character(std::string_view text, std::size_t place);

}  // namespace quire::formula

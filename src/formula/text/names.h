// The names of the text form: which are reserved by the language, which are free for buffers and
// bindings, and which one a misspelt name may have meant. Shared by parser and printer. Formula
// layer.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "quire/op.h"

namespace quire::formula {

/// ASCII letters, digits and _, not beginning with a digit.
bool is_identifier(std::string_view text);

/// Whether a buffer or a binding may have this name: an identifier that is not an argument of a
/// mod, a function, a constant or an operator.
bool is_free_name(std::string_view name);

/// The argument of a mod called `name`.
std::optional<Op> find_leaf(std::string_view name);

/// plain_pow(a, b) is always a power: in the common type of both, with any exponent. a ** b is read
/// as something else for some constant exponents (x ** 2 is x * x, i ** -1 is a float), so that the
/// power itself needs a name to be printed.
inline constexpr std::string_view kPlainPower = "plain_pow";

/// The operation with this function name, where, clamp, sum, dot and plain_pow included.
std::optional<Op> find_call(std::string_view name);

/// The closest of `free` and the language's names, by edits; empty if none is close.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> free);

}  // namespace quire::formula

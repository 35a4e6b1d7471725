// Converts the arguments of attention from Python, forward and backward. Python layer.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "view.h"

namespace quire::python {

/// None (empty), an int, or one int per batch entry. Throws ValueError "[where] ..." for an empty
/// list, TypeError for what is not an int.
std::vector<std::int64_t> q_begin_of(const char* where, nb::handle q_begin);

/// Whether it has a length: a list, a tuple, an array with axes. Scalars of NumPy and torch have
/// none.
bool has_length(nb::handle value);

/// "cpu" or None: there is no other device. Throws ValueError "[where] ..." for others.
void check_device(const char* where, nb::handle device);

/// An int of Python, NumPy or torch; else TypeError "[where] name must be an int; got ...".
std::int64_t whole_number(const char* where, const char* name, nb::handle value);

/// The same; `none` for None.
std::int64_t whole_number_or(const char* where, const char* name, nb::handle value,
                             std::int64_t none);

/// "float32", "f32", a dtype or scalar type of NumPy, ml_dtypes.bfloat16.
DType dtype_of_name(nb::handle dtype);

/// A float of Python, NumPy or torch, or an int. Throws TypeError "[where] name must be a number;
/// got ...".
double real_number(const char* where, const char* name, nb::handle value);

/// Throws TypeError "[where] name must be a str; got ..." for others.
std::string plain_text(const char* where, const char* name, nb::handle value);

/// TypeError "[where] name must be `wanted`; got <type> <value>".
[[noreturn]] void refuse_argument(const char* where, const char* name, const char* wanted,
                                  nb::handle value);

/// Adds a last constructor that rejects arguments which fit no other, with a TypeError that says
/// which and why (quire/argument_errors.py). `signature`: that of the real constructor, "def name(
/// x: int) -> None".
template <class T, class Class>
void refuse_other_arguments(Class& type, const char* name, const char* signature) {
  type.def(
      "__init__",
      [name, signature](T*, const nb::args& args, const nb::kwargs& kwargs) {
        nb::module_::import_("quire.argument_errors").attr("refuse")(name, signature, args, kwargs);
      },
      nb::sig("def __init__(self, *args: typing.NoReturn, **kwargs: typing.NoReturn) -> None"));
}

/// The view as writable memory. Throws Error "[where] name ..." if it is read-only.
TensorView writable(const char* where, const View& view, const char* name);

}  // namespace quire::python

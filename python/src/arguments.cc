// q_begin and the memory of results. Python layer.
#include "arguments.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <string>

#include "quire/error.h"

namespace quire::python {

std::vector<std::int64_t> q_begin_of(const char* where, nb::handle q_begin) {
  if (q_begin.is_none()) return {};
  if (PyLong_Check(q_begin.ptr())) return {nb::cast<std::int64_t>(q_begin)};
  std::vector<std::int64_t> all;
  for (const nb::handle one : q_begin) all.push_back(nb::cast<std::int64_t>(one));
  if (all.empty())
    throw nb::value_error(fmt::format("[{}] q_begin may not be empty", where).c_str());
  return all;
}

std::int64_t whole_number(const char* where, const char* name, nb::handle value) {
  if (PyIndex_Check(value.ptr()) != 0) {
    const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
    std::int64_t result = 0;
    if (number.is_valid() && nb::try_cast(number, result)) return result;
    PyErr_Clear();
  }
  throw nb::type_error(fmt::format("[{}] {} must be an int{}; got {} {}", where, name,
                                   PyIndex_Check(value.ptr()) != 0 ? " of 64 bits" : "",
                                   nb::cast<std::string>(nb::str(value.type().attr("__name__"))),
                                   nb::cast<std::string>(nb::repr(value)))
                           .c_str());
}

std::int64_t whole_number_or(const char* where, const char* name, nb::handle value,
                             std::int64_t none) {
  return value.is_none() ? none : whole_number(where, name, value);
}

DType dtype_of_name(nb::handle dtype) {
  if (nb::isinstance<nb::str>(dtype)) return parse_dtype(nb::cast<std::string>(dtype));
  // NumPy's dtypes and types; ml_dtypes.bfloat16 is a type.
  const nb::object numpy = nb::module_::import_("numpy");
  return parse_dtype(nb::cast<std::string>(numpy.attr("dtype")(dtype).attr("name")));
}

TensorView writable(const char* where, const View& view, const char* name) {
  if (view.is_read_only) {
    throw Error(ErrorKind::value,
                fmt::format("[{}] {} is read-only and cannot be written", where, name));
  }
  return view.tensor;
}

}  // namespace quire::python

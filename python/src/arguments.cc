// Converts numbers, texts and the memory of results, and reports what is wrong with them. Python
// layer.
#include "arguments.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <string>

#include "quire/error.h"

namespace quire::python {

std::vector<std::int64_t> q_begin_of(const char* where, nb::handle q_begin) {
  if (q_begin.is_none()) return {};
  if (!has_length(q_begin)) return {whole_number(where, "q_begin", q_begin)};
  std::vector<std::int64_t> all;
  for (const nb::handle one : q_begin) all.push_back(whole_number(where, "q_begin", one));
  if (all.empty())
    throw nb::value_error(fmt::format("[{}] q_begin may not be empty", where).c_str());
  return all;
}

bool has_length(nb::handle value) {
  if (PyObject_Size(value.ptr()) >= 0) return true;
  PyErr_Clear();
  return false;
}

void check_device(const char* where, nb::handle device) {
  if (device.is_none()) return;
  const std::string name = nb::cast<std::string>(nb::str(device));
  if (name == "cpu" || name == "cpu:0") return;
  throw Error(ErrorKind::value,
              fmt::format("[{}] there is no device but 'cpu'; got '{}'", where, name));
}

std::int64_t whole_number(const char* where, const char* name, nb::handle value) {
  if (PyIndex_Check(value.ptr()) != 0) {
    const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
    std::int64_t result = 0;
    if (number.is_valid() && nb::try_cast(number, result)) return result;
    PyErr_Clear();
  }
  refuse_argument(where, name, PyIndex_Check(value.ptr()) != 0 ? "an int of 64 bits" : "an int",
                  value);
}

double real_number(const char* where, const char* name, nb::handle value) {
  double result = 0;
  if (!nb::isinstance<nb::str>(value) && nb::try_cast(value, result)) return result;
  PyErr_Clear();
  refuse_argument(where, name, "a number", value);
}

std::string plain_text(const char* where, const char* name, nb::handle value) {
  if (!nb::isinstance<nb::str>(value)) refuse_argument(where, name, "a str", value);
  return nb::cast<std::string>(value);
}

void refuse_argument(const char* where, const char* name, const char* wanted, nb::handle value) {
  throw nb::type_error(fmt::format("[{}] {} must be {}; got {} {}", where, name, wanted,
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

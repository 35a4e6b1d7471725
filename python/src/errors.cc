// Raises quire::Error as the Python exception for its kind. Python layer.
#include <exception>

#include "quire/error.h"
#include "register.h"

namespace quire::python {
namespace {

PyObject* exception_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::value:
      return PyExc_ValueError;
    case ErrorKind::type:
      return PyExc_TypeError;
    case ErrorKind::index:
      return PyExc_IndexError;
    case ErrorKind::not_implemented:
      return PyExc_NotImplementedError;
    case ErrorKind::runtime:
      return PyExc_RuntimeError;
  }
  return PyExc_RuntimeError;
}

}  // namespace

void register_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      PyErr_SetString(exception_of(error.kind()), error.what());
    }
  });
}

}  // namespace quire::python

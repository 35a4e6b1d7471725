// References to Python objects that C++ may drop in any thread, with or without the GIL. Python
// layer.
#pragma once
#include <nanobind/nanobind.h>

#include <memory>

#include "gil.h"

namespace quire::python {

namespace nb = nanobind;

/// Keeps `object` alive. The last copy may be destroyed without the GIL, which is acquired then;
/// after the interpreter has ended nothing is done. Needs the GIL.
inline std::shared_ptr<const void> hold(nb::object object) {
  if (!object.is_valid() || object.is_none()) return nullptr;
  PyObject* const pointer = object.release().ptr();
  return {pointer, [](const void* held) {
            if (!nb::is_alive()) return;
            PyGILState_STATE state = {};
            take_gil([&] { state = PyGILState_Ensure(); });
            Py_DECREF(static_cast<PyObject*>(const_cast<void*>(held)));
            PyGILState_Release(state);
          }};
}

}  // namespace quire::python

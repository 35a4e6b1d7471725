// Registers context_parallel in the module _core. Python layer.
#pragma once
#include <nanobind/nanobind.h>

namespace quire::python {

void register_context_parallel(nanobind::module_& module);

}  // namespace quire::python

// Arguments of attention as Python gives them, forward and backward. Python layer.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "view.h"

namespace quire::python {

/// None: nothing given; an int; or as many as there are batch entries. Throws ValueError "[where]
/// ..." for none of them.
std::vector<std::int64_t> q_begin_of(const char* where, nb::handle q_begin);

/// An int of Python, NumPy or torch. TypeError "[where] name must be an int; got ..." for others.
std::int64_t whole_number(const char* where, const char* name, nb::handle value);

/// The same; `none` for None.
std::int64_t whole_number_or(const char* where, const char* name, nb::handle value,
                             std::int64_t none);

/// "float32", "f32", a dtype or scalar type of NumPy, ml_dtypes.bfloat16.
DType dtype_of_name(nb::handle dtype);

/// A view as something to write to. Throws Error "[where] name ..." if it is read-only.
TensorView writable(const char* where, const View& view, const char* name);

}  // namespace quire::python

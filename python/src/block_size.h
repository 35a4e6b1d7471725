// Converts BLOCK_SIZE from Python. Python layer.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

#include "arguments.h"
#include "quire/block_mask.h"
#include "view.h"

namespace quire::python {

/// One number for both, or a pair of numbers.
inline BlockSize block_size_of(nb::handle size) {
  if (PyIndex_Check(size.ptr()) != 0 && !has_length(size))
    return BlockSize(whole_number("BLOCK_SIZE", "the size", size));
  if (PySequence_Check(size.ptr()) == 0 || nb::isinstance<nb::str>(size))
    throw nb::type_error("[BLOCK_SIZE] must be an int or a pair of ints");
  if (PyObject_Size(size.ptr()) != 2)
    throw nb::value_error("[BLOCK_SIZE] must be a number or a pair of numbers");
  return BlockSize(whole_number("BLOCK_SIZE", "each of the pair", nb::object(size[0])),
                   whole_number("BLOCK_SIZE", "each of the pair", nb::object(size[1])));
}

}  // namespace quire::python

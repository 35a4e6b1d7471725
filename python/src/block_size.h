// BLOCK_SIZE as Python gives it. Python layer.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

#include "quire/block_mask.h"
#include "view.h"

namespace quire::python {

/// One number for both, or a pair of numbers.
inline BlockSize block_size_of(nb::handle size) {
  if (PyLong_Check(size.ptr())) return BlockSize(nb::cast<std::int64_t>(size));
  if (PySequence_Check(size.ptr()) == 0)
    throw nb::type_error("[BLOCK_SIZE] must be an int or a pair of ints");
  const Shape pair = shape_of(size);
  if (pair.rank() != 2) throw nb::value_error("[BLOCK_SIZE] must be a number or a pair of numbers");
  return BlockSize(pair[0], pair[1]);
}

}  // namespace quire::python

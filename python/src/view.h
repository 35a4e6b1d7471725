// View: a tensor that another object owns, with a reference to the owner. All arrays exchanged with
// Python pass through one; no elements are copied. Python layer.
#pragma once
#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "quire/buffer.h"
#include "quire/quantize.h"
#include "quire/tensor.h"

namespace quire::python {

namespace nb = nanobind;

struct View {
  TensorView tensor;
  nb::object owner;
  bool is_read_only = false;
  /// For codes: their format, and their scales, if any.
  KVFormat format = {};
  std::optional<TensorView> scales = {};
  nb::object scales_owner = {};

  KVView keys() const { return {tensor, scales ? *scales : TensorView(), format}; }
};

/// From a View, or anything with the buffer protocol, __dlpack__ or __array__; numbers and lists go
/// through NumPy, which copies them. Throws TypeError for anything else or a dtype that Quire does
/// not have, BufferError for memory that is not on the CPU.
View view_of(nb::handle array);

/// Of one of our tensors, which the view keeps alive.
View view_of(Tensor tensor);

/// The same for a result that may be missing: a View, or None.
nb::object optional_view(std::optional<Tensor> tensor);

/// Borrows, for the duration of a call, a tensor whose class has the exchange functions
/// of DLPack 1.3, in a tenth of the time. nullopt for other objects, memory that is not
/// on the CPU, and dtypes that Quire does not have. Ignores gradients and pending
/// negation.
std::optional<TensorView> borrow_tensor(nb::handle tensor);

/// Any object; shown as numpy.ndarray in signatures.
class Array : public nb::object {
  static bool is_any(const PyObject*) { return true; }

 public:
  NB_OBJECT_DEFAULT(Array, object, "numpy.ndarray", is_any)
};

/// The same memory as a NumPy array; bf16 as ml_dtypes.bfloat16 if that is installed, otherwise as
/// 2-byte voids.
Array to_numpy(View view);
inline Array to_numpy(Tensor tensor) { return to_numpy(view_of(std::move(tensor))); }

/// A captured buffer that keeps the view's owner alive.
Buffer buffer_of(const View& view, BufferOptions options);

/// The inverse: the buffer's memory, kept alive by the view.
View view_of(const Buffer& buffer);

/// For error texts.
std::string name_of_type(nb::handle object);

/// The numbers of a tuple or list, or of an object with a length and items.
Shape shape_of(nb::handle numbers);
/// The inverse.
nb::tuple to_tuple(const Shape& shape);

/// The dtype of a value of DTYPES. Throws ValueError for other numbers.
DType dtype_of_code(int code);

}  // namespace quire::python

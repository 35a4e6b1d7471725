// What torch says at a call beside its tensors' memory: which classes are plain, whether gradients
// are recorded, whether somebody looks on. Known after use_torch alone. Python layer.
#pragma once
#include <nanobind/nanobind.h>

#include <optional>

#include "view.h"

namespace quire::python {

/// Whether a call is nothing but memory and numbers: torch is known, and neither a mode, nor a
/// tracer, transform, autocast or forward mode is on.
bool is_torch_plain();

bool is_grad_enabled();

/// torch.get_num_threads(), or 0 where Quire was told to use fewer.
int torch_threads();

/// A tensor of a plain class with memory on the CPU that means what it says. Nothing for others.
std::optional<TensorView> plain_tensor(nb::handle tensor);

bool requires_grad(nb::handle tensor);

/// How often torch has counted an edit; nothing if it does not (inference mode).
std::optional<long> version_of(nb::handle tensor);

/// torch.empty_like.
nb::object new_like(nb::handle tensor);

/// The attribute, by a name that is kept; null, without an exception, if there is none.
nb::object attribute_or_null(nb::handle object, nb::handle name);

}  // namespace quire::python

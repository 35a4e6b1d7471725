// The state of torch besides tensors' memory: which classes are plain tensors, whether gradients
// are recorded, whether modes or tracers are active. Available only after use_torch. Python layer.
#pragma once
#include <nanobind/nanobind.h>

#include <optional>

#include "view.h"

namespace quire::python {

/// Whether a call is nothing but memory and numbers: torch is known, and no mode, tracer,
/// transform, autocast or forward mode is active.
bool is_torch_plain();

bool is_grad_enabled();

/// torch.get_num_threads(), or 0 if Quire was told to use fewer.
int torch_threads();

/// The memory of a plain CPU tensor without pending negation or conjugation. nullopt for others.
std::optional<TensorView> plain_tensor(nb::handle tensor);

bool requires_grad(nb::handle tensor);

/// How often torch has counted an edit; nullopt if it does not count (inference mode).
std::optional<long> version_of(nb::handle tensor);

/// torch.empty_like.
nb::object new_like(nb::handle tensor);

/// The attribute with this interned name; null, without an exception, if there is none.
nb::object attribute_or_null(nb::handle object, nb::handle name);

}  // namespace quire::python

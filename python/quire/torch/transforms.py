"""What torch.func transforms may do to attention: gradients (grad, vjp, jacrev) and torch.vmap, but not forward mode.

Under them autograd.py's function is called with wrapped tensors, which torch unwraps. vmap, which
torch.autograd.grad(is_grads_batched=True) and jacobian(vectorize=True) also use, computes entry by entry: each has the
bits it would have alone. Python layer, below everything else of quire.torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

_stack = torch._C._functorch.get_interpreter_stack
is_batched_by_autograd = torch._C._functorch.is_legacy_batchedtensor
_types = torch._C._functorch.TransformType
_SUPPORTED = (_types.Grad, _types.Vmap)


def is_forward_mode() -> bool:
    """Whether torch.autograd.forward_ad is active: autograd.py's function must then be called, which rejects its
    tensors."""
    return forward_ad._current_level >= 0


def refuse_transforms(function: str, *tensors: Any) -> None:
    """Raises NotImplementedError for forward mode and functionalize, and for nested tensors. For calls under a
    transform."""
    for interpreter in _stack() or ():
        if interpreter.key() not in _SUPPORTED:
            raise not_transformed(function, str(interpreter.key()).rpartition(".")[2])
    if any(isinstance(tensor, torch.Tensor) and tensor.is_nested for tensor in tensors):
        raise NotImplementedError(
            f"[{function}] nested tensors are not supported under torch.func; use autograd for them"
        )


def not_transformed(function: str, what: str) -> NotImplementedError:
    return NotImplementedError(
        f"[{function}] forward mode is not supported, torch.func.grad, vjp and torch.vmap are; got {what}"
    )


def without_wrappers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with memory inside the wrappers of torch.func.grad."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            raise NotImplementedError(
                "[flex_attention] torch.vmap may run over query, key and value, not over tensors that a mod reads"
            )
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def one_by_one(function: Callable, entries: int, in_dims: tuple, arguments: tuple) -> tuple:
    """What a vmap rule returns: results with the entries as their first axis, and where that axis is."""

    def entry(i: int) -> tuple:
        """Entry i; for an empty batch, one of zeros."""
        given = []
        for one, dim in zip(arguments, in_dims, strict=True):
            if isinstance(one, torch.Tensor) and dim is not None:
                one = one.select(dim, i) if entries else one.sum(dim)
            given.append(one)
        found = function(*given)
        return found if isinstance(found, tuple) else (found,)

    if not entries:
        results = tuple(one.new_empty((0, *one.shape)) for one in entry(0))
    else:
        results = tuple(map(torch.stack, zip(*(entry(i) for i in range(entries)), strict=True)))
    return results, (0,) * len(results)


def batched_by_autograd(function: Callable, arguments: tuple) -> tuple:
    """For torch.autograd's own vmap, which is_grads_batched and vectorize use and which Functions have no rules for:
    removes the axis, computes the entries, and adds the axis again."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    in_dims = tuple(0 if isinstance(one, torch.Tensor) and is_batched_by_autograd(one) else None for one in arguments)
    plain = tuple(
        one if dim is None else torch._remove_batch_dim(one, level, 1, 0)
        for one, dim in zip(arguments, in_dims, strict=True)
    )
    entries = next(one.size(0) for one, dim in zip(plain, in_dims, strict=True) if dim is not None)
    results, _ = one_by_one(function, entries, in_dims, plain)
    return tuple(torch._add_batch_dim(one, 0, level) for one in results)


def no_second_gradient(function: str) -> RuntimeError:
    return RuntimeError(
        f"[{function}] gradients of gradients are not supported: what its backward pass computes cannot be differentiated "
        "again (create_graph=True, torch.func.hessian, torch.func.grad of torch.func.grad)"
    )

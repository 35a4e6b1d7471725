"""What torch.func and its like may do to attention: torch.func.grad, vjp and grad_and_value, and nothing else.

Under them autograd.py's functions are called with wrapped tensors, and torch unwraps them. Layer: Python, below everything
else of quire.torch.
"""

from __future__ import annotations

from typing import Any

import torch

_stack = torch._C._functorch.get_interpreter_stack
_GRAD = torch._C._functorch.TransformType.Grad


def refuse_transforms(function: str, *tensors: Any) -> None:
    """NotImplementedError for vmap, forward mode and functionalize, and for nested tensors. For calls under a transform."""
    for interpreter in _stack() or ():
        if interpreter.key() != _GRAD:
            raise not_transformed(function, str(interpreter.key()).rpartition(".")[2])
    if any(isinstance(tensor, torch.Tensor) and tensor.is_nested for tensor in tensors):
        raise NotImplementedError(f"[{function}] nested tensors are not supported under torch.func; use autograd for them")


def not_transformed(function: str, what: str) -> NotImplementedError:
    return NotImplementedError(
        f"[{function}] torch.vmap and forward mode are not supported, torch.func.grad and vjp are; got {what}"
    )


def without_wrappers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with memory inside the wrappers of torch.func.grad."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            raise not_transformed("flex_attention", "Vmap")
        tensor = functorch.get_unwrapped(tensor)
    return tensor


class FlexOnce(torch.autograd.Function):
    """A function of flex_attention's with a gradient, or one that is a gradient; no rule for vmap or forward mode."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        raise not_transformed("flex_attention", "Vmap")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise not_transformed("flex_attention", "Jvp")


class SdpaOnce(torch.autograd.Function):
    """The same for scaled_dot_product_attention."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        raise not_transformed("scaled_dot_product_attention", "Vmap")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise not_transformed("scaled_dot_product_attention", "Jvp")


def no_second_gradient(function: str) -> RuntimeError:
    return RuntimeError(
        f"[{function}] gradients of gradients are not supported: what its backward pass computes cannot be differentiated "
        "again (create_graph=True, torch.func.hessian, torch.func.grad of torch.func.grad)"
    )

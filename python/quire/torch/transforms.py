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


def no_second_gradient(function: str) -> RuntimeError:
    return RuntimeError(
        f"[{function}] gradients of gradients are not supported: what its backward pass computes cannot be differentiated "
        "again (create_graph=True, torch.func.hessian, torch.func.grad of torch.func.grad)"
    )


def functions_of(function: str) -> tuple[type, type]:
    """Bases for a function of `function` that has a gradient, and for one that is a gradient and has none; no rules for vmap
    and forward mode."""

    class Once(torch.autograd.Function):
        @staticmethod
        def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
            raise not_transformed(function, "Vmap")

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise not_transformed(function, "Jvp")

    class Gradient(Once):
        @staticmethod
        def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            raise no_second_gradient(function)

    return Once, Gradient


FlexOnce, FlexGradient = functions_of("flex_attention")
SdpaOnce, SdpaGradient = functions_of("scaled_dot_product_attention")

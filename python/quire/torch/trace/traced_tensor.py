"""TracedTensor: a tensor without data that stands for a value of a mod; also walks over nested operands.

Trace layer.
"""

from __future__ import annotations

from typing import Any

import torch

from quire.trace.error import TraceError

from .field import Field
from .number import SYMBOLS, like_symbol

_CPU = torch.device("cpu")
_ONES: dict[torch.dtype, torch.Tensor] = {}


class TracedTensor(torch.Tensor):
    """A tensor without data. `field` is its contents; `is_viewed`: in torch another tensor may share its memory."""

    field: Field
    is_viewed: bool
    _wrapped_number: Any  # used instead where torch makes a tensor from a number

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, field: Field, dtype: torch.dtype, is_viewed: bool = False):
        self = torch.Tensor._make_wrapper_subclass(cls, field.shape, dtype=dtype, device=_CPU)
        self.field = field
        self.is_viewed = is_viewed
        return self

    def __repr__(self, *, tensor_contents=None):
        return f"TracedTensor(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        raise TraceError(f"[trace] a value of a mod was used in {func} after the mod had ended")


def ones(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor of the same shape and dtype. Captured tensors are replaced too: dtypes must not depend on values."""
    if tensor.dim() > 0:
        return torch.ones(tensor.shape, dtype=tensor.dtype)
    if tensor.dtype not in _ONES:
        _ONES[tensor.dtype] = torch.ones((), dtype=tensor.dtype)
    return _ONES[tensor.dtype]


def replaced(value, change):
    """Maps all tensors in nested lists and tuples, and replaces numbers without a value."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [replaced(v, change) for v in value]
    return like_symbol(value) if isinstance(value, SYMBOLS) else value


def has_traced(value) -> bool:
    if isinstance(value, TracedTensor):
        return True
    if isinstance(value, slice):
        return has_traced((value.start, value.stop, value.step))
    return isinstance(value, (list, tuple)) and any(has_traced(v) for v in value)

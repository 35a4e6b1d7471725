"""The types of torch's tensors in the formula language. Trace layer, above quire.trace."""

from __future__ import annotations

import torch

from quire.trace import value
from quire.trace.value import Value


def name_of(dtype: torch.dtype) -> str:
    """ "int32" for torch.int32."""
    return str(dtype).removeprefix("torch.")


def kind_of(dtype: torch.dtype) -> str:
    """The type that values of a torch dtype have in the language."""
    return value.kind_of(name_of(dtype))


def range_of(dtype: torch.dtype) -> tuple[int, int]:
    """The smallest and the largest value of an integer dtype."""
    return value.range_of(name_of(dtype))


def as_dtype(x: Value, dtype: torch.dtype) -> Value:
    """The result of an operation in the dtype that torch gives it."""
    return value.as_dtype(x, name_of(dtype))


def converted(x: Value, dtype: torch.dtype) -> Value:
    """An explicit cast."""
    return value.converted(x, name_of(dtype))

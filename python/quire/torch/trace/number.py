"""Numbers that a formula takes as arguments: torch.SymInt and torch.SymFloat without a value.

Torch passes such a number unchanged to the operations of a mod, and the tracer writes it as a buffer without
dimensions. Whatever asks for its value raises `NeedsValue`, so that none can get into a formula by mistake. The
symbolic numbers of torch's own tracers (sizes under torch.export) are handled in the same way. Trace layer.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from quire.trace.error import TraceError, user_line

SYMBOLS = (torch.SymInt, torch.SymFloat)


class NeedsValue(TraceError):
    """Raised if a mod does something with a number that a formula can express only for one value of it, such as using
    it as a size."""


def needs_value(what: str) -> NoReturn:
    """Raises NeedsValue with the user's line after the message."""
    line = user_line()
    raise NeedsValue(f"[trace] {what} needs the value of a number" + (f" (at {line})" if line else ""))


class _Node:
    """The inside of such a number: the dtype that holds it and nothing else."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def is_int(self) -> bool:
        return not self.dtype.is_floating_point

    def is_float(self) -> bool:
        return self.dtype.is_floating_point

    def is_bool(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return False

    def constant_int(self) -> None:
        return None

    def maybe_as_int(self) -> None:
        return None

    def nested_int(self) -> None:
        return None

    def _graph_repr(self) -> str:
        return f"a number of {self.dtype}"

    def __getattr__(self, name: str) -> Any:
        # Values (guard_int, int_, …) and arithmetic, which belongs before the formula, where numbers have 64 bits.
        if name.startswith("__"):
            raise AttributeError(name)
        needs_value(f"{name}()")


_Node.str = _Node._graph_repr  # type: ignore[attr-defined]  # in the class it would hide the type


def number(dtype: torch.dtype) -> Any:
    """An int or a float without a value. `dtype`: of the tensor without dimensions that holds it for the formula."""
    return torch.SymFloat(_Node(dtype)) if dtype.is_floating_point else torch.SymInt(_Node(dtype))


def has_symbol(value: Any) -> bool:
    """Whether nested lists, tuples and slices contain a number without a value."""
    if isinstance(value, SYMBOLS):
        return True
    if isinstance(value, (list, tuple)):
        return any(has_symbol(v) for v in value)
    return isinstance(value, slice) and has_symbol((value.start, value.stop, value.step))


def dtype_of(symbol: Any) -> torch.dtype:
    """The dtype of the tensor without dimensions that holds the number for the formula."""
    if isinstance(symbol.node, _Node):
        return symbol.node.dtype
    return torch.int64 if isinstance(symbol, torch.SymInt) else torch.float64


def like_symbol(symbol: Any) -> int | float:
    """A number of the same type, for asking torch about the dtype and shape of a result. Neither depends on its value."""
    return 1 if isinstance(symbol, torch.SymInt) else 1.0


def tensor_of(symbol: Any) -> torch.Tensor:
    """One of torch's symbolic numbers, or a plain number, as a tensor: an operation of the graph that torch is making."""
    is_int = isinstance(symbol, (int, torch.SymInt)) and not isinstance(symbol, bool)
    dtype = torch.int64 if is_int else torch.bool if isinstance(symbol, (bool, torch.SymBool)) else torch.float64
    return torch.ops.aten.scalar_tensor(symbol, dtype=dtype, device="cpu")

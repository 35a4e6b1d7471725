"""Torch's nested tensors of the layout torch.jagged as jagged views of _core, and results as nested tensors.

A tensor [B, j, H, D] has its values packed as [total, H, D]; its transposed view [B, H, j, D], which attention takes,
has the same memory as [H, total, D]. Both become views [total, H, D]. Python layer, above views.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nested._internal.nested_tensor import NestedTensor, _nt_view_dummy

from quire import _core
from quire.torch.views import view_of


@functools.cache
def _disabled(function: Callable) -> Callable:
    return torch.compiler.disable(function)


def outside_graphs(function: Callable) -> Callable:
    """Hides the function from dynamo. Nested tensors are refused in graphs, so calls fall back to Python, where dynamo
    would compile the functions called one by one and fail at the lengths of nested results."""
    # Without dynamo imported nothing is compiled, and importing it takes a second.
    return _disabled(function) if "torch._dynamo" in sys.modules else function


def are_nested(*tensors: Any) -> bool:
    """Whether one of them is a nested tensor, of any layout."""
    return any(isinstance(tensor, Tensor) and tensor.is_nested for tensor in tensors)


class Sequences(NamedTuple):
    """Where the sequences of a nested tensor begin, and how long they are if followed by holes."""

    offsets: Tensor
    lengths: Tensor | None

    def views(self, values: Tensor) -> _core.JaggedViews:
        """With values [total, H, D]."""
        lengths = self.lengths
        return _core.JaggedViews(view_of(values), view_of(self.offsets), None if lengths is None else view_of(lengths))


def sequences_of(tensor: NestedTensor) -> Sequences:
    return Sequences(tensor._offsets, tensor._lengths)


def jagged_of(tensor: Any) -> _core.JaggedViews:
    """[B, H, j, D], ragged on axis 2, or [B, j, D], one head, ragged on axis 1. Nothing is copied."""
    return sequences_of(tensor).views(plain_values_of(tensor))


def plain_values_of(tensor: NestedTensor) -> Tensor:
    """The values as [total, H, D], the same memory."""
    return _tokens_first(tensor._values)


def values_of(tensor: NestedTensor) -> Tensor:
    """The same, recorded by autograd."""
    return _tokens_first(tensor.values())


def _tokens_first(values: Tensor) -> Tensor:
    return values.transpose(0, 1) if values.dim() == 3 else values.unsqueeze(1)


def lengths_of(tensor: NestedTensor) -> _core.JaggedViews:
    """Its offsets and lengths, kept alive without its values."""
    total = tensor._values.size(tensor._ragged_idx - 1)
    return sequences_of(tensor).views(torch.zeros((), device="cpu").expand(total, 1, 1))


def tensor_of(view: _core.View) -> Tensor:
    """The memory of a result as a tensor."""
    return torch.from_dlpack(view)


def nested_like(values: Tensor, query: NestedTensor) -> NestedTensor:
    """`values` [total, H, ...] with the sequences of `query`: [B, H, j, ...], which is [B, j, H, ...] in memory, as
    torch's own. For a query [B, j, D]: [B, j, ...]."""
    return rewrap(_tokens_as_in(query, values), query)


def nested_from_values(values: Tensor, query: NestedTensor) -> Tensor:
    """The same, recorded by autograd."""
    return rewrap_recorded(_tokens_as_in(query, values), query)


def _tokens_as_in(query: NestedTensor, values: Tensor) -> Tensor:
    return values.transpose(0, 1) if query._ragged_idx == 2 else values.squeeze(1)


def rewrap(values: Tensor, query: NestedTensor) -> NestedTensor:
    """A nested tensor of the offsets, lengths and ragged axis of `query`."""
    return NestedTensor(
        values,
        offsets=query._offsets,
        lengths=query._lengths,
        _ragged_idx=query._ragged_idx,
        _metadata_cache=dict(query._metadata_cache),
    )


def rewrap_recorded(values: Tensor, query: NestedTensor) -> Tensor:
    """The same, recorded by autograd."""
    cache = query._metadata_cache
    lengths = (cache.get("min_seqlen"), cache.get("max_seqlen"))
    return torch._nested_view_from_jagged(
        values, query._offsets, _nt_view_dummy(), query._lengths, query._ragged_idx, *lengths
    )

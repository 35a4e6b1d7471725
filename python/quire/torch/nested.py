"""Torch's nested tensors of the layout torch.jagged as jagged views of _core, and results as nested tensors.

A tensor [B, j, H, D] has its values packed as [total, H, D]; its transposed view [B, H, j, D], which attention takes, has
the same memory as [H, total, D]. Both become views [total, H, D]. Layer: Python, above views.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nested._internal.nested_tensor import NestedTensor

from quire import _core
from quire.torch.views import view_of

__all__ = ["NestedTensor", "are_nested", "jagged_of", "nested_like", "tensor_of"]


def are_nested(*tensors: Any) -> bool:
    """Whether one of them is a nested tensor, of any layout."""
    return any(isinstance(tensor, Tensor) and tensor.is_nested for tensor in tensors)


def jagged_of(tensor: NestedTensor) -> _core.JaggedViews:
    """[B, H, j, D], ragged on axis 2, or [B, j, D], one head, ragged on axis 1. Nothing is copied."""
    values = tensor._values
    return _jagged(values.transpose(0, 1) if values.dim() == 3 else values.unsqueeze(1), tensor)


def lengths_of(tensor: NestedTensor) -> _core.JaggedViews:
    """Its offsets and lengths, kept alive without its values."""
    total = tensor._values.size(tensor._ragged_idx - 1)
    return _jagged(torch.zeros((), device="cpu").expand(total, 1, 1), tensor)


def _jagged(values: Tensor, tensor: NestedTensor) -> _core.JaggedViews:
    lengths = tensor._lengths
    return _core.JaggedViews(view_of(values), view_of(tensor._offsets), None if lengths is None else view_of(lengths))


def tensor_of(view: _core.View) -> Tensor:
    """The memory of a result as a tensor."""
    return torch.from_dlpack(view)


def nested_like(values: Tensor, query: NestedTensor) -> NestedTensor:
    """`values` [total, H, ...] with the sequences of `query`: [B, H, j, ...], which is [B, j, H, ...] in memory, as
    torch's own. Of a query [B, j, D]: [B, j, ...]."""
    values = values.transpose(0, 1) if query._ragged_idx == 2 else values.squeeze(1)
    return rewrap(values, query)


def rewrap(values: Tensor, query: NestedTensor) -> NestedTensor:
    """A nested tensor of the offsets, lengths and ragged axis of `query`."""
    return NestedTensor(
        values,
        offsets=query._offsets,
        lengths=query._lengths,
        _ragged_idx=query._ragged_idx,
        _metadata_cache=dict(query._metadata_cache),
    )

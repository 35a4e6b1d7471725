"""Nested tensors of the older layout, torch.strided: packs their components to the layout torch.jagged, and unpacks
results.

Torch differentiates both conversions. Python layer, above nested.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire.torch.nested import NestedTensor

Components = tuple[Tensor, ...]  # of one nested tensor: [H, j, D] or [j, D]


def are_strided_nested(function: str, *tensors: Any) -> bool:
    """Whether all of them are. Raises RuntimeError, as torch does, if only some are and the others are dense; a mix
    with nested tensors of the other layout is left to the code that checks those."""
    found = [tensor.is_nested and tensor.layout is torch.strided for tensor in tensors]
    if any(found) and not all(found) and not any(isinstance(tensor, NestedTensor) for tensor in tensors):
        kinds = ", ".join("nested" if one else "dense" for one in found)
        raise RuntimeError(
            f"[{function}] query, key and value must all be nested tensors, or none of them; got {kinds}"
        )
    return all(found)


def components_of(function: str, *tensors: Tensor) -> list[Components]:
    """Components of query, key and value. Raises RuntimeError for different numbers of sequences and for too few axes."""
    if min(tensor.dim() for tensor in tensors) < 3:
        axes = ", ".join(str(tensor.dim()) for tensor in tensors)
        raise RuntimeError(f"[{function}] nested query, key and value must be [B, ..., j, D]; got {axes} axes")
    found = [tensor.unbind() for tensor in tensors]
    counts = [len(parts) for parts in found]
    if not counts[0] == counts[1] == counts[2]:
        raise RuntimeError(
            f"[{function}] query, key and value must have the same number of sequences; "
            f"got {counts[0]}, {counts[1]} and {counts[2]}"
        )
    return found


def can_be_packed(*all_parts: Components) -> bool:
    """Whether each has the same heads and the same dim in all sequences."""
    is_even = all(len({(*one.shape[:-2], one.shape[-1]) for one in parts}) == 1 for parts in all_parts)
    return is_even and {one.dim() for parts in all_parts for one in parts} in ({2}, {3})


def to_jagged(parts: Components) -> Tensor:
    """[B, H, j, D], which is [B, j, H, D] in memory; components without heads have one. Recorded by autograd."""
    tokens = [one.transpose(0, 1) if one.dim() == 3 else one.unsqueeze(1) for one in parts]
    return torch.nested.as_nested_tensor(tokens, layout=torch.jagged).transpose(1, 2)


def to_strided(tensor: Tensor, parts: Components) -> Tensor:
    """[B, H, j, ...] with components like those of `parts`, with heads or without. Recorded by autograd."""
    has_heads = parts[0].dim() == 3
    return torch.nested.as_nested_tensor([one if has_heads else one.squeeze(0) for one in tensor.unbind()])

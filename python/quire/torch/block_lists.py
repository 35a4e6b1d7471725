"""Lists of blocks (counts [..., rows], indices [..., rows, n]) by torch's operations: seen from the keys, and cut off.

For lists that only a graph or another device holds; on the CPU the core does it. Torch has private functions for both,
whose arguments and results differ between its versions. Python layer, below block_mask.py.
"""

from __future__ import annotations

import torch
from torch import Tensor


def transposed(counts: Tensor, indices: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """The lists of the columns: counts [..., columns] and indices [..., columns, rows], the listed rows first, then the
    others, each part ascending. The given lists may be narrower than `columns`; negative entries are ignored."""
    is_listed = (_places(indices) < counts.unsqueeze(-1)) & (indices >= 0)
    listed = torch.where(is_listed, indices, columns).to(torch.int64)  # unlisted ones go to an extra column
    dense = indices.new_zeros((*indices.shape[:-1], columns + 1), dtype=torch.int32)
    rows = dense.scatter(-1, listed, 1)[..., :columns].transpose(-2, -1)
    order = torch.argsort(rows, dim=-1, descending=True, stable=True)
    return rows.sum(-1, dtype=torch.int32), order.to(torch.int32, memory_format=torch.contiguous_format)


def adjusted(counts: Tensor, indices: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """The lists of the first `rows` rows, with only the blocks among the first `columns` columns, in their order;
    unused entries are 0."""
    counts, indices = counts[..., :rows], indices[..., :rows, :]
    is_kept = (_places(indices) < counts.unsqueeze(-1)) & (indices < columns)
    order = torch.argsort(is_kept.to(torch.int32), dim=-1, descending=True, stable=True)
    kept = is_kept.sum(-1, dtype=torch.int32)
    packed = indices.gather(-1, order)[..., :columns]
    return kept, torch.where(_places(packed) < kept.unsqueeze(-1), packed, 0)


def _places(indices: Tensor) -> Tensor:
    return torch.arange(indices.shape[-1], device=indices.device)

"""Attention over keys that a model selected for each query: DeepSeek's sparse attention and its relatives.

Converts what a layer passes to the key_indices of quire.torch.flex_attention. Python layer, below attention.py of this
package.
"""

from __future__ import annotations

import torch
from torch import Tensor


def chosen_keys(
    module: torch.nn.Module, indices: Tensor | None, block_indices: Tensor | None, heads: int, kv_length: int
) -> Tensor | None:
    """key_indices from what a layer passes; None if it selects nothing. `indices`: [B, L, n] keys; `block_indices`: [B,
    groups of heads, L, n] blocks of keys. Negative entries are unused."""
    if indices is not None and block_indices is not None:
        raise NotImplementedError(
            "[quire.transformers] this model passes both indices and block_indices to its attention"
        )
    if indices is not None:
        return torch.where(indices < 0, -1, indices).to(torch.int32)
    return None if block_indices is None else _keys_of_blocks(module, block_indices, heads, kv_length)


def _keys_of_blocks(module: torch.nn.Module, blocks: Tensor, heads: int, kv_length: int) -> Tensor:
    """[B, heads, L, n * block size], or without heads if all select the same."""
    size = getattr(getattr(module, "indexer", None), "block_size", None)
    if size is None:
        raise NotImplementedError(
            "[quire.transformers] this model passes block_indices to its attention, but its layers have no indexer.block_size"
        )
    keys = blocks.unsqueeze(-1) * size + torch.arange(size, device=blocks.device)
    keys = torch.where((blocks.unsqueeze(-1) < 0) | (keys >= kv_length), -1, keys).flatten(-2).to(torch.int32)
    groups = keys.shape[1]
    return keys.squeeze(1) if groups == 1 else keys.repeat_interleave(heads // groups, 1)

"""Attention over keys that a model has chosen for each query: DeepSeek's sparse attention and its relatives.

The choice becomes a mask, which is exact; memory for a bool per query and key is needed. Python layer, below attention.py of
this package.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from quire.torch import and_masks, create_block_mask
from quire.torch.mods import bind_mask_mod


def keys_of_indices(indices: Tensor, kv_length: int) -> Tensor:
    """[B, 1, L, S] bools of [B, L, n] indices of keys; negative ones choose none."""
    return _scattered(indices, kv_length).unsqueeze(1)


def keys_of_blocks(block_indices: Tensor, module: torch.nn.Module, heads: int, kv_length: int) -> Tensor:
    """[B, heads, L, S] bools of [B, groups, L, n] indices of blocks of keys; negative ones choose none."""
    size = getattr(getattr(module, "indexer", None), "block_size", None)
    if size is None:
        raise NotImplementedError(
            "[quire.transformers] this model passes block_indices to its attention, but its layers have no indexer.block_size"
        )
    blocks = _scattered(block_indices, -(-kv_length // size))
    return blocks.repeat_interleave(size, -1)[..., :kv_length].repeat_interleave(heads // block_indices.shape[1], 1)


def _scattered(indices: Tensor, count: int) -> Tensor:
    places = torch.where(indices < 0, count, indices).long()  # -1 goes after the last one, where it is cut off
    chosen = torch.zeros((*indices.shape[:-1], count + 1), dtype=torch.bool, device=indices.device)
    return chosen.scatter(-1, places, True)[..., :count]


def chosen_block_mask(mask: BlockMask | None, chosen: Tensor, query: Tensor) -> BlockMask:
    """What `mask` leaves visible of the chosen keys. chosen: [B, 1 or heads, L, S]."""
    batch, heads, q_length, kv_length = chosen.shape
    visible = chosen.expand(query.shape[0], query.shape[1], -1, -1)

    def is_chosen(b, h, q_idx, kv_idx):
        return visible[b, h, q_idx, kv_idx]

    if mask is None:
        rule = is_chosen
    elif torch.compiler.is_dynamo_compiling():
        rule = and_masks(is_chosen, mask.mask_mod)
    else:  # of masks that quire_mask made the rule is a formula, no function
        rule = bind_mask_mod(is_chosen).mod & bind_mask_mod(mask.mask_mod).mod
    return create_block_mask(rule, batch, heads if heads > 1 else None, q_length, kv_length)

"""Attention of nested tensors inside torch.compile: their values and offsets go to torch.ops.quire.varlen_attn.

Results are nested again, with the offsets of the query. Python layer, above varlen.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire.torch.autograd import Outputs
from quire.torch.nested_flex import NestedBlockMask
from quire.torch.varlen import Packed, packed_attention
from quire.torch.varlen_call import Varlen


def nested_in_graph(
    function: str,
    tensors: tuple[Any, Any, Any],
    mods: tuple[Any, Any],
    scale: float | None,
    enable_gqa: bool,
    wanted: tuple[bool, bool],
    dropout: tuple[float, int | None],
) -> Outputs:
    """(out, lse, max_scores), nested. tensors: query, key and value [B, H, j, D]; mods: score_mod and mask_mod; wanted: lse and max_scores;
    dropout: its probability and seed."""
    for tensor in tensors:
        if not tensor.is_nested or tensor.layout is not torch.jagged or tensor.dim() != 4 or tensor._ragged_idx != 2:
            raise NotImplementedError(
                f"[{function}] inside torch.compile nested query, key and value must all be of the layout torch.jagged, [B, H, j, D]"
            )
        if tensor._lengths is not None:
            raise NotImplementedError(f"[{function}] nested tensors with holes inside torch.compile")
    query, key, value = (tensor.transpose(1, 2) for tensor in tensors)  # [B, j, H, D]: values [total, H, D]
    sequences = Varlen(query.offsets(), key.offsets())
    call = Packed(
        function, sequences, mods[0], mods[1], scale, enable_gqa, dropout[0], dropout[1], wanted[0], wanted[1]
    )
    out, lse, max_scores = packed_attention(call, query.values(), key.values(), value.values())
    return (
        _nested(out, query),
        None if lse is None else _nested(lse, query),
        None if max_scores is None else _nested(max_scores, query),
    )


def _nested(values: Tensor, like: Any) -> Tensor:
    """[B, H, j, ...] of [total, H, ...], with the sequences of `like`."""
    return torch.nested.nested_tensor_from_jagged(values, like.offsets()).transpose(1, 2)


def rule_in_graph(function: str, block_mask: Any) -> Any:
    """The mask_mod of a nested block mask."""
    if block_mask is None:
        return None
    if not isinstance(block_mask, NestedBlockMask):
        raise TypeError(f"[{function}] the block mask of nested tensors is made by create_nested_block_mask")
    return block_mask.mask_mod

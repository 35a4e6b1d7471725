"""top_k_keys over torch tensors: the keys that an indexer selects for every query. Python layer, above views.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire import _core
from quire.option_checks import check_int
from quire.torch.block_mask import blocks_of
from quire.torch.graph_library import define
from quire.torch.mods import bind_mask_mod
from quire.torch.threads import openmp_threads
from quire.torch.views import view_of


def top_k_keys(q: Tensor, k: Tensor, weights: Tensor, top_k: int, mask: Any = None, *, q_begin: int = 0) -> Tensor:
    """For every query the top_k keys with the largest sum over the heads h of weights[b, q, h] * relu(q[b, q, h] . k[b, key]):
    lists for flex_attention(..., key_indices=lists).

    q [B, L, heads, D], k [B or 1, S, D], weights [B, L, heads]. `mask`: which keys a query may choose from: a rule f(b,
    h, q_idx, kv_idx), with h = 0, or a block mask of one head. `q_begin`: q_idx of the first query in a rule. Returns
    int32 [B, L, top_k], ascending, padded with -1 where a query may see fewer; ties go to the smaller key. Memory is
    proportional to L * top_k, never to L * S. No gradient.

    >>> import torch
    >>> from quire.torch import flex_attention, top_k_keys
    >>> lists = top_k_keys(torch.randn(1, 60, 4, 32), torch.randn(1, 60, 32), torch.ones(1, 60, 4), 8)
    >>> q, k, v = torch.randn(3, 1, 2, 60, 64)
    >>> flex_attention(q, k, v, key_indices=lists).shape
    torch.Size([1, 2, 60, 64])
    """
    top_k, q_begin = check_int("top_k_keys", "top_k", top_k), check_int("top_k_keys", "q_begin", q_begin)
    for name, tensor in (("q", q), ("k", k), ("weights", weights)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"[top_k_keys] {name} must be a tensor; got {type(tensor).__name__}")
    rule = blocks = None
    text = mask if isinstance(mask, str) else ""
    if text or mask is None:
        return torch.ops.quire.top_k_keys(q.detach(), k.detach(), weights.detach(), top_k, text, q_begin)
    if torch.compiler.is_dynamo_compiling():
        raise NotImplementedError("[top_k_keys] inside a graph of torch.compile the mask must be a text, or None")
    if hasattr(mask, "kv_num_blocks"):
        blocks = blocks_of(mask).with_rule(mask.mask_mod)
    else:
        rule = bind_mask_mod(mask).mod
    return _run(q.detach(), k.detach(), weights.detach(), top_k, rule, blocks, q_begin)


def _run(q: Tensor, k: Tensor, weights: Tensor, top_k: int, rule: Any, blocks: Any, q_begin: int) -> Tensor:
    views = view_of(q), view_of(k), view_of(weights)
    return torch.from_dlpack(_core.top_k_keys(*views, top_k, rule, blocks, q_begin, openmp_threads()))


def _top_k_keys(q: Tensor, k: Tensor, weights: Tensor, top_k: int, mask: str = "", q_begin: int = 0) -> Tensor:
    return _run(q, k, weights, top_k, _core.MaskMod(mask) if mask else None, None, q_begin)


def _fake_top_k_keys(q: Tensor, k: Tensor, weights: Tensor, top_k: int, mask: str = "", q_begin: int = 0) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[1], top_k), dtype=torch.int32)


define(
    'top_k_keys(Tensor q, Tensor k, Tensor weights, SymInt top_k, str mask="", SymInt q_begin=0) -> Tensor',
    _top_k_keys,
    _fake_top_k_keys,
)

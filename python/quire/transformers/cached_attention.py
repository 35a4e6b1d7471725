"""Attention of a layer whose keys and values are pages of a QuireCache: read in place, planned once for all layers.

Python layer, below attention.py of this package.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from quire import _core
from quire.torch.forward import draw_seed
from quire.torch.graph_mod import bind
from quire.torch.mods import bind_mask_mod
from quire.torch.threads import openmp_threads
from quire.torch.views import view_of
from quire.transformers.cache import DTYPES
from quire.transformers.masks import ModelMask
from quire.transformers.paged_states import PagedStates


def cached_attention(
    module: torch.nn.Module,
    query: Tensor,
    states: PagedStates,
    attention_mask: Any,
    is_causal: bool | None,
    scaling: float | None,
    softcap: float | None,
    s_aux: Tensor | None,
    dropout: float,
) -> Tensor:
    """[B, L, Hq, Ev] of query [B, Hq, L, E], the last L tokens of each row."""
    pool, batch, count = states.pool, query.shape[0], query.shape[2]
    if torch.is_grad_enabled() and query.requires_grad:
        raise RuntimeError("[QuireCache] has no gradients; call the model under torch.no_grad(), or without a cache")
    begin = pool.length - count
    score: Any = None
    if softcap is not None:
        score = (f"{float(softcap)!r} * tanh(score / {float(softcap)!r})", [], [])
    mask, window, read = _rule(module, attention_mask, is_causal, begin, count)
    if isinstance(attention_mask, Tensor) and attention_mask.dtype is not torch.bool:
        bias = attention_mask[..., : pool.length].expand(batch, query.shape[1], -1, -1)
        text = f"{score[0] if score else 'score'} + bias[b, h, q_idx - {begin}, kv_idx]"
        score, read = (text, ["bias"], [bias]), attention_mask

    def plan() -> Any:
        bound = None if score is None else bind(_core.ScoreMod, *score, torch.float32).mod
        options = _core.Options(
            "quire_attention",
            bound,
            mask() if mask is not None else None,
            window=window,
            scale=scaling,
            dropout_p=dropout,
            seed=draw_seed() if dropout else 0,
            openmp_threads=openmp_threads(),
            sinks=None if s_aux is None else view_of(s_aux.detach().reshape(-1)),
        )
        return _core.Plan(options, pool.cache, pool.sequences, [count] * batch, query.shape[1], DTYPES[query.dtype])

    # What a mask reads must be the same object: there is one for all layers of a step.
    same = _Same(read), _Same(s_aux)
    key = (count, query.shape[1], query.dtype, softcap, scaling, window, mask is None, *same, openmp_threads())
    planned = plan() if dropout else pool.plan(key, plan)
    rows = query.transpose(1, 2).flatten(0, 1)
    out = torch.empty((*rows.shape[:2], pool.cache.v_head_dim), dtype=query.dtype, device="cpu")
    planned.run_step(pool.cache, states.layer, view_of(rows), view_of(out))
    return out.unflatten(0, (batch, count))


class _Same:
    """Equal if it is the same object, which it keeps alive."""

    def __init__(self, one: Any) -> None:
        self.one = one

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.one is other.one

    __hash__ = None  # type: ignore[assignment]


def _rule(module: torch.nn.Module, given: Any, is_causal: bool | None, begin: int, count: int) -> tuple[Any, int, Any]:
    """(a function that returns the rule over positions in the sequence, or None; the window of a causal mask without
    one; what it was made from)."""
    if given is None:
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if is_causal or count == 1:
            return None, 0, None
        return (lambda: _core.MaskMod("kv_idx >= 0")), 0, None
    if isinstance(given, ModelMask) and given.absolute is not None:
        if given.is_positional:
            return None, given.window, None
        return (lambda: bind_mask_mod(given.absolute).mod), 0, given
    if isinstance(given, BlockMask):
        raise NotImplementedError(
            "[QuireCache] takes the masks that transformers makes, and tensors; got a BlockMask of the caller's, or of a "
            "model under torch.compile, where pages cannot be read"
        )
    if given.dtype is not torch.bool:
        return (lambda: _core.MaskMod("kv_idx >= 0")), 0, given

    def of_bools() -> Any:
        text = (
            f"visible[b, 0, q_idx - {begin}, kv_idx]"
            if given.shape[1] == 1
            else f"visible[b, h, q_idx - {begin}, kv_idx]"
        )
        return bind(_core.MaskMod, text, ["visible"], [given], torch.float32).mod

    return of_bools, 0, given

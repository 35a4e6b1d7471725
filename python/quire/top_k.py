"""top_k_keys: the keys that an indexer selects for every query, over NumPy and DLPack arrays. The arithmetic is
_core's. Python layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _core
from ._core import BlockMask, MaskMod
from .arrays import like
from .option_checks import check_int


def top_k_keys(
    q: Any,
    k: Any,
    weights: Any,
    top_k: int,
    mask: MaskMod | BlockMask | Callable | str | None = None,
    *,
    q_begin: int = 0,
) -> Any:
    """For every query the top_k keys with the largest sum over the heads h of weights[b, q, h] * relu(q[b, q, h] . k[b, key]):
    lists for flex_attention(..., key_indices=lists).

    Args:
        q: [B, L, heads, D]; k: [B or 1, S, D]; weights: [B, L, heads]. f32, f64, bf16 or f16, any strides.
        mask: which keys a query may choose from: a rule of (b, h, q_idx, kv_idx), with h = 0, or a BlockMask of one
            head.
        q_begin: q_idx of the first query in a rule.

    Returns:
        int32 [B, L, top_k] of q's kind, ascending, padded with -1 where a query may see fewer. Ties go to the smaller
        key; NaN sums are skipped. Memory is proportional to L * top_k, never to L * S. No gradient.

    >>> import numpy, quire
    >>> random = numpy.random.default_rng(0)
    >>> q, weights = random.standard_normal((1, 60, 4, 32), numpy.float32), numpy.ones((1, 60, 4), numpy.float32)
    >>> k = random.standard_normal((1, 60, 32), numpy.float32)
    >>> lists = quire.top_k_keys(q, k, weights, 8, "q_idx >= kv_idx")
    >>> lists.shape, lists[0, 2].tolist()
    ((1, 60, 8), [0, 1, 2, -1, -1, -1, -1, -1])
    """
    rule, blocks = top_k_mask(mask)
    found = _core.top_k_keys(
        _core.view(q),
        _core.view(k),
        _core.view(weights),
        check_int("top_k_keys", "top_k", top_k),
        rule,
        blocks,
        check_int("top_k_keys", "q_begin", q_begin),
    )
    return like(found, q)


def top_k_mask(mask: Any) -> tuple[MaskMod | None, BlockMask | None]:
    """The rule, or the blocks."""
    if mask is None or isinstance(mask, MaskMod):
        return mask, None
    if isinstance(mask, BlockMask):
        return None, mask
    if isinstance(mask, str) or callable(mask):
        return MaskMod(mask), None
    raise TypeError(f"[top_k_keys] mask must be a rule or a BlockMask; got {type(mask).__name__}")

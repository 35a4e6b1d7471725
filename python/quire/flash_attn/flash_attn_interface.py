"""flash_attn's functions: padded batches, packed sequences, q, k and v in one tensor, and a growing cache
(kv_cache.py).

A padded batch is treated as packed sequences of equal lengths, in the same memory. Python layer, top of
quire.flash_attn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire.flash_attn.flash_call import Flash, attend
from quire.flash_attn.kv_cache import flash_attn_with_kvcache
from quire.torch.varlen_call import Varlen

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention over a batch of equal lengths: q [B, Lq, Hq, D], k and v [B, Lk, Hkv, D], Hq a multiple of Hkv; [B, Lq, Hq, D].

    Query i is aligned to key i + Lk - Lq (bottom right). `causal`: it sees the keys up to there; `window_size`: this
    many (left, right) of it, -1 for all. `softcap` > 0: scores become softcap * tanh(score / softcap). `alibi_slopes`
    [Hq] or [B, Hq]: a bias of -slope * |i + Lk - Lq - j|, after the soft-cap; no gradient. `softmax_scale`: 1 / sqrt(D)
    if not given. Rows that see nothing are 0. `deterministic` has no effect: gradients always are.

    With `return_attn_probs`: (out, lse [B, Hq, Lq], weights [B, Hq, Lq, Lk]), the weights before dropout, dropped ones
    with a minus sign.

    >>> import torch
    >>> from quire.flash_attn import flash_attn_func
    >>> q, k = torch.randn(2, 5, 8, 64), torch.randn(2, 30, 2, 64)
    >>> flash_attn_func(q, k, k, causal=True, window_size=(16, 0)).shape
    torch.Size([2, 5, 8, 64])
    """
    flash = Flash(
        "flash_attn_func",
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
    return _padded(flash.checked(), q, k, v)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of q [B, Lq, Hq, D] and kv [B, Lk, 2, Hkv, D].

    >>> import torch
    >>> from quire.flash_attn import flash_attn_kvpacked_func
    >>> flash_attn_kvpacked_func(torch.randn(2, 5, 8, 64), torch.randn(2, 30, 2, 2, 64)).shape
    torch.Size([2, 5, 8, 64])
    """
    flash = Flash(
        "flash_attn_kvpacked_func",
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
    _check_stacked(flash.function, "kv", kv, 5, 2)
    return _padded(flash.checked(), q, kv[:, :, 0], kv[:, :, 1])


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of qkv [B, L, 3, H, D].

    >>> import torch
    >>> from quire.flash_attn import flash_attn_qkvpacked_func
    >>> flash_attn_qkvpacked_func(torch.randn(2, 30, 3, 8, 64), causal=True).shape
    torch.Size([2, 30, 8, 64])
    """
    flash = Flash(
        "flash_attn_qkvpacked_func",
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
    _check_stacked(flash.function, "qkv", qkv, 5, 3)
    return _padded(flash.checked(), qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2])


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Attention over packed sequences: q [total_q, Hq, D], k and v [total_k, Hkv, D]; sequence i is rows cu_seqlens[i]
    .. cu_seqlens[i + 1] - 1; [total_q, Hq, D]. Options as for flash_attn_func, with the lengths of each sequence.

    `block_table` [n, most pages]: k and v are pages [pages, page_size, Hkv, D] of any size, cu_seqlens_k says how many keys there are; no
    gradients. With `return_attn_probs`: (out, lse [Hq, total_q], weights [n, Hq, longest query, longest key]).

    >>> import torch
    >>> from quire.flash_attn import flash_attn_varlen_func
    >>> x, cu_seqlens = torch.randn(100, 4, 64), torch.tensor([0, 30, 100], dtype=torch.int32)
    >>> flash_attn_varlen_func(x, x, x, cu_seqlens, cu_seqlens, 70, 70, causal=True).shape
    torch.Size([100, 4, 64])
    """
    flash = Flash(
        "flash_attn_varlen_func",
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
    sequences = Varlen(cu_seqlens_q, cu_seqlens_k, None, block_table, _length(max_seqlen_q), _length(max_seqlen_k))
    return _packed(flash.checked(), q, k, v, sequences)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func of q [total_q, Hq, D] and kv [total_k, 2, Hkv, D].

    >>> import torch
    >>> from quire.flash_attn import flash_attn_varlen_kvpacked_func
    >>> cu_seqlens = torch.tensor([0, 30, 100], dtype=torch.int32)
    >>> q, kv = torch.randn(100, 4, 64), torch.randn(100, 2, 4, 64)
    >>> flash_attn_varlen_kvpacked_func(q, kv, cu_seqlens, cu_seqlens, 70, 70).shape
    torch.Size([100, 4, 64])
    """
    flash = Flash(
        "flash_attn_varlen_kvpacked_func",
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
    _check_stacked(flash.function, "kv", kv, 4, 2)
    sequences = Varlen(cu_seqlens_q, cu_seqlens_k, None, None, _length(max_seqlen_q), _length(max_seqlen_k))
    return _packed(flash.checked(), q, kv[:, 0], kv[:, 1], sequences)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func of qkv [total, 3, H, D].

    >>> import torch
    >>> from quire.flash_attn import flash_attn_varlen_qkvpacked_func
    >>> cu_seqlens = torch.tensor([0, 30, 100], dtype=torch.int32)
    >>> flash_attn_varlen_qkvpacked_func(torch.randn(100, 3, 4, 64), cu_seqlens, 70).shape
    torch.Size([100, 4, 64])
    """
    flash = Flash(
        "flash_attn_varlen_qkvpacked_func",
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
    _check_stacked(flash.function, "qkv", qkv, 4, 3)
    sequences = Varlen(cu_seqlens, cu_seqlens, None, None, _length(max_seqlen), _length(max_seqlen))
    return _packed(flash.checked(), qkv[:, 0], qkv[:, 1], qkv[:, 2], sequences)


# ---- padded and packed batches


def _padded(flash: Flash, q: Tensor, k: Tensor, v: Tensor) -> Any:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor) or tensor.dim() != 4:
            what = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(f"[{flash.function}] {name} must be [batch, seqlen, heads, dim]; got {what}")
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[1] != v.shape[1]:
        raise ValueError(
            f"[{flash.function}] q, k and v must have the same batch, and k and v the same seqlen; got {tuple(q.shape)}, "
            f"{tuple(k.shape)} and {tuple(v.shape)}"
        )
    sequences = Varlen(even_offsets(q.shape[0], q.shape[1]), even_offsets(k.shape[0], k.shape[1]))
    out, lse, weights = attend(flash, q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), sequences)
    out = out.unflatten(0, (q.shape[0], q.shape[1]))
    if lse is None:
        return out
    return out, lse.unflatten(0, (q.shape[0], q.shape[1])).transpose(1, 2).contiguous(), weights


def even_offsets(batch: int, length: int) -> Tensor:
    """Offsets of packed sequences of equal length."""
    return torch.arange(batch + 1, dtype=torch.int64, device="cpu") * length


def _packed(flash: Flash, q: Tensor, k: Tensor, v: Tensor, sequences: Varlen) -> Any:
    out, lse, weights = attend(flash, q, k, v, sequences)
    return out if lse is None else (out, lse.t().contiguous(), weights)


def _length(most: Any) -> Any:
    """Callers give an int, or a tensor of one element."""
    return int(most) if isinstance(most, Tensor) else most


def _check_stacked(function: str, name: str, tensor: Any, axes: int, count: int) -> None:
    what = {5: "batch, seqlen", 4: "total"}[axes]
    if not isinstance(tensor, Tensor) or tensor.dim() != axes or tensor.shape[axes - 3] != count:
        got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"[{function}] {name} must be [{what}, {count}, heads, dim]; got {got}")

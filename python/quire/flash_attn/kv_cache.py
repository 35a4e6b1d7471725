"""flash_attn_with_kvcache: new keys and values are rotated and appended in place, and queries attend to all keys.

A cache without pages is treated as one page per sequence. Everything is checked before the cache is changed. Python
layer, above flash_call.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.flash_attn.flash_call import Flash, packed_call
from quire.option_checks import check_flag, check_int
from quire.torch.varlen import Text, packed_attention
from quire.torch.varlen_call import Varlen

_NAME = "flash_attn_with_kvcache"


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention of q [B, Lq, Hq, D] over a cache, [B, Lq, Hq, D]; with `return_softmax_lse` also lse [B, Hq, Lq]. No gradients.

    k_cache, v_cache: [cache batch, capacity, Hkv, D], or, with `block_table` [B, most pages], pages [pages, page_size,
    Hkv, D] of any size. `cache_seqlens`: an int or [B], the number of keys; by default all of a cache without pages.
    `k`, `v` [B, new, Hkv, D]: appended to these in place before the queries attend. `rotary_cos`, `rotary_sin` [at
    least the keys after that, rotary_dim / 2]: k is rotated by its positions, and q by the same positions if causal or
    with a window, otherwise all by the first of them; `rotary_interleaved`: pairs are dims 0 and 1, 2 and 3, ...,
    otherwise 0 and rotary_dim / 2, ... `cache_batch_idx` [B]: the cache's row of each batch entry. `cache_leftpad` [B]:
    index of the first valid key. The others as for flash_attn_func; `num_splits` has no effect.

    >>> import torch
    >>> from quire.flash_attn import flash_attn_with_kvcache
    >>> k_cache, v_cache = torch.zeros(2, 100, 2, 64), torch.zeros(2, 100, 2, 64)
    >>> lengths = torch.tensor([10, 40], dtype=torch.int32)
    >>> q, new = torch.randn(2, 1, 8, 64), torch.ones(2, 1, 2, 64)
    >>> flash_attn_with_kvcache(q, k_cache, v_cache, new, new, cache_seqlens=lengths, causal=True).shape
    torch.Size([2, 1, 8, 64])
    >>> k_cache[0, 9:12, 0, 0]
    tensor([0., 1., 0.])
    """
    flash = Flash(_NAME, 0.0, softmax_scale, causal, window_size, softcap, alibi_slopes).checked()
    check_flag(_NAME, "rotary_interleaved", rotary_interleaved)
    check_flag(_NAME, "return_softmax_lse", return_softmax_lse)
    check_int(_NAME, "num_splits", num_splits)
    with torch.no_grad():
        pages = _Pages.of(q, k_cache, v_cache, cache_batch_idx, block_table)
        new = _new_tokens(k, v, k_cache, v_cache, q.shape[0])
        lengths = _lengths(q, k, pages, cache_seqlens, block_table)
        mask = _left_pad(cache_leftpad, lengths)
        rotary = _rotary(rotary_cos, rotary_sin, q, k, lengths, rotary_interleaved)
        batch, q_len = q.shape[:2]
        count = 0 if new is None else new[0].shape[1]
        offsets = torch.arange(batch + 1, dtype=torch.int64, device="cpu") * q_len
        sequences = Varlen(offsets, None, lengths + count, pages.table)
        call = packed_call(flash, q.flatten(0, 1), k_cache, v_cache, sequences, mask, return_softmax_lse)
        places = pages.places(lengths, count)
        if rotary is not None and new is not None:
            q = rotary.rotated(q, lengths, flash.window() == (-1, -1))
            new = rotary.rotated(new[0], lengths, False), new[1]
        if new is not None:
            k_cache[places] = new[0]
            v_cache[places] = new[1]
        out, lse, _ = packed_attention(call, q.flatten(0, 1), k_cache, v_cache)
        out = out.unflatten(0, (batch, q_len))
        return out if lse is None else (out, lse.unflatten(0, (batch, q_len)).transpose(1, 2).contiguous())


class _Pages(NamedTuple):
    """The pages of each sequence, [B, most pages], and their size."""

    table: Tensor
    size: int
    pages: int

    @staticmethod
    def of(q: Tensor, k_cache: Tensor, v_cache: Tensor, batch_idx: Tensor | None, block_table: Tensor | None) -> _Pages:
        for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
            if not isinstance(tensor, Tensor) or tensor.dim() != 4:
                what = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise ValueError(f"[{_NAME}] {name} must have 4 axes, [batch, seqlen, heads, dim]; got {what}")
        if k_cache.shape[:3] != v_cache.shape[:3]:
            raise ValueError(
                f"[{_NAME}] k_cache and v_cache must have the same sizes; got {tuple(k_cache.shape)} and {tuple(v_cache.shape)}"
            )
        count, size = k_cache.shape[:2]
        batch = q.shape[0]
        if block_table is not None:
            if batch_idx is not None:
                raise ValueError(f"[{_NAME}] give block_table or cache_batch_idx, not both")
            _check_ints("block_table", block_table, (batch, None))
            return _Pages(block_table, size, count)
        if batch_idx is None:
            if count != batch:
                raise ValueError(
                    f"[{_NAME}] q has a batch of {batch} and the cache of {count}; cache_batch_idx says which"
                )
            return _Pages(torch.arange(batch, device="cpu")[:, None], size, count)
        _check_ints("cache_batch_idx", batch_idx, (batch,))
        outside = (batch_idx < 0) | (batch_idx >= count)
        if outside.any():
            raise IndexError(f"[{_NAME}] cache_batch_idx must be in 0..{count - 1}; got {int(batch_idx[outside][0])}")
        return _Pages(batch_idx[:, None], size, count)

    def places(self, lengths: Tensor, new: int) -> tuple[Tensor, Tensor]:
        """(page, slot), [B, new] each, of the tokens after `lengths`. Raises for tokens that do not fit and for missing
        pages."""
        holds = self.table.shape[1] * self.size
        longest = int(lengths.max()) + new if lengths.numel() else 0
        if longest > holds:
            raise ValueError(f"[{_NAME}] the cache holds {holds} tokens of a sequence; it would have {longest}")
        size = max(self.size, 1)
        used = torch.arange(self.table.shape[1], device="cpu") < (lengths[:, None] + new + size - 1) // size
        outside = used & ((self.table < 0) | (self.table >= self.pages))
        if outside.any():
            raise IndexError(
                f"[{_NAME}] block_table must name pages in 0..{self.pages - 1}; got {int(self.table[outside][0])}"
            )
        positions = lengths.long()[:, None] + torch.arange(new, device="cpu")
        page, slot = self.table.long().gather(1, positions // size), positions % size
        if new:
            self._check_owners(used, lengths.long() + new, page * size + slot)
        return page, slot

    def _check_owners(self, used: Tensor, lengths: Tensor, written: Tensor) -> None:
        """Raises ValueError if a token would be written where another sequence has one. lengths: with the new tokens;
        written: slots of the pool."""
        owners = torch.bincount(self.table[used].long(), minlength=self.pages)
        if int(owners[written // self.size].max()) <= 1:
            return  # nobody else has these pages
        places = torch.arange(int(lengths.max()), device="cpu")
        slots = self.table.long()[:, places // self.size] * self.size + places % self.size
        owners = torch.bincount(slots[places < lengths[:, None]], minlength=self.pages * self.size)
        if int(owners[written].max()) > 1:
            raise ValueError(f"[{_NAME}] a new token of one sequence would overwrite a token of another")


def _lengths(
    q: Tensor, k: Tensor | None, pages: _Pages, given: int | Tensor | None, block_table: Tensor | None
) -> Tensor:
    """[B], before anything is appended."""
    batch = q.shape[0]
    if given is None:
        if k is not None or block_table is not None:
            what = "k and v" if k is not None else "block_table"
            raise ValueError(f"[{_NAME}] cache_seqlens is needed with {what}")
        given = pages.size
    if not isinstance(given, Tensor):
        given = torch.full((batch,), check_int(_NAME, "cache_seqlens", given), dtype=torch.int64, device="cpu")
    _check_ints("cache_seqlens", given, (batch,))
    most = pages.size * pages.table.shape[1]
    outside = (given < 0) | (given > most)
    if outside.any():
        raise ValueError(f"[{_NAME}] cache_seqlens must be in 0..{most}; got {int(given[outside][0])}")
    return given


def _left_pad(given: Tensor | None, lengths: Tensor) -> Text | None:
    if given is None:
        return None
    _check_ints("cache_leftpad", given, tuple(lengths.shape))
    outside = (given < 0) | (given > lengths)
    if outside.any():
        raise ValueError(
            f"[{_NAME}] cache_leftpad must be in 0..cache_seqlens; got {int(given[outside][0])} of {int(lengths[outside][0])}"
        )
    return Text("kv_idx >= first[b]", ["first"], [given])


def _new_tokens(
    k: Tensor | None, v: Tensor | None, k_cache: Tensor, v_cache: Tensor, batch: int
) -> tuple[Tensor, Tensor] | None:
    if k is None and v is None:
        return None
    if k is None or v is None:
        raise ValueError(f"[{_NAME}] k and v come together; {'k' if k is None else 'v'} is missing")
    for name, tensor, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if not isinstance(tensor, Tensor) or tensor.dim() != 4:
            what = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(f"[{_NAME}] {name} must be [batch, new tokens, heads, dim]; got {what}")
        if any(stride == 0 and size > 1 for stride, size in zip(cache.stride(), cache.shape)):
            raise ValueError(f"[{_NAME}] {name}_cache is expanded: its tokens share memory and cannot be written")
        wanted = (batch, k.shape[1], *cache.shape[2:])
        if tuple(tensor.shape) != wanted:
            raise ValueError(f"[{_NAME}] {name} must be {wanted}, as {name}_cache has it; got {tuple(tensor.shape)}")
        if tensor.dtype != cache.dtype or tensor.device != cache.device:
            raise TypeError(
                f"[{_NAME}] {name} must be {cache.dtype} on {cache.device}, as {name}_cache; got {tensor.dtype} on {tensor.device}"
            )
    return k, v


class _Rotary(NamedTuple):
    cos: Tensor
    sin: Tensor
    is_interleaved: bool

    def rotated(self, x: Tensor, lengths: Tensor, is_one_place: bool) -> Tensor:
        """x [B, L, heads, dim]; token j of a sequence is at position lengths + j, or all are at `lengths`."""
        steps = torch.zeros(x.shape[1], dtype=torch.int64) if is_one_place else torch.arange(x.shape[1])
        places = lengths.long()[:, None] + steps
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos, sin = (one[places].unsqueeze(2).to(dtype) for one in (self.cos, self.sin))  # [B, L, 1, half]
        half = cos.shape[-1]
        turned, rest = x[..., : 2 * half].to(dtype), x[..., 2 * half :]
        if self.is_interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
            out = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
        else:
            a, b = turned[..., :half], turned[..., half:]
            out = torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
        return torch.cat((out.to(x.dtype), rest), -1)


def _rotary(
    cos: Tensor | None, sin: Tensor | None, q: Tensor, k: Tensor | None, lengths: Tensor, is_interleaved: bool
) -> _Rotary | None:
    if cos is None and sin is None:
        return None
    if cos is None or sin is None:
        raise ValueError(f"[{_NAME}] rotary_cos and rotary_sin come together")
    if k is None:
        raise ValueError(f"[{_NAME}] rotary_cos and rotary_sin need k and v")
    for name, tensor in (("rotary_cos", cos), ("rotary_sin", sin)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.device.type != "cpu":
            what = f"{tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"[{_NAME}] {name} must be a tensor of floats on the CPU; got {what}")
    if cos.dim() != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > q.shape[-1]:
        raise ValueError(
            f"[{_NAME}] rotary_cos and rotary_sin must be [places, at most {q.shape[-1] // 2}]; got {tuple(cos.shape)} and "
            f"{tuple(sin.shape)}"
        )
    longest = int(lengths.max()) + max(k.shape[1], q.shape[1]) if lengths.numel() else 0
    if cos.shape[0] < longest:
        raise ValueError(f"[{_NAME}] rotary_cos has {cos.shape[0]} places, and {longest} are needed")
    return _Rotary(cos, sin, is_interleaved)


def _check_ints(name: str, tensor: Any, shape: tuple) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype not in (torch.int32, torch.int64):
        what = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"[{_NAME}] {name} must be an int32 or int64 tensor; got {what}")
    fits = tensor.dim() == len(shape) and all(a is None or a == b for a, b in zip(shape, tensor.shape))
    if not fits:
        wanted = ", ".join("pages" if size is None else str(size) for size in shape)
        raise ValueError(f"[{_NAME}] {name} must be [{wanted}]; got {tuple(tensor.shape)}")
    if tensor.device.type != "cpu":
        raise ValueError(f"[{_NAME}] Quire computes on the CPU; got {name} on {tensor.device}")

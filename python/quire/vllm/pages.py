"""Where keys and values lie in vLLM's cache: views of its blocks as pages, and how new rows get there.

vLLM allots [blocks, kv_heads, block_size, K's and V's head dim together] per layer and leaves the inside of a block to the backend. Here a
head's block is its keys, row by row, and then its values: both are read as they lie. With an fp8 cache rows are codes, with one
scale for the tensor or one per head. Python layer, above quire.torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire import _core
from quire.torch.views import view_of

_FORMATS = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
_CODES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
PLAIN = ("auto", "float16", "bfloat16", "float32")


def format_of(kv_cache_dtype: str) -> str | None:
    """The name of the format of codes; None: numbers as they are. NotImplementedError for a format that Quire has not."""
    if kv_cache_dtype in PLAIN:
        return None
    if kv_cache_dtype not in _FORMATS:
        raise NotImplementedError(
            f"[quire.vllm] kv_cache_dtype {kv_cache_dtype!r} is not supported; there are {', '.join((*PLAIN, *_FORMATS))}"
        )
    return _FORMATS[kv_cache_dtype]


class Pages(NamedTuple):
    """Keys and values of a layer, [blocks, kv_heads, block_size, dim] each, as _core takes them. shape: of the cache and of the head
    dims, equal for layers that can share a plan."""

    k: Any
    v: Any
    shape: tuple[int, ...]


def split(cache: Tensor, head_dim: int, v_head_dim: int) -> tuple[Tensor, Tensor]:
    """The pages of keys and of values, codes as uint8. ValueError for a cache that is not laid out by heads."""
    if cache.dtype in _CODES.values():
        cache = cache.view(torch.uint8)
    blocks, heads, size, both = cache.shape
    if both != head_dim + v_head_dim or cache.stride(3) != 1 or cache.stride(2) != both:
        raise ValueError(
            f"[quire.vllm] the cache must be [blocks, kv_heads, block_size, {head_dim + v_head_dim}], the rows of a head of a block side by "
            f"side; got {tuple(cache.shape)} with strides {cache.stride()}"
        )
    outer = (cache.stride(0), cache.stride(1))
    begin = cache.storage_offset()
    k = cache.as_strided((blocks, heads, size, head_dim), (*outer, head_dim, 1), begin)
    v = cache.as_strided((blocks, heads, size, v_head_dim), (*outer, v_head_dim, 1), begin + size * head_dim)
    return k, v


def pages_of(k: Tensor, v: Tensor, format: str | None, k_scale: Tensor, v_scale: Tensor) -> Pages:
    """As they are read. k and v: uint8 of codes, whose scales are [] or [kv_heads]."""
    shape = (*k.shape, v.shape[3])
    if format is None:
        return Pages(view_of(k), view_of(v), shape)
    coding = _core.KVFormat(format)
    coded = (
        _core.coded_view(view_of(pages), view_of(_scales(scale)), coding)
        for pages, scale in ((k, k_scale), (v, v_scale))
    )
    return Pages(*coded, shape)


def latent_pages(cache: Tensor, v_head_dim: int) -> Pages:
    """Of a cache [blocks, block_size, dim] of latent keys, which one head has; values are their first columns."""
    k = cache.unsqueeze(1)
    return Pages(view_of(k), view_of(k[..., :v_head_dim]), (*k.shape, v_head_dim))


def write(
    rows: tuple[Tensor, Tensor],
    slots: Tensor,
    pages: tuple[Tensor, Tensor],
    format: str | None,
    scales: tuple[Tensor, Tensor],
    threads: int,
) -> None:
    """New keys and values [tokens, kv_heads, dim] to their slots; below 0: nowhere. Rows behind the last slot are padding."""
    (k, v), (k_pages, v_pages) = rows, pages
    if format is not None:
        k, v = (encode(one, format, scale) for one, scale in zip(rows, scales, strict=True))
    _core.write_pages(k, v, slots, k_pages, v_pages, threads)


def encode(rows: Tensor, format: str, scale: Tensor) -> Tensor:
    """Codes of rows; what is larger than the largest code becomes that."""
    kind = _CODES[format]
    most = torch.finfo(kind).max
    scaled = rows.float() / _scales(scale).reshape(1, -1, 1)
    return scaled.clamp_(-most, most).to(kind).view(torch.uint8)


def _scales(scale: Tensor) -> Tensor:
    return scale.detach().reshape(-1).to(torch.float32).contiguous()

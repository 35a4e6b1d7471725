"""scaled_dot_product_attention over JAX arrays: masks as rules, over flex_attention. Python layer."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from quire.jax.block_mask import BlockMask, create_block_mask
from quire.jax.flex_attention import flex_attention
from quire.jax.mods import Mod
from quire.option_checks import check_flag
from quire.sdpa import Alignment

_AXES = ("b", "h", "q_idx", "kv_idx")


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Mod | Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    seed: Any = None,
    alignment: Alignment = "top_left",
) -> Any:
    """softmax(query key^T * scale + mask) value.

    Args:
        query: [..., Hq, L, E]; key: [..., Hkv, S, E]; value: [..., Hkv, S, Ev], of one dtype; batch and heads of size 1 are
            broadcast.
        attn_mask: an array that broadcasts to [..., Hq, L, S], bool (True: visible) or float (added to the scores, with
            a gradient); or a rule, as for quire.jax.create_block_mask.
        dropout_p, seed: as for quire.jax.flex_attention.
        is_causal: a query sees the keys up to its own position; not together with attn_mask.
        alignment: which corner the diagonal of is_causal starts in. "bottom_right": the last query sees the last key.

    >>> import jax
    >>> import quire.jax
    >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 8, 300, 64))
    >>> quire.jax.scaled_dot_product_attention(q, k, v, is_causal=True).shape
    (2, 8, 300, 64)
    """
    where = "scaled_dot_product_attention"
    for name, one in (("query", query), ("key", key), ("value", value)):
        if not isinstance(one, (jax.Array, np.ndarray)) or one.ndim < 2:
            raise TypeError(f"[{where}] {name} must be an array of [..., heads, length, dim]; got {_described(one)}")
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(f"[{where}] dtypes must be one; got {query.dtype}, {key.dtype} and {value.dtype}")
    is_causal = check_flag(where, "is_causal", is_causal)
    if is_causal and attn_mask is not None:
        raise ValueError(f"[{where}] attn_mask and is_causal cannot be given both")
    if alignment not in ("top_left", "bottom_right"):
        raise ValueError(f"[{where}] alignment must be 'top_left' or 'bottom_right'; got {alignment!r}")
    is_plane = max(one.ndim for one in (query, key, value)) == 2
    front = np.broadcast_shapes(*(one.shape[:-3] for one in (query, key, value)))
    heads = query.shape[-3] if query.ndim > 2 else 1
    query, key, value = (_of_rank_4(one, front) for one in (query, key, value))
    if key.shape[1] != value.shape[1]:
        shared = max(key.shape[1], value.shape[1])
        key, value = (jnp.broadcast_to(one, (one.shape[0], shared, *one.shape[2:])) for one in (key, value))
    if heads == 1 and key.shape[1] > 1:
        heads = key.shape[1]
        query = jnp.broadcast_to(query, (query.shape[0], heads, *query.shape[2:]))
    is_shared = key.shape[1] == 1 and heads > 1
    lengths = query.shape[2], key.shape[2]
    score_mod, mask = None, None
    if is_causal:
        begin = lengths[1] - lengths[0] if alignment == "bottom_right" else 0
        mask = create_block_mask(f"q_idx + {begin} >= kv_idx" if begin else "q_idx >= kv_idx", None, None, *lengths)
    elif isinstance(attn_mask, (jax.Array, np.ndarray)):
        score_mod, mask = _of_array(where, attn_mask, front, (query.shape[0], heads, *lengths))
    elif attn_mask is not None:
        mask = create_block_mask(attn_mask, query.shape[0], heads, *lengths)
    out = flex_attention(
        query,
        key,
        value,
        score_mod,
        mask,
        scale,
        True if is_shared else enable_gqa,
        dropout_p=dropout_p,
        seed=seed,
    )
    return out[0, 0] if is_plane else out.reshape(*front, heads, *out.shape[2:])


def _described(value: Any) -> str:
    return f"one of shape {value.shape}" if hasattr(value, "shape") else type(value).__name__


def _of_rank_4(array: Any, front: tuple[int, ...]) -> Any:
    heads = array.shape[-3:] if array.ndim > 2 else (1, *array.shape)
    whole = jnp.broadcast_to(array.reshape(*array.shape[:-3], *heads), (*front, *heads))
    return whole.reshape(math.prod(front), *heads)


def _of_array(
    where: str, mask: Any, front: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[Mod | None, BlockMask | None]:
    """A mask given as an array, as a score mod or a block mask; sizes: batch, heads and lengths."""
    whole = (*front, *sizes[1:])
    if mask.ndim > len(whole) or any(n not in (1, size) for n, size in zip(mask.shape[::-1], whole[::-1])):
        raise ValueError(f"[{where}] attn_mask of shape {mask.shape} does not broadcast to {whole}")
    full = jnp.asarray(mask).reshape((1,) * (len(whole) - mask.ndim) + mask.shape)
    if any(n != 1 for n in full.shape[: len(front)]):
        full = jnp.broadcast_to(full, (*front, *full.shape[len(front) :]))
    array = full.reshape(-1, *full.shape[len(front) :])
    place = ", ".join("0" if size == 1 else axis for size, axis in zip(array.shape, _AXES))
    if array.dtype == np.bool_:
        rule = (f"mask[{place}]", {"mask": array})
        return None, create_block_mask(rule, array.shape[0], array.shape[1], *sizes[2:])
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"[{where}] attn_mask must hold bools or floats; got {array.dtype}")
    return (f"score + mask[{place}]", {"mask": array}), None

"""flex_attention over JAX arrays. Python layer, above attention_call.py."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from quire import _core
from quire.attention import check_flex_kernel_options
from quire.jax.attention_call import AttentionCall, Operands, attention, compute_dtype
from quire.jax.block_mask import BlockMask, check_mask_sizes
from quire.jax.mods import Mod, reads_batch, rule_of
from quire.option_checks import check_dropout, check_flag, check_scale, check_seed


def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Mod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    dropout_p: float = 0.0,
    seed: Any = None,
    sinks: Any = None,
) -> Any:
    """softmax(score_mod(query key^T * scale)) value over the keys that the block mask leaves visible.

    Args:
        query: [B, Hq, L, E]; key: [Bkv, Hkv, S, E]; value: [Bkv, Hkv, S, Ev]. f32, bf16, f16, or f64 in JAX's x64 mode.
        score_mod: a text, (text, arrays by name), a ScoreMod, or a function of (score, b, h, q_idx, kv_idx) over jax.numpy
            operations. Arrays of floats that it reads get a gradient.
        block_mask: from quire.jax.create_block_mask.
        scale: a number, 1 / sqrt(E) if not given.
        return_lse: also return the natural log of the sum of exp(score), [B, Hq, L]; it has a gradient.
        dropout_p, seed: the probability that a weight is dropped, and the seed: an int of 64 bits or a jax.random key.
        sinks: [Hq] floats: a logit per head that takes part in the sum of weights but has no value.

    Under vmap, b counts the entries of one call, as without it. Only first-order gradients in reverse mode.

    >>> import jax, jax.numpy as jnp
    >>> import quire.jax
    >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 4, 100, 32))
    >>> slopes = jnp.array([0.5, 0.25, 0.125, 0.0625])
    >>> def loss(slopes):
    ...     return quire.jax.flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i)).sum()
    >>> jax.jit(jax.grad(loss))(slopes).shape
    (4,)
    """
    where = "flex_attention"
    query, key, value = (_array(where, name, one) for name, one in zip(_INPUTS, (query, key, value)))
    if kernel_options is not None:
        check_flex_kernel_options(kernel_options)
    return_lse = check_flag(where, "return_lse", return_lse)
    dropout_p = check_dropout(where, dropout_p)
    if isinstance(scale, jax.core.Tracer):
        raise TypeError(f"[{where}] scale must be a number that is known while JAX traces; multiply the query instead")
    if block_mask is not None and not isinstance(block_mask, BlockMask):
        raise TypeError(
            f"[{where}] block_mask must be a BlockMask of quire.jax.create_block_mask; got {type(block_mask).__name__}"
        )
    if sinks is not None:
        sinks = _array(where, "sinks", sinks)
    call = AttentionCall(
        scale=check_scale(where, scale),
        enable_gqa=check_flag(where, "enable_gqa", enable_gqa),
        dropout_p=dropout_p,
    )
    check_call(call, tuple(map(_kind, (query, key, value, sinks))), _mask_sizes(block_mask))
    score = None
    if score_mod is not None:
        sizes = (*query.shape[:3], key.shape[2])
        score = rule_of(score_mod, compute_dtype(query, key, value), sizes, where)
        call = call._replace(score_mod=score.text, score_names=score.names)
    rule = None if block_mask is None else block_mask.rule
    if block_mask is not None:
        call = call._replace(
            mask_mod=block_mask.rule.text,
            mask_names=block_mask.rule.names,
            mask_sizes=(*block_mask.shape, *block_mask.BLOCK_SIZE),
        )
    is_alike = not reads_batch(score) and not reads_batch(rule) and (block_mask is None or block_mask.shape[0] == 1)
    operands = Operands(
        query,
        key,
        value,
        sinks,
        _seed_words(where, dropout_p, seed),
        () if score is None else score.arrays,
        () if rule is None else rule.arrays,
    )
    out, lse = attention(call._replace(joins_batch=is_alike and dropout_p == 0), operands)
    return (out, lse) if return_lse else out


_INPUTS = ("query", "key", "value")


def _array(where: str, name: str, value: Any) -> Any:
    if not isinstance(value, (jax.Array, np.ndarray)):
        raise TypeError(f"[{where}] {name} must be an array of JAX or NumPy; got {type(value).__name__}")
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"[{where}] {name} must hold floats; got {array.dtype}")
    return array


def _kind(array: Any) -> tuple[Any, ...] | None:
    return None if array is None else (array.shape, array.dtype)


def _mask_sizes(mask: BlockMask | None) -> tuple[Any, ...] | None:
    return None if mask is None else (mask.shape, mask.BLOCK_SIZE)


@functools.lru_cache(maxsize=1024)
def check_call(call: AttentionCall, kinds: tuple[Any, ...], mask: tuple[Any, ...] | None) -> None:
    """Checks sizes, dtypes and options by Quire's own checks while JAX traces, over arrays that take no memory."""
    views = [None if one is None else _core.view(np.broadcast_to(np.zeros((), one[1]), one[0])) for one in kinds]
    options = _core.Options(
        "flex_attention",
        block_mask=None if mask is None else check_mask_sizes(*mask),
        scale=call.scale,
        enable_gqa=call.enable_gqa,
        dropout_p=call.dropout_p,
        sinks=views[3],
    )
    _core.Plan(options, *views[:3])


def _seed_words(where: str, dropout_p: float, seed: Any) -> Any:
    """The seed as two words, the upper one first; None without dropout."""
    if not dropout_p:
        return None
    if seed is None:
        raise ValueError(f"[{where}] dropout needs a seed: an int, or a key of jax.random")
    if isinstance(seed, (jax.Array, np.ndarray)) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    if isinstance(seed, (jax.Array, np.ndarray)) and seed.dtype == np.uint32 and seed.shape == (2,):
        return jnp.asarray(seed)
    if isinstance(seed, (jax.Array, np.ndarray)):
        raise TypeError(f"[{where}] the seed must be an int or a key of jax.random; got {seed.dtype} {seed.shape}")
    number = check_seed(where, dropout_p, seed)
    return jnp.array([number >> 32, number & 0xFFFFFFFF], jnp.uint32)

"""One attention call as JAX sees it: a function with its own gradient, over XLA's foreign function interface.

AttentionCall holds what is fixed when a program is compiled; everything else is an operand. The functions it calls are
those of _core.jax_functions(), which run without the GIL. vmap adds a leading axis to the operands, and the functions
loop over it. Python layer.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from quire import _core

for _name, _function in _core.jax_functions().items():
    jax.ffi.register_ffi_target(_name, _function, platform="cpu")


class AttentionCall(NamedTuple):
    """Texts of mods with the names of their arrays, "" if there is none; `mask_sizes`: B, H, q_len, kv_len, block
    sizes.
    """

    score_mod: str = ""
    score_names: tuple[str, ...] = ()
    mask_mod: str = ""
    mask_names: tuple[str, ...] = ()
    mask_sizes: tuple[int, ...] = (0,) * 6
    scale: float | None = None
    enable_gqa: bool = False
    dropout_p: float = 0.0
    joins_batch: bool = False  # vmap's axis may be merged with the batch: nothing depends on b


class Operands(NamedTuple):
    query: Any
    key: Any
    value: Any
    sinks: Any = None  # [Hq]
    seed: Any = None  # two words, uint32
    score_arrays: tuple[Any, ...] = ()
    mask_arrays: tuple[Any, ...] = ()

    def others(self) -> list[Any]:
        """Everything except query, key and value, in the order that the functions take."""
        single = [one for one in (self.sinks, self.seed) if one is not None]
        return [*single, *self.score_arrays, *self.mask_arrays]


def compute_dtype(*arrays: Any) -> Any:
    """f64 if one of them is, otherwise f32: the dtype of lse and of unrounded outputs."""
    return np.dtype(np.float64 if any(one.dtype == np.float64 for one in arrays) else np.float32)


def _is_float(array: Any) -> bool:
    return jnp.issubdtype(array.dtype, jnp.floating)


def _attributes(call: AttentionCall, operands: Operands, joins_batch: bool) -> dict[str, Any]:
    flags = [call.enable_gqa, operands.sinks is not None, operands.seed is not None, joins_batch]
    attributes = dict(
        score_mod=call.score_mod,
        score_names=",".join(call.score_names),
        mask_mod=call.mask_mod,
        mask_names=",".join(call.mask_names),
        mask_sizes=np.array(call.mask_sizes, np.int64),
        options=np.array([*flags, len(operands.score_arrays)], np.int64),
        dropout_p=np.float64(call.dropout_p),
        learns="".join("1" if _is_float(one) else "0" for one in operands.score_arrays),
        sinks_learn="0" if operands.sinks is None else "1",
    )
    return attributes if call.scale is None else {**attributes, "scale": np.float64(call.scale)}


def _like(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _run(call: AttentionCall, operands: Operands, out_dtype: Any) -> tuple[Any, Any]:
    query, key, value = operands[:3]
    rows = query.shape[:3]
    results = (
        jax.ShapeDtypeStruct((*rows, value.shape[3]), out_dtype),
        jax.ShapeDtypeStruct(rows, compute_dtype(query, key, value)),
    )
    function = jax.ffi.ffi_call("quire_attention", results, vmap_method="expand_dims")
    return function(query, key, value, *operands.others(), **_attributes(call, operands, call.joins_batch))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attention(call: AttentionCall, operands: Operands) -> tuple[Any, Any]:
    """(out, lse): [B, Hq, L, Ev] of the query's dtype, [B, Hq, L]."""
    return _run(call, operands, operands.query.dtype)


def _forward(call: AttentionCall, operands: Operands) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
    # The gradients of arrays that a score mod reads need the output before it is rounded.
    query, key, value = operands[:3]
    is_wide = any(map(_is_float, operands.score_arrays))
    out, lse = _run(call, operands, compute_dtype(query, key, value) if is_wide else query.dtype)
    return (out.astype(query.dtype), lse), (operands, out, lse)


def _backward(call: AttentionCall, residuals: tuple[Any, ...], cotangents: tuple[Any, Any]) -> tuple[Operands]:
    operands, out, lse = residuals
    learning = [one for one in operands.score_arrays if _is_float(one)]
    sinks = [] if operands.sinks is None else [operands.sinks]
    results = [_like(one) for one in (*operands[:3], *sinks, *learning)]
    function = jax.ffi.ffi_call("quire_attention_backward", results, vmap_method="expand_dims")
    joins_batch = call.joins_batch and len(results) == 3  # the other gradients are sums over the batch
    d_out, d_lse = cotangents
    d_query, d_key, d_value, *others = function(
        *operands[:3], out, lse, d_out, d_lse, *operands.others(), **_attributes(call, operands, joins_batch)
    )
    d_sinks = others.pop(0) if sinks else None
    arrays = iter(others)
    return (
        Operands(
            d_query,
            d_key,
            d_value,
            d_sinks,
            None,
            tuple(next(arrays) if _is_float(one) else None for one in operands.score_arrays),
            (None,) * len(operands.mask_arrays),
        ),
    )


attention.defvjp(_forward, _backward)

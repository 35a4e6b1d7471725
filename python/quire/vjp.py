"""flex_attention_vjp: flex_attention and a function that returns its gradients, over arrays and jagged batches.

The arithmetic is _core's. Python layer, above attention.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import _core
from ._core import BlockMask, JaggedBlockMask, MaskMod, ScoreMod
from .arrays import like
from .attention import AuxRequest, aux_output, compute
from .hooks import Rope, hook_options
from .jagged import Jagged, are_jagged
from .option_checks import check_aux, check_dropout, check_flag, check_scale, check_seed, check_weights
from .quantized import kv_view

INPUTS = ("query", "key", "value")


class Gradients(NamedTuple):
    """Each has the shape, dtype and kind of its input; None if not wanted. `buffers`: by the names of the score mod's
    buffers. `weight_buffers`: the weight mod's. `sinks`: None if there are none.

    >>> import numpy, quire
    >>> x = numpy.ones((1, 1, 2, 4), numpy.float32)
    >>> bias = numpy.zeros(2, numpy.float32)
    >>> out, vjp = quire.flex_attention_vjp(x, x, x, quire.ScoreMod("score + bias[kv_idx]", {"bias": bias}), wanted=["value"])
    >>> gradients = vjp(numpy.ones_like(out))
    >>> gradients.query, gradients.value.shape, gradients.buffers["bias"].shape
    (None, (1, 1, 2, 4), (2,))
    """

    query: Any = None
    key: Any = None
    value: Any = None
    buffers: dict[str, Any] = {}
    weight_buffers: dict[str, Any] = {}
    sinks: Any = None


def flex_attention_vjp(
    query: Any,
    key: Any,
    value: Any,
    score_mod: ScoreMod | Callable | str | None = None,
    block_mask: BlockMask | JaggedBlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    return_aux: AuxRequest | None = None,
    q_begin: int | Sequence[int] | None = None,
    mask_mod: MaskMod | Callable | str | None = None,
    wanted: Sequence[str] = INPUTS,
    buffers: Sequence[str] | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    sinks: Any = None,
    lse_with_sinks: bool = False,
    weight_mod: ScoreMod | Callable | str | None = None,
    normalize: str | None = None,
    rope: Rope | None = None,
    key_indices: Any = None,
) -> tuple[Any, Callable[..., Gradients]]:
    """(result, vjp): the result of flex_attention, and vjp(d_out=None, d_lse=None), which returns the gradients of
    sum(out * d_out) + sum(lse * d_lse).

    Args:
        wanted: which of "query", "key" and "value" get a gradient; the others cost nothing.
        buffers: names of the score mod's buffers that get one; by default all that hold floats. Those of a weight mod
            and sinks always get one.
        The others: as for flex_attention. With return_aux the result is (out, AuxOutput).

    d_out: [B, Hq, L, Ev]; d_lse: [B, Hq, L]; floats of any dtype and strides; for Jagged inputs Jagged, or values in
    the query's order. A missing one counts as 0. vjp may be called any number of times and reads the inputs and results
    again, so these must keep their values. Gradients are summed over heads and batch entries that share keys; rows that
    see nothing add 0.

    >>> import numpy, quire
    >>> q, k, v = numpy.random.default_rng(0).standard_normal((3, 1, 2, 60, 32))
    >>> out, vjp = quire.flex_attention_vjp(q, k, v, "30.0 * tanh(score / 30.0)")
    >>> d_out = numpy.ones_like(out)
    >>> step = 1e-6 * numpy.eye(32)[3]  # of one number of each key
    >>> changed = quire.flex_attention(q, k + step, v, "30.0 * tanh(score / 30.0)") - out
    >>> bool(numpy.isclose(changed.sum() / 1e-6, vjp(d_out).key[..., 3].sum(), atol=1e-4))
    True
    """
    if score_mod is not None and type(score_mod) is not ScoreMod:
        score_mod = ScoreMod(score_mod)
    check_wanted("flex_attention_vjp", wanted)
    names = buffer_names("flex_attention_vjp", score_mod, buffers)
    is_jagged = are_jagged("flex_attention_vjp", query, key, value)
    if mask_mod is not None and not isinstance(mask_mod, MaskMod):
        mask_mod = MaskMod(mask_mod)
    _, wants_max = check_aux("flex_attention_vjp", False, return_aux)
    wants = True, wants_max, *check_weights("flex_attention_vjp", return_aux)
    options: dict[str, Any] = dict(
        block_mask=block_mask,
        scale=check_scale("flex_attention_vjp", scale),
        enable_gqa=check_flag("flex_attention_vjp", "enable_gqa", enable_gqa),
        mask_mod=mask_mod,
        q_begin=q_begin,
        dropout_p=check_dropout("flex_attention_vjp", dropout_p),
        seed=check_seed("flex_attention_vjp", dropout_p, seed),
        key_indices=key_indices,
    )
    hooks = hook_options("flex_attention_vjp", sinks, lse_with_sinks, weight_mod, normalize, rope)
    weight_mod = hooks.pop("weight_mod")
    options.update(hooks)
    inputs = query, key, value
    forward = {"score_mod": score_mod, "weight_mod": weight_mod, **options}
    out, lse, *others = compute("flex_attention_vjp", inputs, forward, wants)
    call = _Call(
        inputs,
        (out, lse),
        (score_mod, weight_mod),
        options,
        [name in wanted for name in INPUTS],
        (names, buffer_names("flex_attention_vjp", weight_mod, None)),
        sinks,
        is_jagged,
    )

    if return_aux is None:
        return out, call.gradients
    return (out, aux_output(return_aux, lse if return_aux.lse else None, *others)), call.gradients


def check_wanted(function: str, wanted: Sequence[str]) -> None:
    """Raises ValueError for a name that is not an input."""
    unknown = [name for name in wanted if name not in INPUTS]
    if unknown:
        raise ValueError(f"[{function}] wanted may hold {', '.join(map(repr, INPUTS))}; got {unknown[0]!r}")


def buffer_names(function: str, score_mod: ScoreMod | None, given: Sequence[str] | None) -> list[str]:
    """The buffers that get a gradient, in the mod's order."""
    floats = [] if score_mod is None else _core.float_buffers(score_mod)
    if given is None:
        return floats
    for name in given:
        if name not in floats:
            raise ValueError(f"[{function}] the score mod reads no floats called {name!r}; it reads {floats}")
    return [name for name in floats if name in given]


class _Call(NamedTuple):
    inputs: tuple[Any, Any, Any]
    results: tuple[Any, Any]  # out, lse
    mods: tuple[ScoreMod | None, ScoreMod | None]  # score mod, weight mod
    options: dict[str, Any]  # of _core.Options
    wanted: list[bool]
    names: tuple[list[str], list[str]]  # buffers of both that get a gradient
    sinks: Any
    is_jagged: bool

    def gradients(self, d_out: Any = None, d_lse: Any = None) -> Gradients:
        """The gradients of sum(out * d_out) + sum(lse * d_lse)."""
        (mod, buffers), (weight_mod, weight_buffers) = (
            (mod, []) if not names else _core.with_gradients(mod, names) for mod, names in zip(self.mods, self.names)
        )
        sinks = [] if self.sinks is None else [_empty_like(self.sinks)]
        views = [_view(one) for one in self.inputs]
        new = tuple(
            _core.empty(one.shape, one.dtype) if is_wanted else None for one, is_wanted in zip(views, self.wanted)
        )
        _core.attention_backward(
            _core.Options(
                "flex_attention_vjp", mod, **self.options, weight_mod=weight_mod, learns_sinks=self.sinks is not None
            ),
            *([one.views() for one in self.inputs] if self.is_jagged else views),
            *(_view(one) for one in self.results),
            *(None if one is None else _view(one) for one in (d_out, d_lse)),
            new,
            [*buffers, *weight_buffers, *sinks],
        )
        d_query, d_key, d_value = (
            None if one is None else _like(one, array) for one, array in zip(new, self.inputs, strict=True)
        )
        query = self.inputs[0].values if self.is_jagged else self.inputs[0]
        d_buffers, d_weight_buffers = (
            {name: like(one, query) for name, one in zip(names, found, strict=True)}
            for names, found in zip(self.names, (buffers, weight_buffers))
        )
        d_sinks = like(sinks[0], self.sinks) if sinks else None
        return Gradients(d_query, d_key, d_value, d_buffers, d_weight_buffers, d_sinks)


def _empty_like(array: Any) -> Any:
    view = _core.view(array)
    return _core.empty(view.shape, view.dtype)


def _view(array: Any) -> Any:
    return kv_view(array.values if isinstance(array, Jagged) else array)


def _like(view: Any, array: Any) -> Any:
    return array.with_values(view) if isinstance(array, Jagged) else like(view, array)

"""Plans: attention planned once and run for every layer into the caller's arrays, without allocating.

Planning and arithmetic are _core's. Python layer, above vjp.py and cache_attention.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _core
from ._core import BlockMask, JaggedBlockMask, KVCache, MaskMod, ScoreMod, SequenceId
from .attention import check_dense_mask, jagged_mask
from .cache_attention import SequenceOptions, step_of, step_options
from .hooks import Rope, hook_options
from .jagged import Jagged, are_jagged
from .option_checks import check_queries, check_scale, check_seed
from .quantized import kv_view
from .vjp import INPUTS, buffer_names, check_wanted


class AttentionPlan:
    """flex_attention planned once, for all calls of the same shapes, dtypes, mods and mask.

    Args:
        As for flex_attention. Only shapes and dtypes of query, key and value matter, and for Jagged ones offsets and
        lengths. Arrays that mods read, sinks and the tables of a Rope are read again at every run; key_indices are
        copied.

    One run of a plan at a time.

    >>> import numpy, quire
    >>> q, k, v = numpy.random.default_rng(0).standard_normal((3, 1, 8, 300, 64), numpy.float32)
    >>> causal = quire.create_block_mask("q_idx >= kv_idx", None, None, 300, 300)
    >>> plan = quire.AttentionPlan(q, k, v, block_mask=causal)
    >>> out = numpy.empty_like(q)
    >>> for layer in range(2):
    ...     _ = plan.run(q, k, v, out=out)
    >>> bool(numpy.array_equal(out, quire.flex_attention(q, k, v, block_mask=causal)))
    True
    """

    __slots__ = ("_plan",)

    def __init__(
        self,
        query: Any,
        key: Any,
        value: Any,
        score_mod: ScoreMod | Callable | str | None = None,
        block_mask: BlockMask | JaggedBlockMask | None = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        q_begin: int | Sequence[int] | None = None,
        mask_mod: MaskMod | Callable | str | None = None,
        dropout_p: float = 0.0,
        seed: int | None = None,
        sinks: Any = None,
        lse_with_sinks: bool = False,
        weight_mod: ScoreMod | Callable | str | None = None,
        normalize: str | None = None,
        rope: Rope | None = None,
        key_indices: Any = None,
    ) -> None:
        self._plan = _core.Plan(
            *_call(
                "AttentionPlan",
                (query, key, value),
                score_mod,
                block_mask,
                mask_mod,
                scale=scale,
                enable_gqa=enable_gqa,
                q_begin=q_begin,
                dropout_p=dropout_p,
                seed=seed,
                **hook_options("AttentionPlan", sinks, lse_with_sinks, weight_mod, normalize, rope),
                key_indices=key_indices,
            )
        )

    def run(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        out: Any,
        lse: Any = None,
        max_scores: Any = None,
        key_weights: Any = None,
        entropy: Any = None,
        key_weights_queries: tuple[int, int | None] | None = None,
    ) -> Any:
        """Computes into `out` and returns it. Arrays may be others than the plan's, with other strides.

        Args:
            out: [B, Hq, L, Ev] in the query's dtype, or in f32 if that is the compute type; any strides. Jagged:
                values, or a Jagged of them, in the query's order; holes are not written.
            lse, max_scores, entropy: receive these, row-major [B, Hq, L], f32 (f64 if computed in f64).
            key_weights, key_weights_queries: as in AuxRequest, row-major [B, Hq, S].
        """
        views = (_view(one) for one in (query, key, value, out, lse, max_scores, key_weights, entropy))
        self._plan.run(*views, check_queries("AttentionPlan", key_weights_queries))
        return out

    @property
    def scratch_bytes(self) -> int:
        """Memory it holds, for all threads."""
        return self._plan.scratch_bytes


class AttentionBackwardPlan:
    """The gradients of flex_attention planned once, for all calls of the same shapes, dtypes, mods and mask.

    Args:
        As for flex_attention_vjp. Only shapes and dtypes of query, key and value matter, and for Jagged ones offsets
        and lengths. Arrays that mods read are read again at every run.

    One run of a plan at a time.

    >>> import numpy, quire
    >>> q, k, v, d_out = numpy.random.default_rng(0).standard_normal((4, 1, 8, 300, 64), numpy.float32)
    >>> out, aux = quire.flex_attention(q, k, v, return_aux=quire.AuxRequest(lse=True))
    >>> plan, d_k = quire.AttentionBackwardPlan(q, k, v, wanted=["key"]), numpy.empty_like(k)
    >>> plan.run(q, k, v, out=out, lse=aux.lse, d_out=d_out, d_key=d_k)
    >>> bool(numpy.array_equal(d_k, quire.flex_attention_vjp(q, k, v)[1](d_out).key))
    True
    """

    __slots__ = ("_names", "_plan")

    def __init__(
        self,
        query: Any,
        key: Any,
        value: Any,
        score_mod: ScoreMod | Callable | str | None = None,
        block_mask: BlockMask | JaggedBlockMask | None = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        q_begin: int | Sequence[int] | None = None,
        mask_mod: MaskMod | Callable | str | None = None,
        wanted: Sequence[str] = INPUTS,
        buffers: Sequence[str] | None = None,
        dropout_p: float = 0.0,
        seed: int | None = None,
    ) -> None:
        if score_mod is not None and type(score_mod) is not ScoreMod:
            score_mod = ScoreMod(score_mod)
        check_wanted("AttentionBackwardPlan", wanted)
        self._names = buffer_names("AttentionBackwardPlan", score_mod, buffers)
        if self._names:
            score_mod, _ = _core.with_gradients(score_mod, self._names)
        self._plan = _core.BackwardPlan(
            *_call(
                "AttentionBackwardPlan",
                (query, key, value),
                score_mod,
                block_mask,
                mask_mod,
                scale=scale,
                enable_gqa=enable_gqa,
                q_begin=q_begin,
                dropout_p=dropout_p,
                seed=seed,
            ),
            tuple(name in wanted for name in INPUTS),
        )

    def run(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        out: Any,
        lse: Any,
        d_out: Any = None,
        d_lse: Any = None,
        d_query: Any = None,
        d_key: Any = None,
        d_value: Any = None,
        d_buffers: Mapping[str, Any] | None = None,
    ) -> None:
        """Computes the gradients of sum(out * d_out) + sum(lse * d_lse) into the given arrays: one for each that is
        wanted, of the shape and dtype of its input, any strides. d_buffers: by the buffers' names.

        Args:
            out, lse: from the forward pass; lse f32 (f64 if computed in f64).
            d_out, d_lse: 0 if not given.
        """
        given = {} if d_buffers is None else dict(d_buffers)
        missing = [name for name in self._names if name not in given] + [
            name for name in given if name not in self._names
        ]
        if missing:
            raise ValueError(
                f"[AttentionBackwardPlan] d_buffers must have an array for each of {self._names}; got {list(given)}"
            )
        self._plan.run(
            *(_view(one) for one in (query, key, value, out, lse, d_out, d_lse)),
            tuple(_view(one) for one in (d_query, d_key, d_value)),
            [_view(given[name]) for name in self._names],
        )

    @property
    def scratch_bytes(self) -> int:
        """Memory it holds, for all threads."""
        return self._plan.scratch_bytes


class AttendPlan:
    """attend planned once per step, for all layers of the cache, or of a group of them.

    Args:
        q_heads, dtype: of the queries.
        group: of layers; a plan serves the layers of one group.
        The others: as for attend.

    Valid until the cache changes (writing rows does not count). One run of a plan at a time.

    >>> import numpy, quire
    >>> random = numpy.random.default_rng(0)
    >>> cache = quire.KVCache(layers=2, kv_heads=2, head_dim=64, n_pages=64)
    >>> sequences = [cache.create(), cache.create()]
    >>> k, v = random.standard_normal((2, 2, 120, 2, 64), numpy.float32)  # layers, tokens of both, heads, dim
    >>> cache.append(sequences, counts=[20, 100], k=k, v=v)
    >>> q = random.standard_normal((2, 8, 64), numpy.float32)  # the last token of each
    >>> plan, out = quire.AttendPlan(cache, sequences, q_heads=8), numpy.empty_like(q)
    >>> [bool(numpy.array_equal(plan.run(layer, q, out=out), quire.attend(cache, layer, sequences, q))) for layer in (0, 1)]
    [True, True]
    """

    __slots__ = ("_cache", "_plan")

    def __init__(
        self,
        cache: KVCache,
        sequences: SequenceId | Sequence[SequenceId],
        q_heads: int,
        dtype: Any = "float32",
        score_mod: ScoreMod | Callable | str | None = None,
        mask_mod: MaskMod | Callable | str | None = None,
        *,
        counts: int | Sequence[int] | None = None,
        window: int = 0,
        scale: float | None = None,
        dropout_p: float = 0.0,
        seed: int | None = None,
        group: int = 0,
        sequence_options: Sequence[SequenceOptions] = (),
        sinks: Any = None,
        lse_with_sinks: bool = False,
        weight_mod: ScoreMod | Callable | str | None = None,
        normalize: str | None = None,
        rope: Rope | None = None,
        key_indices: Any = None,
    ) -> None:
        hooks = hook_options("AttendPlan", sinks, lse_with_sinks, weight_mod, normalize, rope)
        hooks["key_indices"] = key_indices
        options = step_options(
            "AttendPlan", score_mod, mask_mod, window, scale, dropout_p, seed, hooks, sequence_options
        )
        self._cache = cache
        self._plan = _core.Plan(options, cache, *step_of(sequences, counts), q_heads, dtype, group)

    def run(
        self,
        layer: int,
        q: Any,
        *,
        out: Any,
        lse: Any = None,
        max_scores: Any = None,
        key_weights: Any = None,
        entropy: Any = None,
        key_weights_queries: tuple[int, int | None] | None = None,
    ) -> Any:
        """Computes into `out`, [tokens, q_heads, v_head_dim] in q's dtype, and returns it. lse, max_scores and entropy
        receive these, row-major [tokens, q_heads]; key_weights: [sequences, q_heads, tokens of the longest]."""
        views = (_view(one) for one in (q, out, lse, max_scores, key_weights, entropy))
        self._plan.run_step(self._cache, layer, *views, check_queries("AttendPlan", key_weights_queries))
        return out

    @property
    def tokens(self) -> int:
        """Number of queries of the step."""
        return self._plan.tokens

    @property
    def scratch_bytes(self) -> int:
        """Memory it holds, for all threads."""
        return self._plan.scratch_bytes


def _call(
    function: str, inputs: tuple[Any, Any, Any], score_mod: Any, block_mask: Any, mask_mod: Any, **options: Any
) -> tuple[Any, ...]:
    """The options and views that a plan is made from."""
    if score_mod is not None and type(score_mod) is not ScoreMod:
        score_mod = ScoreMod(score_mod)
    if are_jagged(function, *inputs):
        mask_mod, block_mask = jagged_mask(mask_mod, block_mask, function)
        views = [one.views() for one in inputs]
    else:
        check_dense_mask(function, mask_mod, block_mask)
        views = [_core.view(inputs[0]), kv_view(inputs[1]), kv_view(inputs[2])]
    options["scale"] = check_scale(function, options["scale"])
    options["seed"] = check_seed(function, options["dropout_p"], options["seed"])
    return _core.Options(function, score_mod=score_mod, mask_mod=mask_mod, block_mask=block_mask, **options), *views


def _view(array: Any) -> Any:
    if array is None:
        return None
    return kv_view(array.values if isinstance(array, Jagged) else array)

"""Plans: attention worked out once and run for every layer, into arrays of the caller's, with nothing allocated.

The planning and the arithmetic are _core's. Layer: Python, above attention.py and cache_attention.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import _core
from ._core import BlockMask, JaggedBlockMask, KVCache, MaskMod, ScoreMod, SequenceId
from .attention import check_dense_mask, jagged_mask
from .cache_attention import SequenceOptions, step_of, step_options
from .jagged import Jagged, are_jagged
from .option_checks import check_scale, check_seed


class AttentionPlan:
    """flex_attention planned once, for all calls of the same shapes, dtypes, mods and mask.

    Args:
        As of flex_attention. Of query, key and value only shapes and dtypes count, of Jagged ones offsets and lengths too.
        Arrays that mods read are read again at every run.

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
    ) -> None:
        if score_mod is not None and type(score_mod) is not ScoreMod:
            score_mod = ScoreMod(score_mod)
        is_jagged = are_jagged("AttentionPlan", query, key, value)
        if is_jagged:
            mask_mod, block_mask = jagged_mask(mask_mod, block_mask)
            views = query.views(), key.views(), value.views()
        else:
            check_dense_mask("AttentionPlan", mask_mod, block_mask)
            views = _core.view(query), _core.view(key), _core.view(value)
        options = _core.Options(
            "AttentionPlan",
            score_mod=score_mod,
            mask_mod=mask_mod,
            block_mask=block_mask,
            scale=check_scale("AttentionPlan", scale),
            enable_gqa=enable_gqa,
            q_begin=q_begin,
            dropout_p=dropout_p,
            seed=check_seed("AttentionPlan", dropout_p, seed),
        )
        self._plan = _core.Plan(options, *views)

    def run(self, query: Any, key: Any, value: Any, *, out: Any, lse: Any = None, max_scores: Any = None) -> Any:
        """Computes into `out` and returns it. Arrays may lie elsewhere and have other strides than the plan's.

        Args:
            out: [B, Hq, L, Ev] in the query's dtype, or in f32 where that is computed in; any strides. Jagged: values, or a
                Jagged of them, in the query's order; holes are not written.
            lse, max_scores: where to put them, row-major [B, Hq, L], f32 (f64 if computed in f64).
        """
        views = [_core.view(_values(one)) for one in (query, key, value, out)]
        self._plan.run(*views, *(None if one is None else _core.view(_values(one)) for one in (lse, max_scores)))
        return out

    @property
    def scratch_bytes(self) -> int:
        """Memory it holds, for all threads."""
        return self._plan.scratch_bytes


class AttendPlan:
    """attend planned once per step, for all layers of the cache, or of a group of them.

    Args:
        q_heads, dtype: of the queries.
        group: of layers; a plan is for the layers of one.
        The others: as of attend.

    Good until the cache changes (writing rows does not count). One run of a plan at a time.

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
    ) -> None:
        options = step_options("AttendPlan", score_mod, mask_mod, window, scale, dropout_p, seed, sequence_options)
        self._cache = cache
        self._plan = _core.Plan(options, cache, *step_of(sequences, counts), q_heads, dtype, group)

    def run(self, layer: int, q: Any, *, out: Any, lse: Any = None, max_scores: Any = None) -> Any:
        """Computes into `out`, [tokens, q_heads, v_head_dim] in q's dtype, and returns it. lse and max_scores: where to put
        them, row-major [tokens, q_heads]."""
        stats = (None if one is None else _core.view(one) for one in (lse, max_scores))
        self._plan.run_step(self._cache, layer, _core.view(q), _core.view(out), *stats)
        return out

    @property
    def tokens(self) -> int:
        """Queries of the step."""
        return self._plan.tokens

    @property
    def scratch_bytes(self) -> int:
        """Memory it holds, for all threads."""
        return self._plan.scratch_bytes


def _values(array: Any) -> Any:
    return array.values if isinstance(array, Jagged) else array

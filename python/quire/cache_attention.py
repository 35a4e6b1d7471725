"""attend: attention of the newest tokens of many sequences over a KVCache; merge_states: combines attention over parts
of the keys. Over NumPy and DLPack arrays; the arithmetic is _core's. Python layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from . import _core
from ._core import KVCache, MaskMod, ScoreMod, SequenceId
from .arrays import like
from .attention import AuxRequest, aux_output
from .hooks import Rope, hook_options
from .option_checks import check_aux, check_dropout, check_int, check_scale, check_seed, check_weights


@dataclasses.dataclass(frozen=True)
class SequenceOptions:
    """Options of a single sequence in a step, identified by its handle.

    Args:
        sequence: its handle.
        q_begin: q_idx of its first query; by default its queries are its last tokens.
        window: overrides the step's; 0: none.
        mask_mod: overrides the step's.
        parents: makes its last tokens (at least its queries) a tree: for each the index of its parent among them, which
            must come earlier, or -1 for a child of the last token before the tree. A token sees the tokens before the
            tree, its ancestors and itself. Windows and mods count along paths: q_idx and kv_idx are depths.
        b: what mods see as b; by default its index in the step.

    >>> import numpy, quire
    >>> cache = quire.KVCache(layers=1, kv_heads=1, head_dim=8, n_pages=4)
    >>> sequence = cache.create()
    >>> rows = numpy.random.default_rng(0).standard_normal((1, 12, 1, 8), numpy.float32)
    >>> cache.append(sequence, 12, k=rows, v=rows)
    >>> tree = quire.SequenceOptions(sequence, parents=[-1, 0, 0])  # two guesses for the last token
    >>> quire.attend(cache, 0, sequence, rows[0, 9:], window=4, sequence_options=[tree]).shape
    (3, 1, 8)
    """

    sequence: SequenceId
    q_begin: int | None = None
    window: int | None = None
    mask_mod: MaskMod | Callable | str | None = None
    parents: Sequence[int] | None = None
    b: int | None = None


def attend(
    cache: KVCache,
    layer: int,
    sequences: SequenceId | Sequence[SequenceId],
    q: Any,
    score_mod: ScoreMod | Callable | str | None = None,
    mask_mod: MaskMod | Callable | str | None = None,
    *,
    counts: int | Sequence[int] | None = None,
    window: int = 0,
    scale: float | None = None,
    return_lse: bool = False,
    return_aux: AuxRequest | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    sequence_options: Sequence[SequenceOptions] = (),
    key_indices: Any = None,
    sinks: Any = None,
    lse_with_sinks: bool = False,
    weight_mod: ScoreMod | Callable | str | None = None,
    normalize: str | None = None,
    rope: Rope | None = None,
) -> Any:
    """Attention of the last tokens of each sequence over the sequence's keys in a layer.

    Args:
        cache: must not change while this runs; concurrent calls of attend are fine.
        sequences: one, or a list in the order of the queries.
        q: [tokens, q_heads, head_dim], the last tokens of each sequence, one sequence after the other; any strides.
        score_mod, mask_mod: as for flex_attention. b is the index of the sequence in the list; q_idx and kv_idx are
            positions in the sequence. Without a mask each token sees itself and earlier ones.
        counts: how many tokens of each; by default all of q for one sequence, one each for a list.
        window: how many tokens a token sees, itself included, restricted by mask_mod; 0: mask_mod alone decides,
            without one it sees all earlier tokens. A group of layers may have its own window.
        scale: 1 / sqrt(head_dim) if not given.
        return_lse, return_aux: as for flex_attention; [tokens, q_heads]. key_weights: [sequences, q_heads, tokens of
            the longest].
        dropout_p, seed, sinks, lse_with_sinks, weight_mod, normalize, rope: as for flex_attention.
        key_indices: int32 [tokens, k], or [tokens, q_heads, k]: the only positions that each token sees, further
            restricted by the mask; -1 marks an unused entry.
        sequence_options: options of single sequences of the step, in any order; others are ignored.

    Returns:
        [tokens, q_heads, v_head_dim] of q's kind and dtype, with the bits of flex_attention over each sequence alone.

    >>> import numpy, quire
    >>> random = numpy.random.default_rng(0)
    >>> cache = quire.KVCache(layers=1, kv_heads=2, head_dim=64, n_pages=64)
    >>> sequences = [cache.create(), cache.create()]
    >>> k, v = random.standard_normal((2, 1, 120, 2, 64), numpy.float32)  # layers, tokens of both, heads, dim
    >>> cache.append(sequences, counts=[20, 100], k=k, v=v)
    >>> q = random.standard_normal((2, 8, 64), numpy.float32)  # the last token of each
    >>> out = quire.attend(cache, 0, sequences, q)
    >>> alone = quire.flex_attention(
    ...     q[1].reshape(1, 8, 1, 64), *(one[:, 20:].swapaxes(1, 2) for one in (k, v)), enable_gqa=True
    ... )
    >>> out.shape, bool(numpy.array_equal(out[1], alone[0, :, 0]))
    ((2, 8, 64), True)
    """
    wants = (*check_aux("attend", return_lse, return_aux), *check_weights("attend", return_aux))
    if not isinstance(cache, KVCache):
        raise TypeError(f"[attend] cache must be a KVCache; got {type(cache).__name__}")
    layer, window = check_int("attend", "layer", layer), check_int("attend", "window", window)
    scale = check_scale("attend", scale)
    view = _core.view(q)
    if isinstance(sequences, SequenceId):
        count: Any = (view.shape[:1] or (0,))[0] if counts is None else counts
        sequences, counts = [sequences], [count]
    sequences, counts = step_of(sequences, counts)
    hooks = hook_options("attend", sinks, lse_with_sinks, weight_mod, normalize, rope)
    hooks["key_indices"] = key_indices
    options = step_options("attend", score_mod, mask_mod, window, scale, dropout_p, seed, hooks, sequence_options)
    results = _core.attend(options, cache, layer, sequences, counts, view, *wants)
    out, lse, *others = (None if one is None else like(one, q) for one in results)
    if return_aux is not None:
        return out, aux_output(return_aux, lse, *others)
    return (out, lse) if return_lse else out


def _sequences(given: Any) -> list[SequenceId]:
    if not hasattr(given, "__iter__"):
        raise TypeError(
            f"[attend] sequences must be a SequenceId or a list of them; got {type(given).__name__} {given!r}"
        )
    found = list(given)
    for one in found:
        if not isinstance(one, SequenceId):
            raise TypeError(f"[attend] each of sequences must be a SequenceId; got {type(one).__name__} {one!r}")
    return found


def step_of(
    sequences: SequenceId | Sequence[SequenceId], counts: int | Sequence[int] | None
) -> tuple[list[SequenceId], list[int]]:
    """The sequences of a step and the number of tokens of each, one by default."""
    found = _sequences([sequences] if isinstance(sequences, SequenceId) else sequences)
    each: Any = counts
    if counts is None or not hasattr(counts, "__len__"):
        each = [1 if counts is None else counts] * len(found)
    return found, [check_int("attend", "each of counts", one) for one in each]


def _sequence_options(where: str, given: Any) -> _core.SequenceOptions:
    if not isinstance(given, SequenceOptions):
        raise TypeError(
            f"[{where}] each of sequence_options must be a SequenceOptions; got {type(given).__name__} {given!r}"
        )
    mask_mod = given.mask_mod
    if mask_mod is not None and not isinstance(mask_mod, MaskMod):
        mask_mod = MaskMod(mask_mod)
    return _core.SequenceOptions(
        _sequences([given.sequence])[0],
        q_begin=None if given.q_begin is None else check_int(where, "q_begin", given.q_begin),
        window=None if given.window is None else check_int(where, "window", given.window),
        mask_mod=mask_mod,
        parents=[check_int(where, "each of parents", one) for one in given.parents or ()],
        b=None if given.b is None else check_int(where, "b", given.b),
    )


def step_options(
    where: str,
    score_mod: Any,
    mask_mod: Any,
    window: int,
    scale: Any,
    dropout_p: float,
    seed: int | None,
    hooks: dict[str, Any],
    sequence_options: Sequence[SequenceOptions] = (),
) -> _core.Options:
    """hooks: as returned by hook_options."""
    if score_mod is not None and not isinstance(score_mod, ScoreMod):
        score_mod = ScoreMod(score_mod)
    if mask_mod is not None and not isinstance(mask_mod, MaskMod):
        mask_mod = MaskMod(mask_mod)
    return _core.Options(
        where,
        score_mod=score_mod,
        mask_mod=mask_mod,
        window=check_int(where, "window", window),
        scale=check_scale(where, scale),
        dropout_p=check_dropout(where, dropout_p),
        seed=check_seed(where, dropout_p, seed),
        **hooks,
        sequence_options=[_sequence_options(where, one) for one in sequence_options],
    )


def merge_states(*states: Any) -> tuple[Any, Any]:
    """Combines (out, lse) over parts of the keys to (out, lse) over all keys: merge_states((out, lse), (out, lse),
    ...), or a list of such pairs.

    out: [..., dim]; lse: [...], natural log; shapes and dtypes must be equal. A row with an lse of -inf saw nothing: its out
    is not read, and merging it changes no bit. Results are arrays of the first out's kind.

    >>> import numpy, quire
    >>> q, k, v = numpy.random.default_rng(0).standard_normal((3, 1, 2, 60, 32), numpy.float32)
    >>> parts = [quire.flex_attention(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 25), slice(25, 60))]
    >>> out, lse = quire.merge_states(*parts)
    >>> bool(numpy.allclose(out, quire.flex_attention(q, k, v), atol=1e-6))
    True
    """
    if len(states) == 1 and isinstance(states[0], (list, tuple)) and not _is_state(states[0]):
        states = tuple(states[0])
    for state in states:
        if not _is_state(state):
            raise TypeError(f"[merge_states] a state must be a pair (out, lse) of arrays; got {type(state).__name__}")
    out, lse = _core.merge_states([(_core.view(one), _core.view(its_lse)) for one, its_lse in states])
    kind = states[0][0]
    return like(out, kind), like(lse, kind)


def _is_state(state: Any) -> bool:
    return (
        isinstance(state, (list, tuple))
        and len(state) == 2
        and not any(isinstance(one, (list, tuple)) for one in state)
    )

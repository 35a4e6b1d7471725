"""LayerRule: what an attention layer computes beside its tensors, as the options of a Quire call.

Layers whose rules are equal share the plan of a step. Knows formulas, not vLLM. Python layer, above layer_mods.py.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire import _core
from quire.torch.views import view_of
from quire.vllm.layer_mods import LayerMods


class LayerRule(NamedTuple):
    """scale: of the scores. window: how many keys a query sees, its own included; None: all. softcap: 0 for none. alibi: a slope per query
    head. is_alibi_sqrt: slopes of the square root of the distance. has_sinks: a logit per query head without a value."""

    scale: float
    window: int | None = None
    softcap: float = 0.0
    alibi: tuple[float, ...] = ()
    is_alibi_sqrt: bool = False
    has_sinks: bool = False
    mods: LayerMods = LayerMods()


def score_mod(rule: LayerRule) -> Any:
    """The _core.ScoreMod of soft-cap, then ALiBi, then the user's; None if there is nothing to do."""
    found = _own_score_mod(rule.softcap, rule.alibi, rule.is_alibi_sqrt)
    theirs = rule.mods.score_mod
    if found is None or theirs is None:
        return theirs if found is None else found
    return _core.ScoreMod(lambda score, b, h, q, kv: theirs(found(score, b, h, q, kv), b, h, q, kv))


@functools.lru_cache(maxsize=64)
def _own_score_mod(softcap: float, alibi: tuple[float, ...], is_alibi_sqrt: bool) -> Any:
    text = f"{softcap!r} * tanh(score / {softcap!r})" if softcap else "score"
    if not alibi:
        return _core.ScoreMod(text) if softcap else None
    distance = "abs(kv_idx - q_idx)"
    far = f"sqrt({distance})" if is_alibi_sqrt else distance
    slopes = torch.tensor(alibi, dtype=torch.float32)
    return _core.ScoreMod(f"{text} - slopes[h] * {far}", {"slopes": view_of(slopes)})


def mask_of_step(rule: LayerRule, causal: bool | Tensor) -> tuple[int, Any]:
    """(window, mask mod) as a step takes them: without a mod each token sees itself and those before it. causal: of all requests, or a
    flag for each."""
    theirs = rule.mods.mask_mod
    window = rule.window or 0
    if causal is True:
        if theirs is None:
            return window, None
        return window, theirs if window else _core.MaskMod("kv_idx <= q_idx") & theirs
    flags = torch.as_tensor(causal).reshape(-1).to(torch.bool).contiguous()
    if flags.numel() == 1:
        mask = _window_around(window)
        return 0, mask if theirs is None else mask & theirs
    near = f"kv_idx > q_idx - {window}" if window else "True"
    ahead = f"kv_idx < q_idx + {window}" if window else "True"
    text = f"(causal[b] and kv_idx <= q_idx and {near}) or (not causal[b] and {near} and {ahead})"
    mask = _core.MaskMod(text, {"causal": view_of(flags)})
    return 0, mask if theirs is None else mask & theirs


def mask_around(rule: LayerRule) -> Any:
    """The mask mod of a layer that looks both ways; None if it sees everything."""
    theirs = rule.mods.mask_mod
    if not rule.window:
        return theirs
    mask = _window_around(rule.window)
    return mask if theirs is None else mask & theirs


@functools.lru_cache(maxsize=64)
def _window_around(window: int) -> Any:
    """Both ways, so many keys on each side, a query's own included."""
    return _core.MaskMod(f"abs(q_idx - kv_idx) < {window}" if window else "True")


def options_of(rule: LayerRule, sinks: Tensor | None, window: int, mask_mod: Any, threads: int) -> Any:
    """The _core.Options of a plan. sinks: read at each run."""
    return _core.Options(
        "quire.vllm",
        score_mod=score_mod(rule),
        mask_mod=mask_mod,
        window=window,
        scale=rule.scale,
        enable_gqa=True,
        openmp_threads=threads,
        sinks=None if sinks is None else view_of(sinks),
    )

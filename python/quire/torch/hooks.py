"""Sinks, weights by a formula and rotation for a call over tensors: the user's arguments, bound to this call's tensors;
and the same as arguments of an operator in a graph.

Python layer, above forward.py and mods.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quire.hooks import Rope, check_normalize, rope_tables
from quire.option_checks import check_flag
from quire.torch.forward import Hooks
from quire.torch.mods import bind_score_mod
from quire.torch.views import view_of


class HookArguments(NamedTuple):
    """As given by the user."""

    sinks: Any = None
    lse_with_sinks: bool = False
    weight_mod: Any = None
    normalize: str | None = None
    rope: Rope | None = None


class BoundHooks(NamedTuple):
    """Bound to one call."""

    hooks: Hooks
    tensors: list[Tensor]  # what the weight mod reads, then the sinks
    weight_reads: int
    needs_grad: bool


def has_hooks(given: HookArguments) -> bool:
    """Whether anything is given."""
    return (
        given.sinks is not None
        or bool(given.lse_with_sinks)
        or given.weight_mod is not None
        or given.normalize is not None
        or given.rope is not None
    )


def check_hooks(where: str, given: HookArguments) -> None:
    """Raises TypeError or ValueError for invalid arguments."""
    if given.sinks is not None and not isinstance(given.sinks, Tensor):
        raise TypeError(f"[{where}] sinks must be a tensor [q_heads]; got {type(given.sinks).__name__}")
    check_flag(where, "lse_with_sinks", given.lse_with_sinks)
    check_normalize(where, given.normalize)
    if given.rope is None:
        return
    if not isinstance(given.rope, Rope):
        raise TypeError(f"[{where}] rope must be a Rope; got {type(given.rope).__name__} {given.rope!r}")
    for table in (given.rope.cos, given.rope.sin):
        if isinstance(table, Tensor) and table.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"[{where}] the tables of a Rope get no gradient: detach them")


def bind_hooks(where: str, given: HookArguments, dtype: torch.dtype) -> BoundHooks | None:
    """None if nothing is given. dtype: of the scores."""
    if not has_hooks(given):
        return None
    check_hooks(where, given)
    weight_mod, tensors, needs_grad = None, [], False
    if given.weight_mod is not None:
        weight_mod, bound_tensors, needs_grad, _ = bind_score_mod(given.weight_mod, dtype)
        tensors = list(bound_tensors)
    weight_reads = len(tensors)
    if given.sinks is not None:
        tensors.append(given.sinks)
        needs_grad = needs_grad or given.sinks.requires_grad
    rope = rope_tables(where, given.rope, lambda table: view_of(torch.as_tensor(table)))
    hooks = Hooks(given.sinks, bool(given.lse_with_sinks), weight_mod, given.normalize, rope)
    return BoundHooks(hooks, tensors, weight_reads, needs_grad)


# ---- in a graph

_WEIGHTS = {None: "none", "sum": "sum"}  # normalize, as the operator names it


def operator_arguments(given: HookArguments) -> tuple:
    """The last arguments of the operator. The weight mod is part of its score mod (weights: how it is normalised, ""
    for softmax).
    """
    rope = given.rope
    if rope is None:
        numbers: tuple = (0.0, 0, False, None, None)
    else:
        tables = (None if table is None else torch.as_tensor(table) for table in (rope.cos, rope.sin))
        numbers = (float(rope.theta), rope.dims or 0, bool(rope.interleaved), *tables)
    weights = "" if given.weight_mod is None else _WEIGHTS[given.normalize]
    return (given.sinks, bool(given.lse_with_sinks), weights, *numbers)


def operator_hooks(
    mod: Any,
    sinks: Tensor | None = None,
    lse_with_sinks: bool = False,
    weights: str = "",
    theta: float = 0.0,
    dims: int = 0,
    interleaved: bool = False,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> tuple[Any, Hooks | None]:
    """The score mod and the Hooks from an operator's arguments, whose formula is mod."""
    is_rotated = cos is not None or sin is not None or theta != 0.0
    if sinks is None and not weights and not is_rotated and not lse_with_sinks:
        return mod, None
    rope = Rope(theta, cos, sin, dims or None, interleaved) if is_rotated else None
    return (None if weights else mod), Hooks(
        sinks,
        lse_with_sinks,
        (mod or _identity()) if weights else None,
        "sum" if weights == "sum" else None,
        rope_tables("flex_attention", rope, view_of),
    )


def _identity() -> Any:
    return bind_score_mod("score").mod


def composed(score_mod: Any, weight_mod: Any) -> Any:
    """The function from a score to its weight, which in a graph replaces both."""
    if weight_mod is None:
        return score_mod
    for mod in (score_mod, weight_mod):
        if mod is not None and not callable(mod):
            raise TypeError(
                f"[flex_attention] with weight_mod, mods are functions over tensors under torch.compile; got {type(mod).__name__}"
            )
    if score_mod is None:
        return weight_mod

    def weight_of_score(score, b, h, q_idx, kv_idx):
        return weight_mod(score_mod(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)

    return weight_of_score

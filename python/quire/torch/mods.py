"""From what a user gives as a mod (a function over tensors, a quire mod, a text) to a _core mod with its tensors.

The tracer (trace/) turns functions into mods once and finds the captured tensors of each call, so that a call only
binds addresses. Python layer, above trace/ and views.py.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from quire import _core
from quire.mod_calls import refuse_other_kind
from quire.torch.trace import Traced, trace_mask_mod, trace_score_mod
from quire.torch.views import view_of


class Bound(NamedTuple):
    """A mod bound to one call."""

    mod: Any  # _core.ScoreMod or _core.MaskMod, its buffers bound to `tensors`
    tensors: list  # torch tensors that it reads, in the order of its buffers
    needs_grad: bool  # one of them asks for a gradient
    key: Any  # the same object at every call whose formula is the same


def bind_traced(kind: Any, traced: Traced) -> Bound:
    """The tracer's result as a mod. `kind`: _core.ScoreMod or _core.MaskMod."""
    tensors = traced.tensors
    if not tensors:
        return Bound(traced.mod, [], False, traced.constant)
    needs_grad = any(tensor.requires_grad for tensor in tensors)
    return Bound(kind.bind(traced.mod, list(map(view_of, tensors))), tensors, needs_grad, traced.constant)


@functools.lru_cache(maxsize=256)
def _parse(kind: type, text: str) -> Any:
    return kind(text)


def _given(kind: type, mod: Any) -> Bound:
    """A text or a quire mod, which has its buffers."""
    parsed = _parse(kind, mod) if isinstance(mod, str) else kind(mod)
    return Bound(parsed, [], False, mod)


GIVEN = (str, _core.ScoreMod, _core.MaskMod)


def bind_score_mod(mod: Any, dtype: torch.dtype = torch.float32) -> Bound:
    """`mod`: f(score, b, h, q_idx, kv_idx) over tensors, a quire.ScoreMod or a text. `dtype`: of the score."""
    if isinstance(mod, GIVEN):
        return _given(_core.ScoreMod, mod)
    try:
        return bind_traced(_core.ScoreMod, trace_score_mod(mod, dtype))
    except TypeError as error:
        _explain(error, mod, "score_mod", 5)
        raise


def bind_mask_mod(mod: Any) -> Bound:
    """`mod`: f(b, h, q_idx, kv_idx) over tensors, a quire.MaskMod or a text."""
    rule = mask_rule(mod)
    return rule if isinstance(rule, Bound) else bind_traced(_core.MaskMod, rule)


def mask_rule(mod: Any) -> Bound | Traced:
    """The same before its tensors are bound, for callers that may already have it bound."""
    if isinstance(mod, GIVEN):
        return _given(_core.MaskMod, mod)
    try:
        return trace_mask_mod(mod)
    except TypeError as error:
        _explain(error, mod, "mask_mod", 4)
        raise


def _explain(error: TypeError, mod: Any, what: str, count: int) -> None:
    """Raises a helpful TypeError if the mod is not a function, or one of the other kind."""
    if not callable(mod):
        raise TypeError(
            f"[{what}] a function over tensors, a quire mod or a text is needed; got {type(mod).__name__}"
        ) from error
    refuse_other_kind(what, mod.forward if isinstance(mod, torch.nn.Module) else mod, count, error)


def positional_arguments(mod: Callable) -> int:
    """How many arguments without a default a mod takes, not counting `self` of a bound method."""
    if type(mod) is types.FunctionType:
        return mod.__code__.co_argcount - len(mod.__defaults__ or ())
    if isinstance(mod, torch.nn.Module):
        mod = mod.forward
    return sum(
        1
        for parameter in inspect.signature(mod).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    )


def is_score_mod(mod: Any) -> bool:
    """Whether a mod is a score mod (5 arguments) rather than a mask mod (4). Raises AssertionError otherwise, as torch
    does."""
    if isinstance(mod, _core.ScoreMod):
        return True
    if isinstance(mod, (_core.MaskMod, str)):
        return False
    count = positional_arguments(mod)
    if count not in (4, 5):
        raise AssertionError(f"a mod takes 4 arguments (b, h, q_idx, kv_idx), or 5 with the score first; got {count}")
    return count == 5

"""Explains what a function given as a mod may get wrong: the arguments of the other kind of mod, random numbers, a
condition where a score is expected.

Random numbers from shared global generators give a warning; those from torch or from a generator that the mod holds are
rejected. Used when a function is called for tracing, by quire._core and quire.torch. Python layer, bottom.
"""

from __future__ import annotations

import collections
import functools
import inspect
import random
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

_ARGUMENTS = {4: "a mask mod: f(b, h, q_idx, kv_idx)", 5: "a score mod: f(score, b, h, q_idx, kv_idx)"}
_INSTEAD = {
    4: "give it to create_block_mask, and the block mask to flex_attention",
    5: "give it to flex_attention as score_mod",
}


def call_mod(what: str, function: Callable, arguments: tuple) -> Any:
    """Calls function(*arguments). what: ScoreMod or MaskMod."""
    before, held = random_state(), states_of_generators(function)
    try:
        result = function(*arguments)
    except TypeError as error:
        refuse_other_kind(what, function, len(arguments), error)
        raise
    if drawn := generator_drawn(held):
        raise TypeError(f"[{what}] {drawn}")
    warn_if_random(what, before)
    return result


def refuse_other_kind(what: str, function: Callable, wanted: int, cause: BaseException | None = None) -> None:
    """Raises TypeError if the function takes the arguments of the other kind of mod; returns if it does not or cannot
    be inspected."""
    other = 9 - wanted
    if _count(function) == other:
        raise TypeError(
            f"[{what}] this function takes {other} arguments, which makes it {_ARGUMENTS[other]}; here {_ARGUMENTS[wanted]} is "
            f"wanted. If that is what it is, {_INSTEAD[other]}"
        ) from cause


def _count(function: Callable) -> int | None:
    """Number of arguments without a default, not counting `self` of a bound method; None if any number fits."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    return sum(
        1
        for one in parameters
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    )


def random_state() -> tuple:
    """The state of the shared global generators, for comparison."""
    state = np.random.get_state(legacy=False)
    return random.getstate(), state["state"]["pos"], state["state"]["key"].tobytes(), state["has_gauss"]


# ---- generators that a function holds

_MOST_OBJECTS = 2048


def generators_of(function: Any) -> list[Any]:
    """The generators that it reads: in its closure, its defaults, the globals it names, the object it is a method of,
    and in lists, dicts and functions there. Includes torch's own once torch is imported."""
    torch = sys.modules.get("torch")
    kinds: tuple = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
    found: list[Any] = []
    if torch is not None and hasattr(torch, "default_generator"):
        kinds += (torch.Generator,)
        found.append(torch.default_generator)
    shared = (getattr(np.random.random, "__self__", None), getattr(random.random, "__self__", None))
    seen: set[int] = {id(one) for one in (*shared, *found)}
    waiting = collections.deque([(function, 0)])
    while waiting and len(seen) < _MOST_OBJECTS:  # a mod may hold a whole model: nearest objects come first
        one, depth = waiting.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, kinds):
            found.append(one)
        elif depth < 4:
            waiting += ((inner, depth + 1) for inner in _held(one))
    return found


def states_of_generators(function: Any) -> list[tuple[Any, Any]]:
    """For generator_drawn: the generators that the function holds, with their states before the call."""
    return [(one, state_of(one)) for one in generators_of(function)]


def _held(one: Any) -> list[Any]:
    """What an object holds that calling it may use."""
    if isinstance(one, (list, tuple, set, frozenset)):
        return list(one)[:64]
    if isinstance(one, dict):
        return list(one.values())[:64]
    if isinstance(one, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, (types.MethodType, types.BuiltinMethodType)):  # such as generator.random
        return [getattr(one, "__func__", None), one.__self__]
    if isinstance(one, types.FunctionType):
        cells = [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
        defaults = [*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        names = {name for code in _codes(one.__code__) for name in code.co_names}
        named = [one.__globals__[name] for name in names if name in one.__globals__]
        return cells + defaults + [value for value in named if not isinstance(value, types.ModuleType)]
    if isinstance(one, (type, types.ModuleType)):
        return []
    own = getattr(one, "__dict__", None)
    call = type(one).__call__ if callable(one) else None
    inner = list(own.values())[:64] if isinstance(own, dict) else []
    return inner + ([call] if isinstance(call, types.FunctionType) else [])


def _codes(code: types.CodeType) -> list[types.CodeType]:
    return [code, *(one for inner in code.co_consts if isinstance(inner, types.CodeType) for one in _codes(inner))]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def state_of(generator: Any) -> Any:
    """Something to compare: it differs after a number was drawn."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return repr(generator.get_state(legacy=False))
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.BitGenerator):
        return repr(generator.state)
    return generator.get_state().numpy().tobytes()  # torch's


def generator_drawn(held: list[tuple[Any, Any]]) -> str | None:
    """Describes the generator that has drawn since its state was taken; None if none has."""
    for generator, before in held:
        if state_of(generator) != before:
            kind = type(generator)
            return (
                f"the mod draws random numbers from a {kind.__module__.partition('.')[0]} {kind.__name__}: it is called once, and "
                "the number it drew then would be that of every element. Draw an array before it, and read that by q_idx and "
                "kv_idx"
            )
    return None


def warn_if_random(what: str, before: tuple) -> None:
    if random_state() != before:
        warnings.warn(
            f"[{what}] the mod draws random numbers (random or numpy.random): it is called once, and the number it drew then is "
            "that of every element. Draw an array before it, and read that by q_idx and kv_idx",
            UserWarning,
            stacklevel=_outside(),
        )


def warn_if_condition(what: str = "ScoreMod") -> None:
    """Warns about a score mod whose result is a bool."""
    warnings.warn(
        f"[{what}] the score mod returns a condition, so scores become 0 and 1. As a mask it belongs into create_block_mask; in a "
        "score mod, write where(condition, score, -inf)",
        UserWarning,
        stacklevel=_outside(),
    )


def _outside() -> int:
    """The stacklevel of the innermost frame outside this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "quire":
        frame, level = frame.f_back, level + 1
    return level

"""What a function that is given as a mod may get wrong, said in words: the arguments of the other kind of mod, random numbers, a
condition where a score is wanted.

Used when a function is called to be traced, by quire._core and by quire.torch. Layer: Python, bottom.
"""

from __future__ import annotations

import inspect
import random
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
    """function(*arguments). what: ScoreMod or MaskMod."""
    before = random_state()
    try:
        result = function(*arguments)
    except TypeError as error:
        refuse_other_kind(what, function, len(arguments), error)
        raise
    warn_if_random(what, before)
    return result


def refuse_other_kind(what: str, function: Callable, wanted: int, cause: BaseException | None = None) -> None:
    """TypeError if the function takes the arguments of the other kind of mod; nothing if it does not, or cannot be asked."""
    other = 9 - wanted
    if _count(function) == other:
        raise TypeError(
            f"[{what}] this function takes {other} arguments, which makes it {_ARGUMENTS[other]}; here {_ARGUMENTS[wanted]} is "
            f"wanted. If that is what it is, {_INSTEAD[other]}"
        ) from cause


def _count(function: Callable) -> int | None:
    """Arguments without a default, `self` of a bound method not counted; None where anything fits."""
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
    """Of the generators that everybody shares, to be compared."""
    state = np.random.get_state(legacy=False)
    return random.getstate(), state["state"]["pos"], state["state"]["key"].tobytes(), state["has_gauss"]


def warn_if_random(what: str, before: tuple) -> None:
    if random_state() != before:
        warnings.warn(
            f"[{what}] the mod draws random numbers (random or numpy.random): it is called once, and the number it drew then is "
            "that of every element. Draw an array before it, and read that by q_idx and kv_idx",
            UserWarning,
            stacklevel=_outside(),
        )


def warn_if_condition(what: str = "ScoreMod") -> None:
    """For a score mod whose result is a bool."""
    warnings.warn(
        f"[{what}] the score mod returns a condition, so scores become 0 and 1. As a mask it belongs into create_block_mask; in a "
        "score mod, write where(condition, score, -inf)",
        UserWarning,
        stacklevel=_outside(),
    )


def _outside() -> int:
    """The stacklevel of the innermost frame that is not of this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "quire":
        frame, level = frame.f_back, level + 1
    return level

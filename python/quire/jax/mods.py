"""What can be given as a mod: a text, a text with arrays, a ScoreMod or MaskMod, or a function of jax.numpy operations.

Converts it to a Rule, whose arrays are passed to XLA as operands. Python layer, above trace/.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from quire import _core
from quire._core import MaskMod, ScoreMod
from quire.jax.trace import Rule, trace_mod
from quire.jax.trace.tracer import CODES, readable

Mod = str | tuple[str, dict[str, Any]] | Callable[..., Any]


def rule_of(mod: Any, score_dtype: Any, sizes: tuple[int | None, ...], where: str) -> Rule:
    """score_dtype: of a score mod, None for a mask mod; sizes: B, H, L and S, None where unknown."""
    kind, other = (MaskMod, ScoreMod) if score_dtype is None else (ScoreMod, MaskMod)
    if isinstance(mod, kind):
        return _of_buffers(mod.text, mod.buffers)
    if isinstance(mod, str):
        return _of_buffers(kind(mod).text, {})
    if isinstance(mod, tuple) and len(mod) == 2 and isinstance(mod[0], str) and isinstance(mod[1], dict):
        return _of_text(kind, *mod)
    if callable(mod) and not isinstance(mod, other):
        return trace_mod(mod, score_dtype, sizes)
    raise TypeError(
        f"[{where}] a {kind.__name__}, a text, (text, arrays by name) or a function is needed; got {type(mod).__name__}"
    )


def _of_buffers(text: str, buffers: dict[str, Any]) -> Rule:
    return Rule(text, tuple(buffers), tuple(_fitting(array, name) for name, array in buffers.items()))


def _of_text(kind: Any, text: str, arrays: dict[str, Any]) -> Rule:
    """A rule from a text that reads these arrays, which may be traced."""
    fitting = {name: _fitting(array, name) for name, array in arrays.items()}
    declared = {
        name: _core.Buffer.declare(CODES[array.dtype.name], array.shape, name) for name, array in fitting.items()
    }
    mod = kind(text, declared)
    return Rule(mod.text, tuple(mod.buffer_names), tuple(fitting[name] for name in mod.buffer_names))


def _fitting(array: Any, name: str) -> Any:
    """The array as JAX's; rejected if that would change integers that do not fit."""
    if isinstance(array, jax.Array):
        return readable(array, name)
    given = np.asarray(array)
    made = jnp.asarray(given)
    if given.dtype.kind in "iu" and made.dtype != given.dtype and not np.array_equal(np.asarray(made), given):
        raise ValueError(
            f"[quire.jax] the array {name!r} holds integers that {made.dtype} does not; enable jax_enable_x64"
        )
    return readable(made, name)


def reads_batch(rule: Rule | None) -> bool:
    """Whether a rule may read b; a name that merely looks like it counts, too."""
    return rule is not None and re.search(r"\bb\b", rule.text) is not None

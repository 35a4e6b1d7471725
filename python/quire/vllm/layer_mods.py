"""set_mods: mask and score mods for the attention layers of a served model, which vLLM has no place for.

They are kept in the process and handed on to vLLM's worker processes in an environment variable, so they have to be set before the
engine is made. Python layer, below rule.py.
"""

from __future__ import annotations

import base64
import fnmatch
import os
import pickle
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from quire import _core
from quire.torch.mods import bind_mask_mod, bind_score_mod

VARIABLE = "QUIRE_VLLM_MODS"
_MOST_BYTES = 120_000  # of one variable of the environment: Linux takes 131,072


class LayerMods(NamedTuple):
    """What a layer computes beside what its model says. Hashable: by identity."""

    mask_mod: Any = None
    score_mod: Any = None


class _Entry(NamedTuple):
    layers: Any  # None: all; numbers; or patterns
    mods: LayerMods


_NOTHING = LayerMods()
_entries: list[_Entry] = []
_read: str | None = None  # what of the environment is in _entries


def set_mods(
    layers: int | str | Sequence[int] | Sequence[str] | None = None, *, mask_mod: Any = None, score_mod: Any = None
) -> None:
    """From now on these layers of engines see only what mask_mod shows of what they would see, and their scores go through score_mod.

    Args:
        layers: the number of a layer or several, the name of one, with * and ? for any text ("*.layers.3.*"), or several; None: all.
            A later call for the same layer takes the place of an earlier one.
        mask_mod: f(b, h, q_idx, kv_idx) over tensors, a quire.MaskMod or a text. q_idx and kv_idx are positions in the request, h counts
            query heads of the whole model. b is the number of the request in the step, which means nothing to a model: a mod that reads
            it is refused.
        score_mod: f(score, b, h, q_idx, kv_idx) likewise, of the score after scale, soft-cap and ALiBi.

    Call it before the engine is made: its workers get the mods when they start. TypeError for what is no mod; ValueError for mods whose
    tables are too large to be handed on (about 90 kB).

    >>> import quire.vllm
    >>> quire.vllm.set_mods(range(0, 32, 2), mask_mod="q_idx - kv_idx < 4096")
    >>> quire.vllm.set_mods("*.layers.31.*", score_mod="score * 1.25")
    >>> quire.vllm.clear_mods()
    """
    _take_environment()
    mods = LayerMods(
        None if mask_mod is None else _without_b("mask_mod", bind_mask_mod(mask_mod).mod, _core.MaskMod),
        None if score_mod is None else _without_b("score_mod", bind_score_mod(score_mod).mod, _core.ScoreMod),
    )
    if mods == _NOTHING:
        raise ValueError("[set_mods] give mask_mod, score_mod or both; clear_mods() takes all away")
    entries = [*_entries, _Entry(_checked_layers(layers), mods)]
    _hand_on(entries)
    _entries[:] = entries


def clear_mods() -> None:
    """Takes all mods away."""
    _entries.clear()
    _hand_on([])


def mods_of(layer_name: str) -> LayerMods:
    """Those that were set last for a layer of this name."""
    _take_environment()
    for layers, mods in reversed(_entries):
        if layers is None or any(_is_named(one, layer_name) for one in layers):
            return mods
    return _NOTHING


def shifted_heads(mods: LayerMods, first_head: int) -> LayerMods:
    """The same for a worker whose heads begin there."""
    if first_head == 0:
        return mods
    mask, score = mods
    return LayerMods(
        None if mask is None else _core.MaskMod(lambda b, h, q, kv: mask(b, h + first_head, q, kv)),
        None if score is None else _core.ScoreMod(lambda s, b, h, q, kv: score(s, b, h + first_head, q, kv)),
    )


def _is_named(one: int | str, layer_name: str) -> bool:
    if isinstance(one, str):
        return fnmatch.fnmatchcase(layer_name, one)
    numbers = re.findall(r"(?<=\.)\d+(?=\.)", f".{layer_name}.")
    return len(numbers) > 0 and int(numbers[0]) == one


def _checked_layers(layers: Any) -> tuple[int | str, ...] | None:
    if layers is None:
        return None
    found = (layers,) if isinstance(layers, (int, str)) else tuple(layers)
    for one in found:
        if isinstance(one, bool) or not isinstance(one, (int, str)):
            raise TypeError(f"[set_mods] a layer is a number or a name; got {type(one).__name__} {one!r}")
        if isinstance(one, int) and one < 0:
            raise ValueError(f"[set_mods] layers are counted from 0; got {one}")
    return found


def _without_b(what: str, mod: Any, kind: Any) -> Any:
    if re.search(r"\bb\b", mod.to_string() if hasattr(mod, "to_string") else str(mod)):
        raise ValueError(f"[set_mods] {what} reads b, the number of a request in a step, which says nothing about it")
    return mod


def _hand_on(entries: list[_Entry]) -> None:
    """To processes that this one starts."""
    global _read
    if not entries:
        os.environ.pop(VARIABLE, None)
        _read = None
        return
    text = base64.b64encode(pickle.dumps([(layers, *mods) for layers, mods in entries])).decode()
    if len(text) > _MOST_BYTES:
        raise ValueError(
            f"[set_mods] the tables of the mods take {len(text)} bytes, and only {_MOST_BYTES} can be handed to vLLM's workers; write "
            "them as formulas"
        )
    os.environ[VARIABLE] = _read = text


def _take_environment() -> None:
    """What the process that started this one has set."""
    global _read
    text = os.environ.get(VARIABLE)
    if text == _read:
        return
    _entries[:] = (
        [] if text is None else [_Entry(one[0], LayerMods(*one[1:])) for one in pickle.loads(base64.b64decode(text))]
    )
    _read = text

"""trace_score_mod and trace_mask_mod: a mod as a formula and its tensors, traced once for all calls with the same key.

Trace layer. Thread safe.
"""

from __future__ import annotations

from collections import OrderedDict

import torch

from quire import _core, fork
from quire.trace.buffer_names import array_names

from .mod_guard import guard_steps
from .mod_key import KeyUnknown, mod_key
from .number import tensor_of
from .tracer import Formula, Mod, trace_mod

_MOST_ENTRIES = 1024
_TEACHING_CALLS = 3  # per formula; later calls get here because its checks do not hold


class Constant:
    """Identifies a formula, whichever tensors are bound, so that data can be attached to it: one object per cache
    entry."""


class Traced:
    """A mod at one call. mod: _core's, over buffers without memory; tensors: what is bound to them in this call;
    constant: one object for all calls that share the mod."""

    __slots__ = ("mod", "tensors", "constant")

    def __init__(self, mod: Mod, tensors: list[torch.Tensor], constant: Constant) -> None:
        self.mod = mod
        self.tensors = tensors
        self.constant = constant

    @property
    def text(self) -> str:
        """The formula as text, for this call."""
        return self.mod.text

    @property
    def names(self) -> list[str]:
        """Names of the tensors in the text."""
        return self.mod.buffer_names


class _Entry:
    """A formula, and the indices of its captured tensors among those that the key's visit collects."""

    __slots__ = ("mod", "binding", "order", "places", "constant", "only", "calls")

    def __init__(self, formula: Formula, places: dict[int, int]) -> None:
        self.mod = formula.mod
        self.binding = formula.binding
        self.places = places
        self.order = [places[i] for i in self.binding.wanted] if self.binding.is_plain else []
        self.constant = Constant()
        self.only = None if formula.buffers else Traced(self.mod, [], self.constant)
        self.calls = 0  # calls that found it here

    def at(self, tensors: list[torch.Tensor]) -> Traced:
        if self.only is not None:
            return self.only
        if self.binding.is_plain:
            bound = [tensors[i] for i in self.order]
        else:
            bound = self.binding.bind({slot: tensors[i] for slot, i in self.places.items()})
        return Traced(self.mod, bound, self.constant)


_entries: OrderedDict[tuple, _Entry] = OrderedDict()
_lock = fork.lock()


def trace_score_mod(mod, dtype: torch.dtype = torch.float32) -> Traced:
    """The formula of a score mod written with torch operations: mod(score, b, h, q_idx, kv_idx).

    dtype: of the score, float32 or float64. Raises TraceError for what no formula can express, and what the mod raises.
    """
    return _traced(mod, dtype)


def trace_mask_mod(mod) -> Traced:
    """The formula of a mask mod written with torch operations: mod(b, h, q_idx, kv_idx). Raises like trace_score_mod."""
    return _traced(mod, None)


def clear_cache() -> None:
    """Drops all traces."""
    with _lock:
        _entries.clear()


def _traced(mod, score_dtype: torch.dtype | None) -> Traced:
    try:
        key, tensors = mod_key(mod, score_dtype)
    except KeyUnknown:
        return _single(_trace(mod, score_dtype, []))
    try:
        with _lock:
            entry = _entries.get(key)
            if entry is not None:
                _entries.move_to_end(key)
    except TypeError:  # symbolic sizes, under torch.export, cannot be hashed
        return _single(_trace(mod, score_dtype, tensors))
    if entry is None:
        return _first(mod, score_dtype, key, tensors)
    entry.calls += 1
    if entry.calls <= _TEACHING_CALLS and score_dtype is torch.float32:
        _teach(mod, tensors, entry)
    return entry.at(tensors)


def _teach(mod, tensors: list[torch.Tensor], entry: _Entry) -> None:
    """Registers the mod with the extension, so that similar calls need not come here."""
    code = getattr(mod, "__code__", None)
    steps = None if code is None or not entry.binding.is_plain else guard_steps(mod, tensors)
    if steps is not None:
        _core.learn_score_mod(code, steps, entry.mod, entry.order)


def _trace(mod, score_dtype: torch.dtype | None, captured: list[torch.Tensor]) -> Formula:
    return trace_mod(mod, score_dtype, captured, lambda: array_names(mod, torch.Tensor))


def _single(formula: Formula) -> Traced:
    """For this call only."""
    numbers = {slot: tensor_of(symbol) for slot, symbol in formula.numbers.items()}
    tensors = formula.binding.bind({**formula.captured, **numbers})
    return Traced(formula.mod, tensors, Constant())


def _first(mod, score_dtype: torch.dtype | None, key: tuple, tensors: list[torch.Tensor]) -> Traced:
    formula = _trace(mod, score_dtype, tensors)
    place_of = {id(t): i for i, t in enumerate(tensors)}
    places = {slot: place_of[id(t)] for slot, t in formula.captured.items() if id(t) in place_of}
    if formula.reads_values or formula.numbers or len(places) < len(formula.captured):
        return _single(formula)
    with _lock:
        entry = _entries.setdefault(key, _Entry(formula, places))
        if len(_entries) > _MOST_ENTRIES:
            _entries.popitem(last=False)
    return entry.at(tensors)

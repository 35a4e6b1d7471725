"""Turns the subgraph that dynamo made from a mod into the text and the tensors of an operator.

A mod that only reads elements of captured tensors becomes a formula when the graph is made. Sizes that may differ at
another call never enter it: a formula is valid for all sizes, or for fixed shapes. Everything else, above all numbers,
goes into the graph as a program (graph_program.py), which is traced when it runs, with the numbers of the call. Python
layer, above trace/ and graph_program.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quire.torch import graph_program
from quire.torch.trace import TraceError
from quire.torch.trace.number import tensor_of
from quire.torch.trace.tracer import trace_mod

_Form = tuple[str, list[str], list[int]]  # text; names; for each of these the index of its captured value
_forms: weakref.WeakKeyDictionary[Any, dict[Any, _Form]] = weakref.WeakKeyDictionary()


def formula_of(graph: Any, values: tuple, score_dtype: torch.dtype | None) -> tuple[str, list[str], list[Tensor]]:
    """Text, names and tensors for an operator. values: what the subgraph takes after the mod's own arguments;
    score_dtype: for a score mod, None for a mask mod. Raises TraceError for a mod that no graph can hold."""
    known = _forms.setdefault(graph, {})
    key = (score_dtype, *((v.dtype, _shape_of(v)) if isinstance(v, Tensor) else None for v in values))
    if key not in known:
        known[key] = _form(graph, values, score_dtype)
    text, names, places = known[key]
    return text, names, [values[i] if isinstance(values[i], Tensor) else tensor_of(values[i]) for i in places]


def _shape_of(tensor: Tensor) -> tuple:
    """The fixed sizes; None for others."""
    return tuple(size if isinstance(size, int) else None for size in tensor.shape)


def _form(graph: Any, values: tuple, score_dtype: torch.dtype | None) -> _Form:
    with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
        if all(isinstance(value, Tensor) for value in values):
            is_fixed = not any(None in _shape_of(value) for value in values)
            form = _formula(graph, values, score_dtype, False) or (
                is_fixed and _formula(graph, values, score_dtype, True)
            )
            if form:
                return form
        text = graph_program.to_text(graph.graph)
    return text, ["tensor" if isinstance(value, Tensor) else "number" for value in values], list(range(len(values)))


def _formula(graph: Callable, values: tuple, score_dtype: torch.dtype | None, are_sized: bool) -> _Form | None:
    """The formula for tensors like these; None if it needs more than the tensors themselves."""
    # Their contents are not read: a mod that does so has no formula valid for all values.
    like = [torch.zeros((), dtype=v.dtype).expand(v.shape if are_sized else [2] * v.dim()) for v in values]
    try:
        formula = trace_mod(lambda *arguments: graph(*arguments, *like), score_dtype, like, are_sized=are_sized)
    except (TraceError, TypeError, RuntimeError, IndexError):
        # Raised again when it runs, with the values of the call, if these do not help.
        return None
    place_of = {id(tensor): place for place, tensor in enumerate(like)}
    read = [id(formula.captured.get(slot)) for slot in formula.binding.wanted]
    if formula.reads_values or formula.numbers or not place_of.keys() >= set(read):
        return None
    return formula.mod.text, formula.mod.buffer_names, [place_of[one] for one in read]

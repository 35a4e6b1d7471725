"""Mods of the operators torch.ops.quire.*: a formula, or a program (graph_program.py) that is traced when it runs.

A mod becomes a program if it captures numbers, or computes with its tensors before it reads them. It is traced with the
numbers of the call, and cached for these numbers; if more and more numbers come, it is traced once with numbers that
have no value (trace/number.py) and takes them as arguments from then on, if a formula can. Numbers are computed from
each other in Python, with its 64 bits, before the formula sees them. Python layer, above mods.py.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from quire import _core, fork
from quire.torch.graph_program import PREFIX, Step, from_text, resolved
from quire.torch.mods import Bound, bind_traced
from quire.torch.trace import Traced
from quire.torch.trace.mod_cache import Constant
from quire.torch.trace.number import number
from quire.torch.trace.tracer import Formula, trace_mod
from quire.torch.views import view_of

_lock = fork.lock()
_MOST_PARSED = 1024
_parsed: dict[Any, Any] = {}

# Most formulas of one program, for tensors of one kind, that hold numbers as constants: a kernel need not load what it
# knows.
MOST_CONSTANT = 8
# Most formulas of one program; the most recently used are kept.
_MOST_FORMULAS = 64
_MOST_PROGRAMS = 256


def bind(kind: Any, text: str, names: list[str] | None, tensors: list[Tensor] | None, dtype: torch.dtype) -> Bound:
    """The mod with its tensors. `names`: of a formula's buffers; for a program "tensor" or "number" each."""
    names, tensors = names or [], tensors or []
    if text.startswith(PREFIX):
        return bind_program(kind, text, names, tensors, dtype)
    key = (kind, text, *names, *((tensor.dtype, tensor.dim()) for tensor in tensors))
    mod = _parsed.get(key)
    if mod is None:
        if len(_parsed) >= _MOST_PARSED:
            _parsed.clear()
        buffers = dict(zip(names, map(view_of, tensors), strict=True))
        mod = _parsed[key] = kind.mark_page_table(kind(text, buffers)) if names else kind(text)
    if not names:
        return Bound(mod, [], False, mod)
    read = [tensors[names.index(name)] for name in mod.buffer_names]
    return Bound(kind.bind(mod, [view_of(tensor) for tensor in read]), read, any(t.requires_grad for t in read), mod)


def bind_program(kind: type, text: str, names: list[str], tensors: list[Tensor], dtype: torch.dtype) -> Bound:
    """A program traced with these tensors and numbers, or with others of the same kind."""
    program = _program(text, tuple(names), kind is _core.ScoreMod)
    inputs = [tensor if name == "tensor" else tensor.item() for name, tensor in zip(names, tensors, strict=True)]
    return bind_traced(kind, program.at(inputs, dtype if kind is _core.ScoreMod else None))


def forget() -> None:
    """Drops all programs and their formulas."""
    _program.cache_clear()


@functools.lru_cache(maxsize=_MOST_PROGRAMS)
def _program(text: str, names: tuple[str, ...], is_score: bool) -> Program:
    return Program(text, names, 5 if is_score else 4)


_NUMBER_MODULES = ("_operator", "math", "builtins")


def _gives_number(step: Step) -> bool:
    """Whether a step that takes only numbers gives a number."""
    name = getattr(step.target, "__name__", "")
    is_of_numbers = getattr(step.target, "__module__", "") in _NUMBER_MODULES or name.startswith(
        ("sym_", "_sym_", "_check")
    )
    return step.op == "method" or (step.op == "function" and is_of_numbers)


def _key_of(value: Any) -> Any:
    # 0.0 == -0.0, and NaN is not equal to itself.
    return type(value), repr(value)


def _dtype_of(value: Any) -> Any:
    """The dtype of the tensor that holds a number for a formula; the value itself if no formula takes it as an
    argument."""
    if type(value) is float:
        return torch.float64
    if type(value) is int and -(2**63) <= value < 2**63:
        # Most ints are small, and kernels are faster if that is known.
        return torch.int32 if -(2**31) <= value < 2**31 else torch.int64
    return _key_of(value)


class Program:
    """The steps of a text, and the formulas they were traced to."""

    def __init__(self, text: str, names: tuple[str, ...], argument_count: int) -> None:
        """names: "tensor" or "number" for each captured value; argument_count: arguments of the mod before these."""
        self.steps = from_text(text)
        inputs = [i for i, step in enumerate(self.steps) if step.op == "input"]
        self.arguments, self.captured = inputs[:argument_count], inputs[argument_count:]
        self.tensors = {i for i, name in zip(self.captured, names, strict=True) if name == "tensor"}
        known = set(self.captured) - self.tensors
        self.of_numbers: list[int] = []  # steps that compute numbers from numbers
        self.others: list[int] = []
        for i, step in enumerate(self.steps):
            is_read = step.op == "method" and step.target == "item" and step.refs <= self.tensors
            if is_read or (step.refs and step.refs <= known and _gives_number(step)):
                self.of_numbers.append(i)
                known.add(i)
            elif step.op != "input":
                self.others.append(i)
        used = {ref for i in self.others for ref in self.steps[i].refs}
        self.taken = sorted(known & used)  # numbers combined with tensors
        self.formulas: OrderedDict[Any, _Kept] = OrderedDict()
        self.counts: dict[Any, int] = {}  # formulas with constants, per kind of tensors
        self.by_value: set[Any] = set()  # kinds of tensors and numbers that no formula takes as arguments

    def at(self, inputs: list, score_dtype: torch.dtype | None) -> Traced:
        """The formula and its tensors for captured values. score_dtype: for a score mod."""
        results = dict(zip(self.captured, inputs))
        for i in self.of_numbers:
            results[i] = _run(self.steps[i], results)
        tensors = [results[i] for i in self.captured if i in self.tensors]
        numbers = {i: results[i] for i in self.taken}
        places = {id(tensor): place for place, tensor in enumerate(tensors)}
        is_recorded = 1 + torch.is_grad_enabled()
        kind = (score_dtype, *((t.dtype, t.shape, t.requires_grad and is_recorded, places[id(t)]) for t in tensors))
        key = (kind, tuple(map(_key_of, numbers.values())))
        kept = self._find(key) or self._general(kind, tensors, numbers)
        if kept is None:
            formula = self._trace(score_dtype, tensors, numbers)
            kept = _Kept(formula, tensors, {})
            if formula.reads_values or not kept.is_whole:
                return kept.of_this_call(formula)
            self._keep(key, kept)
            with _lock:
                self.counts[kind] = self.counts.get(kind, 0) + 1
        return kept.at(tensors, numbers)

    def _general(self, kind: tuple, tensors: list[Tensor], numbers: dict[int, Any]) -> _Kept | None:
        """The formula that takes the numbers as arguments. None if there is none, or it is not worth it."""
        dtypes = {i: _dtype_of(value) for i, value in numbers.items()}
        key = (kind, "any", tuple(dtypes.values()))
        symbols = {i: number(dtype) for i, dtype in dtypes.items() if isinstance(dtype, torch.dtype)}
        if self.counts.get(kind, 0) < MOST_CONSTANT or key in self.by_value or not symbols:
            return None
        kept = self._find(key)
        if kept is None:
            try:
                formula = self._trace(kind[0], tensors, {**numbers, **symbols})
                kept = _Kept(formula, tensors, {id(symbol.node): i for i, symbol in symbols.items()})
                is_good = not formula.reads_values and kept.is_whole
            except Exception:  # errors of the mod are reported when it is traced with values
                is_good = False
            if not is_good or kept is None:
                self.by_value.add(key)
                return None
            self._keep(key, kept)
        return kept

    def _trace(self, score_dtype: torch.dtype | None, tensors: list[Tensor], numbers: dict[int, Any]) -> Formula:
        given = dict(zip((i for i in self.captured if i in self.tensors), tensors))
        given.update(numbers)

        def mod(*arguments: Tensor) -> Any:
            results = {**given, **dict(zip(self.arguments, arguments, strict=True))}
            for i in self.others:
                results[i] = _run(self.steps[i], results)
            return results[self.others[-1]]

        return trace_mod(mod, score_dtype, tensors)

    def _find(self, key: Any) -> _Kept | None:
        with _lock:
            kept = self.formulas.get(key)
            if kept is not None:
                self.formulas.move_to_end(key)
        return kept

    def _keep(self, key: Any, kept: _Kept) -> None:
        with _lock:
            self.formulas[key] = kept
            if len(self.formulas) > _MOST_FORMULAS:
                self.formulas.popitem(last=False)


def _run(step: Step, results: dict[int, Any]) -> Any:
    args, kwargs = resolved(step.args, results), resolved(step.kwargs, results)
    if step.op == "output":
        return args[0]
    return getattr(args[0], step.target)(*args[1:], **kwargs) if step.op == "method" else step.target(*args, **kwargs)


class _Kept:
    """A formula, and where the tensors of its buffers come from in a call: captured tensors by index, or numbers."""

    def __init__(self, formula: Formula, tensors: list[Tensor], steps: dict[int, int]) -> None:
        """steps: of numbers without a value, by their node."""
        place_of = {id(tensor): place for place, tensor in enumerate(tensors)}
        self.mod = formula.mod
        self.binding = formula.binding
        self.places = {s: place_of[id(tensor)] for s, tensor in formula.captured.items() if id(tensor) in place_of}
        self.is_whole = len(self.places) == len(formula.captured)  # all its tensors were captured
        wanted = set(formula.binding.captured)
        self.numbers = {slot: steps[id(s.node)] for slot, s in formula.numbers.items() if slot in wanted}
        self.dtypes = {buffer.slot: buffer.dtype for buffer in formula.buffers}
        self.constant = Constant()
        self._last: tuple = ((), {})

    def of_this_call(self, formula: Formula) -> Traced:
        return Traced(self.mod, formula.binding.bind(formula.captured), Constant())

    def at(self, tensors: list[Tensor], numbers: dict[int, Any]) -> Traced:
        captured = {slot: tensors[place] for slot, place in self.places.items()}
        if self.numbers:
            captured.update(self._tensors_of(numbers))
        return Traced(self.mod, self.binding.bind(captured), self.constant)

    def _tensors_of(self, numbers: dict[int, Any]) -> dict[int, Tensor]:
        """Tensors of the numbers; the same ones for the same numbers, so that what was made from them is kept."""
        values = [numbers[i] for i in self.numbers.values()]
        key, made = self._last
        if key != tuple(map(_key_of, values)):
            made = {slot: torch.tensor(v, dtype=self.dtypes[slot]) for slot, v in zip(self.numbers, values)}
            self._last = tuple(map(_key_of, values)), made
        return made

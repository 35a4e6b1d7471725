"""A mod as a program: the subgraph that dynamo made from it, as a text that can be run in any process.

The text holds the operations by name and all their arguments, so it can be stored with a graph in files and caches.
Only functions that compute with tensors and numbers have names here: a text from elsewhere can do nothing else.
graph_mod.py runs it. Python layer, above trace/.
"""

from __future__ import annotations

import builtins
import functools
import json
import math
import operator
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from quire.torch.trace import TraceError

PREFIX = "@"  # no formula begins with it


class Ref(NamedTuple):
    """The result of a step."""

    step: int


class Step(NamedTuple):
    """One operation. op: "input", "function", "method" or "output"; target: what is called, None for inputs; refs: the
    steps whose results are among its arguments.
    """

    op: str
    target: Any
    args: tuple
    kwargs: dict
    refs: frozenset


# ---- names of functions

_OPERATORS = frozenset(
    """abs add and_ eq floordiv ge getitem gt iadd iand ifloordiv ilshift imod imul index inv invert ior ipow irshift isub
    itruediv ixor le lshift lt matmul mod mul ne neg not_ or_ pos pow rshift sub truediv truth xor""".split()
)
_BUILTINS = frozenset("abs bool divmod float int len max min pow range round sum".split())
# Functions of torch that need no tensor, and are not in its list of functions that take one.
_OF_NUMBERS = frozenset(
    """arange as_tensor empty eye full linspace logspace ones range scalar_tensor tensor tril_indices triu_indices zeros
    sym_float sym_int sym_max sym_min sym_not sym_sum sym_ite sym_sqrt _check _check_is_size _check_value _check_index
    _check_type _check_with""".split()
)
_MODULES = {"_operator": operator, "math": math, "builtins": builtins}
_ELSEWHERE: dict[str, Callable] = {
    "torch._refs.tensor": torch.tensor,
    "torch._C._set_grad_enabled": torch._C._set_grad_enabled,
}


@functools.cache
def _takes_tensors() -> frozenset:
    """The functions of torch that take tensors, by torch's own list."""
    from torch.overrides import get_testing_overrides

    return frozenset(get_testing_overrides())


@functools.cache
def function_of(name: str) -> Callable:
    """The function that a name stands for in a program: an operator of Python, or a function of math or torch. Raises
    TraceError."""
    first, _, last = name.rpartition(".")
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if first == "_operator" and last in _OPERATORS or first == "builtins" and last in _BUILTINS:
        return getattr(_MODULES[first], last)
    if first == "math" and not last.startswith("_") and callable(getattr(math, last, None)):
        return getattr(math, last)
    parts = name.split(".")
    if parts[0] == "torch":
        found: Any = torch
        for part in parts[1:]:
            found = getattr(found, part, None)
        is_operator = parts[1] == "ops" and isinstance(found, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
        is_number = first == "torch" and (last in _OF_NUMBERS or last.startswith("_sym_"))
        is_function = (
            first == "torch.nn.functional" and isinstance(found, types.FunctionType) and not last.startswith("_")
        )
        if callable(found) and (is_operator or is_number or is_function or found in _takes_tensors()):
            return found
    raise TraceError(f"[trace] {name} cannot be a part of a mod in a graph")


def _name_of(target: Any) -> str:
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return f"torch.ops.{target}"
    module = getattr(target, "__module__", None) or ""
    last = getattr(target, "__name__", str(target))
    candidates = [f"{module}.{last}", f"torch.{last}", f"torch.nn.functional.{last}", f"torch.special.{last}"]
    for name in (*candidates, f"torch.linalg.{last}", f"torch._C._nn.{last}"):
        try:
            if function_of(name) is target or _ELSEWHERE.get(name) is not None:
                return name
        except TraceError:
            continue
    raise TraceError(f"[trace] {module}.{last} cannot be a part of a mod in a graph")


_SPECIAL_METHODS = (frozenset(dir(int) + dir(float)) - frozenset(dir(object))) | {"__getitem__", "__matmul__"}


def _method(name: str) -> str:
    is_known = name in _SPECIAL_METHODS if name.startswith("_") else hasattr(torch.Tensor, name)
    if not is_known:
        raise TraceError(f"[trace] the method {name} cannot be a part of a mod in a graph")
    return name


# ---- arguments

_TORCH_OBJECTS = (torch.dtype, torch.layout, torch.memory_format)


def _encoded(value: Any, numbers: dict[Node, int]) -> Any:
    """A value as JSON; what JSON lacks becomes a dict with its kind."""
    again = functools.partial(_encoded, numbers=numbers)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Node):
        return {"step": numbers[value]}
    if isinstance(value, list):
        return [again(v) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [again(v) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[again(k), again(v)] for k, v in value.items()]}
    if isinstance(value, slice):
        return {"slice": [again(v) for v in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": 0}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, _TORCH_OBJECTS):
        return {"torch": str(value).removeprefix("torch.")}
    raise TraceError(f"[trace] a value of type {type(value).__name__} cannot be a part of a mod in a graph")


def _decoded(value: Any, refs: set[int]) -> Any:
    again = functools.partial(_decoded, refs=refs)
    if isinstance(value, list):
        return [again(v) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "step":
        refs.add(inner)
        return Ref(inner)
    if kind == "tuple":
        return tuple(again(v) for v in inner)
    if kind == "dict":
        return {again(k): again(v) for k, v in inner}
    if kind == "slice":
        return slice(*(again(v) for v in inner))
    if kind == "ellipsis":
        return Ellipsis
    if kind == "device":
        return torch.device(inner)
    found = getattr(torch, inner, None)
    if kind != "torch" or not isinstance(found, _TORCH_OBJECTS):
        raise TraceError(f"[trace] a program holds {kind} {inner}, which is not known")
    return found


def resolved(value: Any, results: Any) -> Any:
    """A step's argument with references replaced by results."""
    if type(value) is Ref:
        return results[value.step]
    if type(value) in (list, tuple):
        return type(value)(resolved(v, results) for v in value)
    if type(value) is dict:
        return {k: resolved(v, results) for k, v in value.items()}
    if type(value) is slice:
        return slice(*(resolved(v, results) for v in (value.start, value.stop, value.step)))
    return value


# ---- the whole

_OPS = {"call_function": "function", "call_method": "method", "placeholder": "input", "output": "output"}


def to_text(graph: torch.fx.Graph) -> str:
    """A subgraph as a text. Raises TraceError for a function without a name."""
    numbers: dict[Node, int] = {}
    steps = []
    for node in graph.nodes:
        op = _OPS.get(node.op)
        if op is None:
            raise TraceError(f"[trace] {node.op} {node.target} cannot be a part of a mod in a graph")
        name = _name_of(node.target) if op == "function" else _method(node.target) if op == "method" else None
        args = () if op == "input" else node.args
        steps.append([op, name, _encoded(list(args), numbers), _encoded(dict(node.kwargs), numbers)])
        numbers[node] = len(numbers)
    return PREFIX + json.dumps(steps, separators=(",", ":"))


def from_text(text: str) -> list[Step]:
    """The steps of a text written by to_text. Raises TraceError for anything else."""
    steps = []
    for op, name, args, kwargs in json.loads(text.removeprefix(PREFIX)):
        if op not in _OPS.values():
            raise TraceError(f"[trace] a program holds {op}, which is not known")
        target = function_of(name) if op == "function" else _method(name) if op == "method" else None
        refs: set[int] = set()
        steps.append(Step(op, target, tuple(_decoded(args, refs)), _decoded(kwargs, refs), frozenset(refs)))
    return steps

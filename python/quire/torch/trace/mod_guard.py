"""A traced mod as a list of checks that the extension makes at the next call, without a walk in Python
(python/src/mod_guard.h).

The checks cover less than the key (mod_key.py): functions, bound methods, closures, defaults, globals, attributes of
instances, tensors, and immutable values. A mod that depends on anything else has only a key. Trace layer.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from quire import _core
from quire.torch.views import CODES

from .mod_key import BUILTINS, IMMUTABLE, is_opaque_module, recipe_of

# Numbered as in python/src/mod_guard.h: where a value comes from, and what it must be.
_MOD, _CELL, _DEFAULT, _GLOBAL, _ATTRIBUTE = range(5)
_SAME, _TENSOR, _FUNCTION, _INSTANCE, _SEEN = range(5)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_CONSTANTS = IMMUTABLE | {_core.MaskMod}
_MISSING = object()


class _NoGuard(Exception):
    """Raised for something that no check covers."""


def _is_constant(value: Any) -> bool:
    """Whether the same object always means the same."""
    kind = type(value)
    if kind is types.ModuleType:
        return is_opaque_module(value)
    return kind in _CONSTANTS or (kind in (tuple, torch.Size) and all(map(_is_constant, value)))


class _Steps:
    """steps so far; places: id of a captured tensor -> its index in the order of the key; met: id of a function or an
    instance -> its number."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.steps: list[tuple] = []
        self.places = {id(tensor): place for place, tensor in enumerate(tensors)}
        self.met: dict[int, int] = {}

    def value(self, where: tuple[int, int, Any], value: Any, tree: Any) -> None:
        """where: from where, of which function or instance, and its index or name there."""
        kind = type(value)
        if kind in _TENSORS:
            self._tensor(where, value)
        elif _is_constant(value):
            self.steps.append((*where, _SAME, value))
        elif id(value) in self.met:
            self.steps.append((*where, _SEEN, self.met[id(value)]))
        elif kind is types.FunctionType:
            self._function(where, value)
        elif kind is types.MethodType:
            self._method(where, value)
        else:
            self._instance(where, value, tree)

    def _tensor(self, where: tuple, value: torch.Tensor) -> None:
        if id(value) not in self.places or value.dtype not in CODES:
            raise _NoGuard
        gradient = int(value.requires_grad and 1 + torch.is_grad_enabled())
        what = (self.places[id(value)], CODES[value.dtype], tuple(value.shape), gradient)
        self.steps.append((*where, _TENSOR, what))

    def _meet(self, where: tuple, value: Any, kind: int, what: Any) -> int:
        number = self.met[id(value)] = len(self.met)
        self.steps.append((*where, kind, what))
        return number

    def _function(self, where: tuple, value: types.FunctionType) -> None:
        if value.__kwdefaults__ or value.__dict__:
            raise _NoGuard
        recipe = recipe_of(value.__code__)
        number = self._meet(where, value, _FUNCTION, value.__code__)
        for place, (cell, tree) in enumerate(zip(value.__closure__ or (), recipe.free)):
            try:
                contents = cell.cell_contents
            except ValueError:  # not assigned yet
                raise _NoGuard from None
            self.value((_CELL, number, place), contents, tree)
        defaults = value.__defaults__ or ()
        names = recipe.code.co_varnames[: recipe.code.co_argcount]
        for place, default in enumerate(defaults):
            name = names[len(names) - len(defaults) + place]
            self.value((_DEFAULT, number, place), default, recipe.params[name])
        for name, tree in recipe.names:
            found = value.__globals__.get(name, BUILTINS.get(name, _MISSING))
            if found is _MISSING:
                raise _NoGuard
            self.value((_GLOBAL, number, name), found, tree)

    def _method(self, where: tuple, value: types.MethodType) -> None:
        function = value.__func__
        if type(function) is not types.FunctionType:
            raise _NoGuard
        number = self._meet(where, value, _INSTANCE, types.MethodType)
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        tree = recipe_of(function.__code__).params[names[0]] if names else None
        self.value((_ATTRIBUTE, number, "__func__"), function, None)
        self.value((_ATTRIBUTE, number, "__self__"), value.__self__, tree)

    def _instance(self, where: tuple, value: Any, tree: Any) -> None:
        """An instance of which some attributes are read, all in its own __dict__: not of its class, nor computed."""
        kind = type(value)
        is_module = isinstance(value, torch.nn.Module)
        is_usual = kind.__getattribute__ is object.__getattribute__ and (is_module or not hasattr(kind, "__getattr__"))
        if not is_usual or not isinstance(tree, dict):
            raise _NoGuard
        number = self._meet(where, value, _INSTANCE, kind)
        for name, below in tree.items():
            if hasattr(kind, name) or not hasattr(value, name):
                raise _NoGuard
            self.value((_ATTRIBUTE, number, name), getattr(value, name), below)


def guard_steps(mod: Any, tensors: list[torch.Tensor]) -> list[tuple] | None:
    """The checks, or None if they cannot cover it. tensors: those of the mod's key, which was found."""
    steps = _Steps(tensors)
    try:
        steps.value((_MOD, 0, None), mod, None)
    except (_NoGuard, RecursionError):
        return None
    return steps.steps

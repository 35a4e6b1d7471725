"""The key of a traced mod: everything that can change what the mod computes, and its tensors.

Visits code objects, closure cells, defaults, globals that the code names, arguments of partials, and attributes of
instances that the code names. Numbers count by type and value; tensors by dtype, shape, requires_grad and which of them
are the same object, but not by identity: they are collected in the order of the visit, so that those of a later call
take their places. Anything else makes the mod uncacheable (KeyUnknown). Trace layer.
"""

from __future__ import annotations

import builtins
import enum
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from .code_recipe import UNSAFE_ATTRIBUTES, Recipe

_MISSING = object()
_NOTHING: dict = {}
BUILTINS = vars(builtins)
_RECIPES: dict[int, Recipe] = {}
_MOST_RECIPES = 4096
_MOST_ITEMS = 256
_OPAQUE_MODULES = ("torch", "math", "operator", "functools", "_operator", "_functools", "builtins", "typing")
# Functions that access what no key holds, or return something else each time.
_UNSAFE_BUILTINS = frozenset(
    """getattr setattr delattr hasattr vars globals locals eval exec compile open input next iter id hash dir super
    __import__""".split()
)
# Methods that a class may define and still be plain data: what dataclass and the like generate.
_DATA_METHODS = frozenset(
    """__init__ __repr__ __eq__ __hash__ __post_init__ __setattr__ __delattr__ __replace__ __lt__ __le__ __gt__ __ge__
    __getstate__ __setstate__ __str__ __new__ __getattribute__ __reduce__ __annotate_func__ __annotate__""".split()
)


class KeyUnknown(Exception):
    """No key can be made: the mod is traced at every call."""


class _Walk:
    """Parts of the key so far; tensors seen; seen: id of a tensor or an instance -> its number."""

    __slots__ = ("parts", "tensors", "seen")

    def __init__(self, first) -> None:
        self.parts = [first]
        self.tensors: list[torch.Tensor] = []
        self.seen: dict[Any, int] = {}

    def value(self, value, tree) -> None:
        (_HANDLERS.get(type(value)) or _other)(self, value, tree)


def mod_key(mod, first) -> tuple[tuple, list[torch.Tensor]]:
    """The key, which begins with `first`, and the captured tensors. Raises KeyUnknown."""
    walk = _Walk(first)
    try:
        walk.value(mod, None)
    except RecursionError:  # something contains itself
        raise KeyUnknown("values that hold themselves") from None
    return tuple(walk.parts), walk.tensors


def recipe_of(code: types.CodeType) -> Recipe:
    recipe = _RECIPES.get(id(code))
    if recipe is None or recipe.code is not code:
        if len(_RECIPES) >= _MOST_RECIPES:
            _RECIPES.clear()
        recipe = _RECIPES[id(code)] = Recipe(code)
    return recipe


def _immutable(walk: _Walk, value, tree) -> None:
    walk.parts.append(type(value))
    walk.parts.append(value)


def _identity(walk: _Walk, value, tree) -> None:
    walk.parts.append(value)


def _float(walk: _Walk, value: float, tree) -> None:
    walk.parts.append(float)
    # 0.0 == -0.0, and NaN is not equal to itself.
    walk.parts.append(value if value == value and value != 0 else repr(value))


def _tensor(walk: _Walk, value: torch.Tensor, tree) -> None:
    number = walk.seen.get(id(value))
    if number is not None:
        walk.parts.append(number)
        return
    if not value.is_cpu:
        raise KeyUnknown("a tensor that is not on the CPU")
    walk.seen[id(value)] = len(walk.tensors)
    walk.tensors.append(value)
    # What is computed from a tensor that requires a gradient requires one only while gradients are recorded.
    walk.parts += (value.dtype, value.shape, value.requires_grad and 1 + torch.is_grad_enabled())


def _function(walk: _Walk, value: types.FunctionType, tree) -> None:
    number = walk.seen.get(id(value))
    if number is not None:
        walk.parts.append(number)
        return
    walk.seen[id(value)] = -1 - len(walk.parts)
    recipe = recipe_of(value.__code__)
    if recipe.unsafe is not None:
        raise KeyUnknown(recipe.unsafe)
    walk.parts.append(recipe)
    closure = value.__closure__
    if closure is not None:
        for cell, below in zip(closure, recipe.free):
            _cell(walk, cell, below)
    if value.__defaults__ is not None:
        names = recipe.code.co_varnames[: recipe.code.co_argcount][-len(value.__defaults__) :]
        for name, default in zip(names, value.__defaults__):
            walk.value(default, recipe.params[name])
    if value.__kwdefaults__:
        for name, default in value.__kwdefaults__.items():
            walk.parts.append(name)
            walk.value(default, recipe.params.get(name))
    if recipe.names:
        _globals(walk, value.__globals__, recipe)
    if value.__dict__:
        _dict(walk, value.__dict__, None)


def _cell(walk: _Walk, cell, tree) -> None:
    try:
        value = cell.cell_contents
    except ValueError:  # not assigned yet
        walk.parts.append(_MISSING)
        return
    (_HANDLERS.get(type(value)) or _other)(walk, value, tree)


def _globals(walk: _Walk, names: dict, recipe: Recipe) -> None:
    for name, tree in recipe.names:
        value = names.get(name, _MISSING)
        if value is _MISSING:
            value = BUILTINS.get(name, _MISSING)
        (_HANDLERS.get(type(value)) or _other)(walk, value, tree)


def _method(walk: _Walk, value: types.MethodType, tree) -> None:
    _bound(walk, value.__func__, value.__self__)


def _bound(walk: _Walk, function, instance) -> None:
    """A function called with an instance as its first argument."""
    if type(function) is not types.FunctionType:
        raise KeyUnknown(f"a method of type {type(function).__name__}")
    mark = (id(function), id(instance))
    if mark in walk.seen:
        walk.parts.append(walk.seen[mark])
        return
    walk.seen[mark] = -1 - len(walk.parts)
    recipe = recipe_of(function.__code__)
    names = recipe.code.co_varnames[: recipe.code.co_argcount]
    _function(walk, function, None)
    walk.value(instance, recipe.params[names[0]] if names else None)


def _partial(walk: _Walk, value: functools.partial, tree) -> None:
    function = value.func
    walk.parts.append(functools.partial)
    walk.value(function, None)
    params = recipe_of(function.__code__).params if type(function) is types.FunctionType else {}
    names = list(params)
    walk.parts.append(len(value.args))
    for place, argument in enumerate(value.args):
        walk.value(argument, params[names[place]] if place < len(names) else None)
    for name, argument in value.keywords.items():
        walk.parts.append(name)
        walk.value(argument, params.get(name))


def _sequence(walk: _Walk, value, tree) -> None:
    if len(value) > _MOST_ITEMS:
        raise KeyUnknown(f"a {type(value).__name__} of {len(value)} items")
    walk.parts += (type(value), len(value))
    for item in value:
        walk.value(item, None)


def _dict(walk: _Walk, value: dict, tree) -> None:
    if len(value) > _MOST_ITEMS:
        raise KeyUnknown(f"a dict of {len(value)} items")
    walk.parts += (dict, len(value))
    for name, item in value.items():
        if type(name) not in (str, int, bool, type(None)):
            raise KeyUnknown(f"a dict with keys of type {type(name).__name__}")
        walk.parts += (type(name), name)
        walk.value(item, None)


def is_opaque_module(value: types.ModuleType) -> bool:
    """Whether its contents never change."""
    return value.__name__.split(".")[0] in _OPAQUE_MODULES


def _module(walk: _Walk, value: types.ModuleType, tree) -> None:
    walk.parts.append(value)
    if is_opaque_module(value):
        return
    if tree is None:
        raise KeyUnknown(f"the module {value.__name__}")
    for name, below in tree.items():
        walk.value(vars(value).get(name, _MISSING), below)


def _builtin(walk: _Walk, value, tree) -> None:
    owner = value.__self__
    name = owner.__name__ if isinstance(owner, (type, types.ModuleType)) else ""
    module = getattr(owner, "__module__", None) if isinstance(owner, type) else name
    # torch.abs and similar functions have no module.
    is_known = (module or "").split(".")[0] in _OPAQUE_MODULES or getattr(torch, value.__name__, None) is value
    if not is_known:
        raise KeyUnknown(f"the function {value!r}")
    if value.__name__ in _UNSAFE_BUILTINS or value.__name__ in UNSAFE_ATTRIBUTES:
        raise KeyUnknown(f"the function {value.__name__}")
    walk.parts.append(value)


def _class(walk: _Walk, value: type, tree) -> None:
    if value is super:
        raise KeyUnknown("super")
    walk.parts.append(value)
    if value.__module__.split(".")[0] in (*_OPAQUE_MODULES, "numpy") or isinstance(value, enum.EnumMeta):
        return
    if tree is None:
        raise KeyUnknown(f"the class {value.__name__}")
    for name, below in tree.items():
        found = _class_attribute(value, name)
        if type(found) in (staticmethod, classmethod):
            found = found.__func__
        walk.value(found, below)


def _class_attribute(cls: type, name: str):
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return _MISSING


def _other(walk: _Walk, value, tree) -> None:
    """Values of types without a handler."""
    cls = type(value)
    numpy = sys.modules.get("numpy")
    if isinstance(value, type):
        _class(walk, value, tree)
    elif value is _MISSING or isinstance(value, enum.Enum):
        walk.parts.append(value)
    elif numpy is not None and isinstance(value, numpy.generic):
        walk.parts += (cls, value.tobytes())
    elif numpy is not None and isinstance(value, (numpy.ufunc, numpy.dtype)):
        walk.parts.append(value)
    elif isinstance(value, tuple) and hasattr(cls, "_fields"):
        if tree and not set(tree).issubset(cls._fields):
            raise KeyUnknown(f"a method of {cls.__name__}")
        _sequence(walk, value, tree)
    elif isinstance(value, torch.Tensor):
        raise KeyUnknown(f"a tensor of type {cls.__name__}")
    else:
        _instance(walk, value, tree)


def _instance(walk: _Walk, value, tree) -> None:
    """An instance of a Python class: the attributes that are named, or all of them if it is plain data."""
    cls = type(value)
    is_module = isinstance(value, torch.nn.Module)
    is_usual = cls.__getattribute__ is object.__getattribute__ or cls is types.SimpleNamespace
    if not is_usual or (hasattr(cls, "__getattr__") and not is_module):
        raise KeyUnknown(f"an instance of {cls.__name__}")
    walk.parts.append(cls)
    if tree is None:
        tree = _whole(value, is_module)
    for name, below in tree.items():
        walk.parts.append(name)
        _attribute(walk, value, name, below, is_module)


def _whole(value, is_module: bool) -> dict:
    """The tree for an instance that is used as a whole: as a function, or as data."""
    cls = type(value)
    if is_module:
        if value._forward_hooks or value._forward_pre_hooks:
            raise KeyUnknown(f"hooks of {cls.__name__}")
        return {"forward": None}
    if callable(value):
        return {"__call__": None}
    methods = [
        n for base in cls.__mro__[:-1] for n, v in base.__dict__.items() if callable(v) or isinstance(v, property)
    ]
    if not hasattr(value, "__dict__") or not _DATA_METHODS.issuperset(methods):
        raise KeyUnknown(f"an instance of {cls.__name__}")
    data = [n for base in cls.__mro__[:-1] for n in base.__dict__ if not n.startswith("__")]
    return dict.fromkeys([*value.__dict__, *data])


def _attribute(walk: _Walk, value, name: str, tree, is_module: bool) -> None:
    own = getattr(value, "__dict__", _NOTHING)
    if name in own and getattr(type(value), name, _MISSING) is _MISSING:  # the usual case, fast
        walk.value(own[name], tree)
        return
    found = _class_attribute(type(value), name)
    if type(found) is property:
        _bound(walk, found.fget, value)
    elif type(found) is types.MemberDescriptorType:
        walk.value(getattr(value, name, _MISSING), tree)
    elif name in own and not hasattr(type(found), "__set__"):
        walk.value(own[name], tree)
    elif type(found) is types.FunctionType:
        _bound(walk, found, value)
    elif type(found) in (staticmethod, classmethod):
        walk.value(found.__func__, tree)
    elif is_module and found is _MISSING:
        held = (t[name] for t in (value._parameters, value._buffers, value._modules) if name in t)
        walk.value(next(held, _MISSING), tree)
    elif hasattr(type(found), "__get__"):
        raise KeyUnknown(f"the attribute {name} of {type(value).__name__}")
    else:
        walk.value(found, tree)


_HANDLERS: dict[type, Callable] = {
    torch.Tensor: _tensor,
    torch.nn.Parameter: _tensor,
    float: _float,
    types.FunctionType: _function,
    types.MethodType: _method,
    types.ModuleType: _module,
    types.BuiltinFunctionType: _builtin,
    functools.partial: _partial,
    tuple: _sequence,
    list: _sequence,
    dict: _dict,
    type: _class,
    **dict.fromkeys((int, bool, str, bytes, complex, torch.Size, range), _immutable),
    **dict.fromkeys((type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout), _identity),
    # Methods of classes written in C, such as torch.Tensor.abs.
    **dict.fromkeys((types.MethodDescriptorType, types.WrapperDescriptorType), _identity),
}

# Values of these types are compared by value.
IMMUTABLE = frozenset(
    (int, bool, str, bytes, float, type(None), type(Ellipsis), torch.dtype, torch.device, types.BuiltinFunctionType)
)

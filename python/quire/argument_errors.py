"""Explains arguments that do not fit a function of the extension: which one, what is expected and what was given.

The extension's own message lists signatures and leaves it to the reader to find the difference. Functions and methods
are wrapped here; constructors, which cannot be, call `refuse` themselves (python/src/arguments.h). Python layer,
bottom.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import operator
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from . import _core

_KINDS = ("nb_func", "nb_method")
_UNFIT = "incompatible function arguments"
_WORDS = {"int": "an int", "float": "a number", "bool": "a bool", "str": "a str", "bytes": "bytes", "None": "None"}


def install(modules: list[ModuleType], classes: list[type]) -> None:
    """Wraps the extension's functions in these modules, and the methods of these classes."""
    for module in modules:
        for name, function in list(vars(module).items()):
            if type(function).__name__ == "nb_func":
                named = _wrapped(function, name)
                setattr(module, name, named)
                setattr(_core, name, named)
    for owner in classes:
        for name, function in list(vars(owner).items()):
            if type(function).__name__ in _KINDS and not name.startswith("__"):
                named = _wrapped(function, f"{owner.__name__}.{name}")
                setattr(owner, name, named if type(function).__name__ == "nb_method" else staticmethod(named))


def refuse(where: str, signature: str, args: tuple, kwargs: dict[str, Any]) -> NoReturn:
    """Raises TypeError for arguments that do not fit `signature`, the text "def name(...) -> ..."."""
    raise TypeError(f"[{where}] {_reason(_parameters(signature), args, kwargs)}")


def _wrapped(function: Any, where: str) -> Callable:
    signature = function.__nb_signature__[0][0]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if _UNFIT not in str(error):
                raise
        refuse(where, signature, args, kwargs)

    call.__signature__ = _signature(  # type: ignore[attr-defined]
        signature, function.__nb_signature__[0][2] or ()
    )
    return call


# ---- signatures as texts: "def name(x: int, y: object | None = \\0) -> None", where \\0 is the first of the defaults


@functools.cache
def _arguments(signature: str) -> ast.arguments:
    plain = re.sub(r"= \\(\d+)", r"= (\1,)", signature)
    (function,) = ast.parse(plain + ": ...").body
    assert isinstance(function, ast.FunctionDef)
    return function.args


class _Parameter(NamedTuple):
    kind: str  # as in the signature: "int | None"
    is_needed: bool
    by_name: bool  # keyword-only


@functools.cache
def _parameters(signature: str) -> dict[str, _Parameter]:
    found = _arguments(signature)
    places = found.posonlyargs + found.args
    needed = len(places) - len(found.defaults)
    by_place = {one.arg: _Parameter(_text(one), i < needed, False) for i, one in enumerate(places)}
    pairs = zip(found.kwonlyargs, found.kw_defaults)
    return by_place | {one.arg: _Parameter(_text(one), default is None, True) for one, default in pairs}


def _text(argument: ast.arg) -> str:
    return "object" if argument.annotation is None else ast.unparse(argument.annotation)


def _signature(signature: str, defaults: tuple) -> inspect.Signature:
    """What inspect.signature and help() show."""
    found = _arguments(signature)

    def value(default: ast.expr | None) -> Any:
        if default is None:
            return inspect.Parameter.empty
        if isinstance(default, ast.Tuple) and defaults:
            return defaults[ast.literal_eval(default)[0]]
        return ast.literal_eval(default)

    places = found.posonlyargs + found.args
    given = [None] * (len(places) - len(found.defaults)) + list(found.defaults)
    kinds: list[tuple[ast.arg, ast.expr | None, Any]] = [
        (one, default, inspect.Parameter.POSITIONAL_OR_KEYWORD) for one, default in zip(places, given)
    ]
    if found.vararg is not None:
        kinds.append((found.vararg, None, inspect.Parameter.VAR_POSITIONAL))
    kinds += [
        (one, default, inspect.Parameter.KEYWORD_ONLY) for one, default in zip(found.kwonlyargs, found.kw_defaults)
    ]
    if found.kwarg is not None:
        kinds.append((found.kwarg, None, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(
        [
            inspect.Parameter(one.arg, kind, default=value(default), annotation=_text(one))
            for one, default, kind in kinds
        ]
    )


# ---- what is wrong


def _reason(parameters: dict[str, _Parameter], args: tuple, kwargs: dict[str, Any]) -> str:
    places = [name for name, one in parameters.items() if not one.by_name]
    offered = [name for name in parameters if name != "self"]
    if len(args) > len(places):
        extra = 1 if places[:1] == ["self"] else 0
        return f"takes {len(places) - extra} arguments without a name at most; got {len(args) - extra}"
    given = dict(zip(places, args))
    for name in kwargs:
        if name in given:
            return f"{name} is given twice"
        if name not in parameters:
            near = difflib.get_close_matches(name, offered, 1)
            meant = f"{near[0]} may be meant; " if near else ""
            return f"there is no argument {name!r}; {meant}there are {', '.join(offered)}"
    given |= kwargs
    for name, one in parameters.items():
        if one.is_needed and name not in given:
            return f"{name} is missing"
    for name, one in parameters.items():
        if name in given and not _fits(one.kind, given[name]):
            return f"{name} must be {_words(one.kind)}; got {_shown(given[name])}"
    got = ", ".join(f"{name} of {_type_name(value)}" for name, value in given.items())
    return f"the arguments do not fit; got {got}"


def _words(kind: str) -> str:
    names = [one.strip() for one in kind.split("|")]
    return " or ".join(_WORDS.get(one) or "a " + re.sub(r"(\w+\.)+", "", one) for one in names)


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ in ("builtins", "quire._core") else f"{kind.__module__}.{kind.__name__}"


def _shown(value: Any) -> str:
    text = repr(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return f"{text}, which has more than 64 bits"
    return f"{_type_name(value)} {text if len(text) <= 80 else text[:77] + '...'}"


def _fits(kind: str, value: Any) -> bool:
    """Whether the extension accepts it; True for an unknown kind."""
    return any(_fits_one(one.strip(), value) for one in kind.split("|"))


def _fits_one(kind: str, value: Any) -> bool:
    if kind in ("int", "float", "bool", "str", "bytes", "None"):
        return {
            "int": lambda: _is_int(value),
            "float": lambda: hasattr(value, "__float__") and not isinstance(value, (str, bytes)),
            "bool": lambda: isinstance(value, bool),
            "str": lambda: isinstance(value, str),
            "bytes": lambda: isinstance(value, bytes),
            "None": lambda: value is None,
        }[kind]()
    if re.fullmatch(r"(quire\.)?_core\.\w+|[A-Z]\w+", kind):
        return any(one.__name__ == kind.rpartition(".")[2] for one in type(value).__mro__) or kind == "Any"
    return True


def _is_int(value: Any) -> bool:
    try:
        return -(1 << 63) <= operator.index(value) < 1 << 63
    except TypeError:
        return False

"""Names for the buffers of a formula: those of the Python variables that hold the arrays, if they can be found.

Only for readability; nothing depends on them. The formula itself makes them unique and valid. Trace layer, shared.
"""

from __future__ import annotations

import functools
import types

_MOST_VISITED = 2_000


def array_names(mod, array_type: type) -> dict[int, str]:
    """id of a captured array of the given type -> the name of the variable or attribute that holds it, searching only
    nearby objects."""
    names: dict[int, str] = {}
    seen: set[int] = set()
    stack = [(mod, "")]
    while stack and len(seen) < _MOST_VISITED:
        value, name = stack.pop()
        if isinstance(value, array_type):
            names.setdefault(id(value), name)
        elif id(value) not in seen:
            seen.add(id(value))
            stack.extend(reversed(_held_by(value, name)))
    return names


def _held_by(value, name: str) -> list[tuple[object, str]]:
    if isinstance(value, types.FunctionType):
        return _held_by_function(value)
    if isinstance(value, types.MethodType):
        return [(value.__func__, name), (value.__self__, name)]
    if isinstance(value, functools.partial):
        code = getattr(value.func, "__code__", None)
        params = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code is not None else ()
        args = [(v, params[i] if i < len(params) else name) for i, v in enumerate(value.args)]
        return [(value.func, name), *args, *((v, k) for k, v in value.keywords.items())]
    if isinstance(value, (list, tuple)):
        return [(v, name) for v in value]
    if isinstance(value, dict):
        return [(v, k if isinstance(k, str) else name) for k, v in value.items()]
    if hasattr(value, "_parameters") and hasattr(type(value), "forward"):  # a torch.nn.Module
        return [(value._parameters, name), (value._buffers, name), (vars(value), name), (type(value).forward, name)]
    if isinstance(value, (type, types.ModuleType)) or not hasattr(value, "__dict__"):
        return []
    return [(vars(value), name), (getattr(type(value), "__call__", None), name)]  # noqa: B004


def _held_by_function(function: types.FunctionType) -> list[tuple[object, str]]:
    code = function.__code__
    held = []
    for variable, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            held.append((cell.cell_contents, variable))
        except ValueError:
            pass
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    held += zip(defaults, positional[len(positional) - len(defaults) :])
    held += ((v, k) for k, v in (function.__kwdefaults__ or {}).items())
    held += ((function.__globals__[n], n) for n in code.co_names if n in function.__globals__)
    return held

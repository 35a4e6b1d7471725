"""What a code object reads, found once from its bytecode: global names, closure variables, and attributes of these.

mod_key.py uses it to visit only what a mod can depend on. Trace layer; knows nothing of tensors.
"""

from __future__ import annotations

import dis
import os
import types

import torch

# An attribute tree: attribute -> tree of what is read from it. None: the value itself is used, as a whole.
Tree = dict

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

# Attributes and functions whose result depends on something that no key holds.
UNSAFE_ATTRIBUTES = frozenset(
    """__dict__ __class__ __globals__ get_default_dtype is_grad_enabled is_inference_mode_enabled get_num_threads
    are_deterministic_algorithms_enabled is_autocast_enabled get_autocast_dtype initial_seed get_rng_state""".split()
)
_UNSAFE_INSTRUCTIONS = frozenset(
    "STORE_GLOBAL DELETE_GLOBAL DELETE_DEREF STORE_ATTR DELETE_ATTR LOAD_BUILD_CLASS".split()
)
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_SAFE_IMPORTS = ("torch", "math", "operator", "functools")


class Recipe:
    """code; names: [(global name, tree)]; free: tree per closure variable; params: parameter -> tree; unsafe: why no
    key can be made, or None; is_torch: written by torch, so its globals do not matter."""

    __slots__ = ("code", "names", "free", "params", "unsafe", "is_torch")

    def __init__(self, code: types.CodeType) -> None:
        uses = _Uses()
        uses.visit(code, {})
        self.code = code
        self.is_torch = code.co_filename.startswith(_TORCH)
        self.names = [] if self.is_torch else list(uses.names.items())
        self.free = [uses.variables.get(name, {}) for name in code.co_freevars]
        self.params = {name: uses.variables.get(name, {}) for name in parameters(code)}
        self.unsafe = None if self.is_torch else uses.unsafe


def parameters(code: types.CodeType) -> tuple[str, ...]:
    """Positional parameters, then keyword-only ones."""
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def merged(a: Tree | None, b: Tree | None) -> Tree | None:
    if a is None or b is None:
        return None
    result = dict(a)
    for name, tree in b.items():
        result[name] = merged(result[name], tree) if name in result else tree
    return result


class _Uses:
    """names: global -> tree; variables: parameter or closure variable of the outermost code -> tree."""

    def __init__(self) -> None:
        self.names: dict[str, Tree | None] = {}
        self.variables: dict[str, Tree | None] = {}
        self.unsafe: str | None = None

    def visit(self, code: types.CodeType, outer: dict[str, str]) -> None:
        """outer: names of this code's closure variables -> the outermost code's names for them."""
        own = outer or {name: name for name in (*parameters(code), *code.co_freevars)}
        instructions = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
        for place, instruction in enumerate(instructions):
            self._check(instruction, code)
            self._use(instruction, _attributes(instructions, place + 1), own)
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self.visit(inner, {name: own[name] for name in inner.co_freevars if name in own} or {"": ""})

    def _check(self, instruction, code: types.CodeType) -> None:
        name = instruction.opname
        if name in _UNSAFE_INSTRUCTIONS or (name == "STORE_DEREF" and instruction.argval in code.co_freevars):
            self.unsafe = f"it changes what is outside of it ({name})"
        elif name == "IMPORT_NAME" and instruction.argval.split(".")[0] not in _SAFE_IMPORTS:
            self.unsafe = f"it imports {instruction.argval}"
        elif name in _ATTRIBUTE and instruction.argval in UNSAFE_ATTRIBUTES:
            self.unsafe = f"it uses {instruction.argval}"

    def _use(self, instruction, attributes: list[str], own: dict[str, str]) -> None:
        name, argument = instruction.opname, instruction.argval
        if name == "LOAD_CLOSURE":
            return  # passed to an inner function, which is visited
        if name in ("LOAD_GLOBAL", "LOAD_NAME"):
            _note(self.names, argument, attributes)
        elif name.startswith(
            ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR", "STORE_FAST_LOAD_FAST")
        ):
            several = argument if isinstance(argument, tuple) else (argument,)
            for i, variable in enumerate(several):
                if variable in own:
                    _note(self.variables, own[variable], attributes if i == len(several) - 1 else [])


def _attributes(instructions: list, place: int) -> list[str]:
    result = []
    while place < len(instructions) and instructions[place].opname in _ATTRIBUTE:
        result.append(instructions[place].argval)
        place += 1
    return result


def _note(table: dict[str, Tree | None], name: str, attributes: list[str]) -> None:
    tree: Tree | None = None
    for attribute in reversed(attributes):
        tree = {attribute: tree}
    table[name] = merged(table[name], tree) if name in table else tree

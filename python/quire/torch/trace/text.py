"""Values written as text of the formula language: `v0 = kv_idx - q_idx; score + slopes[h] * v0`.

As few parentheses as the grammar allows; a value used twice, or nested deep, gets a name. Layer: trace.
"""

from __future__ import annotations

import math

from .expression import Expr

# From weak to strong, as in docs/formula.md.
_COMPARE, _SUM, _PRODUCT, _PREFIX, _POWER, _ATOM = 4, 9, 10, 11, 12, 13
_LEVELS = {
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), _COMPARE),
    "|": 5,
    "^": 6,
    "&": 7,
    "<<": 8,
    ">>": 8,
    "+": _SUM,
    "-": _SUM,
    **dict.fromkeys(("*", "/", "//", "%"), _PRODUCT),
}
_DEEPEST = 50  # levels in one statement; the language reads 1,000

# Names a buffer or a binding cannot have.
RESERVED = frozenset(
    """and or not True False true false inf nan score b h q_idx kv_idx int float bool neg abs sign floor ceil round trunc
    logical_not bitwise_not exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos atan tanh sigmoid erf relu gelu gelu_tanh silu
    softplus add sub mul true_div floor_div floor_divide remainder mod pow plain_pow minimum maximum min max shift_left
    shift_right bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor less less_equal greater
    greater_equal equal not_equal where clamp sum dot""".split()
)


def const_text(value) -> str:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return repr(value)
    return str(value) if value > -(2**63) else "(-9223372036854775807 - 1)"


def _is_leaf(x: Expr) -> bool:
    return x.op in ("const", "arg") or (x.op in ("load", "row") and len(x.args) == 1)


def _topological(root: Expr) -> tuple[list[Expr], dict[int, int]]:
    """Every value once, arguments before users, and how often each is used."""
    order: list[Expr] = []
    uses: dict[int, int] = {id(root): 1}
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        x, done = stack.pop()
        if done:
            order.append(x)
            continue
        if id(x) in seen:
            continue
        seen.add(id(x))
        stack.append((x, True))
        for arg in x.args:
            if isinstance(arg, Expr):
                uses[id(arg)] = uses.get(id(arg), 0) + 1
                stack.append((arg, False))
    return order, uses


class _Writer:
    def __init__(self, buffer_names: dict[int, str]) -> None:
        self.buffer_names = buffer_names
        self.texts: dict[int, tuple[str, int, int]] = {}  # text, level, depth

    def at(self, x: Expr, level: int) -> str:
        text, own, _ = self.texts[id(x)]
        return text if own >= level else f"({text})"

    def write(self, x: Expr) -> tuple[str, int]:
        op, args = x.op, x.args
        if op == "const":
            text = const_text(args[0])
            return text, _PREFIX if text[0] == "-" else _ATOM
        if op == "arg":
            return args[0], _ATOM
        if op in ("load", "row"):
            name = self.buffer_names[id(args[0])]
            indices = ", ".join(self.at(i, 0) for i in args[1:])
            return f"{name}[{indices}]" if indices else name, _ATOM
        if op in _LEVELS:
            level = _LEVELS[op]
            left = level + 1 if level == _COMPARE else level
            return f"{self.at(args[0], left)} {op} {self.at(args[1], level + 1)}", level
        if op in ("neg", "~"):
            return ("-" if op == "neg" else "~") + self.at(args[0], _ATOM), _PREFIX
        if op == "**":
            exponent = self.at(args[1], _PREFIX if args[1].is_const else _ATOM)
            return f"{self.at(args[0], _ATOM)} ** {exponent}", _POWER
        return f"{op}({', '.join(self.at(a, 0) for a in args)})", _ATOM


def write(root: Expr, buffer_names: dict[int, str]) -> str:
    """The text of a value. `buffer_names`: id of each buffer that is read -> its name."""
    order, uses = _topological(root)
    writer = _Writer(buffer_names)
    taken = set(buffer_names.values())
    statements: list[str] = []
    for x in order:
        text, level = writer.write(x)
        depth = 1 + max((writer.texts[id(a)][2] for a in x.args if isinstance(a, Expr)), default=0)
        named = uses[id(x)] > 1 or depth > _DEEPEST
        if named and x is not root and not _is_leaf(x) and x.op != "row":
            name = _fresh(taken, len(statements))
            statements.append(f"{name} = {text}")
            text, level, depth = name, _ATOM, 0
        writer.texts[id(x)] = (text, level, depth)
    statements.append(writer.texts[id(root)][0])
    return "; ".join(statements)


def _fresh(taken: set[str], number: int) -> str:
    name = f"v{number}"
    while name in taken:
        name = "v" + name
    taken.add(name)
    return name

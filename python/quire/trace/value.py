"""Values of a formula as tracers build them: an Expr of the core with its type and, for ints, a range.

Mirrors the types of docs/formula.md ("Types"), so that a cast is recorded exactly where the types of torch or JAX
differ from the language's. Knows types by name ("int32"), and no operation of either library. Trace layer, shared.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable

from quire import _core

from .error import fail

INT, FLOAT, BOOL = "int", "float", "bool"
INT64 = (-(2**63), 2**63 - 1)
# An index of an element of the attention matrix fits into 31 bits.
INDEX = (0, 2**31 - 1)

_INT_RANGES = {
    "bool": (0, 1),
    "uint8": (0, 255),
    "int8": (-128, 127),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": INT64,
}
_FLOATS = frozenset("float16 bfloat16 float32 float64".split())


def kind_of(dtype: str) -> str:
    """The type that values of a dtype have in the language."""
    if dtype == "bool":
        return BOOL
    if dtype in _FLOATS or dtype.startswith("float8"):
        return FLOAT
    if dtype in _INT_RANGES:
        return INT
    fail(f"values of dtype {dtype} are not supported")


def range_of(dtype: str) -> tuple[int, int]:
    """The smallest and the largest value of an integer dtype."""
    return _INT_RANGES[dtype]


class Value:
    """One value. `node`: the Expr that computes it; `constant`: its number, None if it differs between elements.

    Immutable. Python's arithmetic operators record new values; == is identity, see `equal`.
    """

    __slots__ = ("node", "kind", "low", "high", "constant")

    def __init__(self, node: _core.Expr, kind: str, span: tuple[int, int] = INT64, constant=None) -> None:
        self.node = node
        self.kind = kind
        # What exceeds int64 wraps, so nothing is known about it.
        self.low, self.high = (0, 1) if kind == BOOL else span if INT64[0] <= span[0] and span[1] <= INT64[1] else INT64
        self.constant = constant

    @property
    def is_const(self) -> bool:
        return self.constant is not None

    def within(self, low: int, high: int) -> bool:
        """Whether an int or bool is known to lie in low..high."""
        return self.kind != FLOAT and low <= self.low and self.high <= high

    def __add__(self, other):
        return _arithmetic(operator.add, self, other, lambda a, b: (a.low + b.low, a.high + b.high))

    def __radd__(self, other):
        return lift(other) + self

    def __sub__(self, other):
        return _arithmetic(operator.sub, self, other, lambda a, b: (a.low - b.high, a.high - b.low))

    def __rsub__(self, other):
        return lift(other) - self

    def __mul__(self, other):
        return _arithmetic(
            operator.mul, self, other, lambda a, b: _hull(x * y for x in (a.low, a.high) for y in (b.low, b.high))
        )

    def __rmul__(self, other):
        return lift(other) * self

    def __truediv__(self, other):
        return Value(self.node / lift(other).node, FLOAT)

    def __rtruediv__(self, other):
        return lift(other) / self

    def __floordiv__(self, other):
        return _arithmetic(operator.floordiv, self, other, _floor_div_span)

    def __mod__(self, other):
        return _arithmetic(operator.mod, self, other, _mod_span)

    def __pow__(self, other):
        other = lift(other)
        negative = other.is_const and other.constant < 0
        return Value(self.node**other.node, FLOAT if negative else _numeric(self, other))

    def __and__(self, other):
        return _bits("&", self, other)

    def __or__(self, other):
        return _bits("|", self, other)

    def __xor__(self, other):
        return _bits("^", self, other)

    def __invert__(self):
        if self.kind == FLOAT:
            fail("'~' needs a bool or an integer; got a float")
        return Value(~self.node, self.kind, (-1 - self.high, -1 - self.low))

    def __lshift__(self, other):
        return _shift("<<", self, other)

    def __rshift__(self, other):
        return _shift(">>", self, other)

    def __neg__(self):
        x = number(self)
        return Value(-x.node, x.kind, (-x.high, -x.low))

    def __abs__(self):
        x = number(self)
        low = 0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
        return Value(abs(x.node), x.kind, (low, max(abs(x.low), abs(x.high))))

    def __lt__(self, other):
        return compare("<", self, other)

    def __le__(self, other):
        return compare("<=", self, other)

    def __gt__(self, other):
        return compare(">", self, other)

    def __ge__(self, other):
        return compare(">=", self, other)

    def __bool__(self):
        raise AssertionError("a rule of the tracer asked for the truth of a traced value")


_BITS = {"&": operator.and_, "|": operator.or_, "^": operator.xor}
_SHIFTS = {"<<": operator.lshift, ">>": operator.rshift}
_COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_CASTS = {INT: _core.to_int, FLOAT: _core.to_float, BOOL: _core.to_bool}


def const(value: bool | int | float) -> Value:
    """A Python bool, int or float."""
    if isinstance(value, bool):
        return Value(_core.Expr(value), BOOL, constant=value)
    if isinstance(value, int):
        if not INT64[0] <= value <= INT64[1]:
            fail(f"the integer {value} does not fit into 64 bits")
        return Value(_core.Expr(value), INT, (value, value), value)
    return Value(_core.Expr(float(value)), FLOAT, constant=float(value))


def lift(value) -> Value:
    return value if isinstance(value, Value) else const(value)


def number(x: Value) -> Value:
    """A bool as the int it counts as."""
    return Value(_core.to_int(x.node), INT, (0, 1)) if x.kind == BOOL else x


def _numeric(*values: Value) -> str:
    return FLOAT if any(v.kind == FLOAT for v in values) else INT


def _hull(values: Iterable[int]) -> tuple[int, int]:
    values = list(values)
    return min(values), max(values)


def _arithmetic(op: Callable, a: Value, b, span: Callable) -> Value:
    b = lift(b)
    kind = _numeric(a, b)
    return Value(op(a.node, b.node), kind, span(a, b) if kind == INT else INT64)


def _floor_div_span(a: Value, b: Value) -> tuple[int, int]:
    if b.low <= 0:
        return INT64
    return _hull(x // y for x in (a.low, a.high) for y in (b.low, b.high))


def _mod_span(a: Value, b: Value) -> tuple[int, int]:
    return (0, min(b.high - 1, a.high) if a.low >= 0 else b.high - 1) if b.low > 0 else INT64


def _bits(op: str, a: Value, b) -> Value:
    b = lift(b)
    if FLOAT in (a.kind, b.kind):
        fail(f"'{op}' needs bools or integers; got a float")
    node = _BITS[op](a.node, b.node)
    if a.kind == BOOL and b.kind == BOOL:
        return Value(node, BOOL)
    if op == "&" and (a.low >= 0 or b.low >= 0):
        return Value(node, INT, (0, min(x.high for x in (a, b) if x.low >= 0)))
    return Value(node, INT)


def _shift(op: str, a: Value, b) -> Value:
    b = lift(b)
    if FLOAT in (a.kind, b.kind):
        fail(f"'{op}' needs integers; got a float")
    span = (0, a.high) if op == ">>" and a.low >= 0 else INT64
    return Value(_SHIFTS[op](a.node, b.node), INT, span)


def compare(op: str, a, b) -> Value:
    return Value(_COMPARISONS[op](lift(a).node, lift(b).node), BOOL)


def equal(a, b) -> Value:
    return compare("==", a, b)


def not_equal(a, b) -> Value:
    return compare("!=", a, b)


def call(name: str, x) -> Value:
    """A function of the language that gives a float: exp, tanh, …"""
    return Value(getattr(_core, name)(lift(x).node), FLOAT)


def rounding(name: str, x: Value) -> Value:
    """floor, ceil, round, trunc: an int stays unchanged."""
    x = number(x)
    return x if x.kind == INT else Value(getattr(_core, name)(x.node), FLOAT)


def sign(x: Value) -> Value:
    x = number(x)
    return Value(_core.sign(x.node), x.kind, (-1, 1))


def minimum(a, b) -> Value:
    a, b = lift(a), lift(b)
    return Value(_core.minimum(a.node, b.node), _numeric(a, b), (min(a.low, b.low), min(a.high, b.high)))


def maximum(a, b) -> Value:
    a, b = lift(a), lift(b)
    return Value(_core.maximum(a.node, b.node), _numeric(a, b), (max(a.low, b.low), max(a.high, b.high)))


def clamp(x, low, high) -> Value:
    x, low, high = lift(x), lift(low), lift(high)
    least, most = max(x.low, low.low), max(x.high, low.high)
    span = min(least, high.low), min(most, high.high)
    return Value(_core.clamp(x.node, low.node, high.node), _numeric(x, low, high), span)


def where(condition, a, b) -> Value:
    condition, a, b = lift(condition), lift(a), lift(b)
    kind = BOOL if a.kind == b.kind == BOOL else _numeric(a, b)
    node = _core.where(condition.node, a.node, b.node)
    return Value(node, kind, (min(a.low, b.low), max(a.high, b.high)))


def cast(x: Value, kind: str) -> Value:
    """int(), float() or bool(), or nothing if the value has that type."""
    if x.kind == kind:
        return x
    if x.is_const:
        return _cast_const(x.constant, kind)
    span = (x.low, x.high) if x.kind != FLOAT else INT64
    return Value(_CASTS[kind](x.node), kind, span)


def _cast_const(value, kind: str) -> Value:
    if kind == BOOL:
        return const(bool(value))
    if kind == FLOAT:
        return const(float(value))
    if not math.isfinite(value):
        return Value(_core.to_int(value), INT)
    return const(max(INT64[0], min(INT64[1], int(value))))


def wrapped(x: Value, dtype: str) -> Value:
    """An int as stored in an integer dtype: reduced modulo its size, unless it is known to fit."""
    low, high = range_of(dtype)
    if x.within(low, high):
        return x
    if low == 0:
        return x & high
    return ((x - low) & (high - low)) + low


def as_dtype(x: Value, dtype: str) -> Value:
    """The result of an operation in the dtype that its library gives it. Ints of 8 and 16 bits wrap; those of 32 bits
    do not."""
    x = cast(x, kind_of(dtype))
    if x.kind == INT and dtype not in ("int32", "int64"):
        return wrapped(x, dtype)
    return x


def converted(x: Value, dtype: str) -> Value:
    """An explicit cast. Unlike as_dtype, values that do not fit into 32 bits wrap too, unless they were floats."""
    was_float = x.kind == FLOAT
    x = as_dtype(x, dtype)
    return wrapped(x, dtype) if x.kind == INT and not was_float else x

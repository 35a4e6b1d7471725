"""The table of JAX's pointwise primitives: what each of them is in the formula language.

A rule takes the parameters of the equation and its operands as values, and returns a value; the tracer casts it to the
dtype that JAX gives the result. Primitives that move elements or reduce rows are in field.py. Trace layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from quire.trace.error import fail
from quire.trace.functions import (
    acosh,
    asinh,
    atanh,
    cosh,
    erfc,
    fmod,
    is_infinite,
    is_nan,
    sinh,
    tan,
    truncated_div,
)
from quire.trace.value import (
    FLOAT,
    Value,
    call,
    clamp,
    compare,
    const,
    converted,
    maximum,
    minimum,
    rounding,
    sign,
    where,
)


def _compared(op: str) -> Callable:
    def rule(_: dict, a: Value, b: Value) -> Value:
        decided = _known_comparison(op, a, b)
        return compare(op, a, b) if decided is None else const(decided)

    return rule


def _known_comparison(op: str, a: Value, b: Value) -> bool | None:
    """The result if the ranges of two ints decide it: JAX asks of every index whether it is negative."""
    if FLOAT in (a.kind, b.kind):
        return None
    if op in (">", ">="):
        return _known_comparison("<" if op == ">" else "<=", b, a)
    if op == "<":
        return True if a.high < b.low else False if a.low >= b.high else None
    if op == "<=":
        return True if a.high <= b.low else False if a.low > b.high else None
    return None


def _divided(_: dict, a: Value, b: Value) -> Value:
    return a / b if FLOAT in (a.kind, b.kind) else truncated_div(a, b)


def _integer_power(params: dict, x: Value) -> Value:
    exponent = params["y"]
    if exponent < 0:
        return 1.0 / _integer_power({"y": -exponent}, x)
    if exponent <= 3:
        product = x if exponent else const(1.0 if x.kind == FLOAT else 1)
        for _ in range(exponent - 1):
            product = product * x
        return product
    return x**exponent


def _selected(_: dict, which: Value, *cases: Value) -> Value:
    if len(cases) != 2 or which.kind != "bool":
        fail(f"the primitive select_n among {len(cases)} cases by a {which.kind} cannot be traced; write jnp.where")
    if which.is_const:
        return cases[1] if which.constant else cases[0]
    return where(which, cases[1], cases[0])


def _rounded(params: dict, x: Value) -> Value:
    if int(params["rounding_method"]) == 1:  # to even, as jnp.round
        return rounding("round", x)
    return sign(x) * rounding("floor", abs(x) + 0.5)


def _shifted_in_zeros(_: dict, a: Value, b: Value) -> Value:
    if a.low < 0:
        fail("the primitive shift_right_logical of a number that may be negative cannot be traced")
    return a >> b


def _clamped(_: dict, low: Value, x: Value, high: Value) -> Value:
    return clamp(x, low, high)


def _function(name: str) -> Callable:
    return lambda _, x: call(name, x)


def _plain(function: Callable) -> Callable:
    return lambda _, *operands: function(*operands)


# Functions of one float that the formula language has, by JAX's names.
_FUNCTIONS = {name: name for name in "exp exp2 expm1 log log1p sqrt rsqrt sin cos atan tanh erf".split()} | {
    "logistic": "sigmoid"
}

PRIMITIVES: dict[str, Callable[..., Value]] = {
    # arithmetic
    "add": _plain(lambda a, b: a + b),
    "add_any": _plain(lambda a, b: a + b),
    "sub": _plain(lambda a, b: a - b),
    "mul": _plain(lambda a, b: a * b),
    "div": _divided,
    "rem": _plain(fmod),
    "neg": _plain(lambda x: -x),
    "abs": _plain(lambda x: abs(x)),
    "sign": _plain(sign),
    "pow": _plain(lambda a, b: a**b),
    "integer_pow": _integer_power,
    "square": _plain(lambda x: x * x),
    "max": _plain(maximum),
    "min": _plain(minimum),
    "clamp": _clamped,
    # rounding
    "floor": _plain(lambda x: rounding("floor", x)),
    "ceil": _plain(lambda x: rounding("ceil", x)),
    "round": _rounded,
    # comparisons and choices
    "eq": _compared("=="),
    "ne": _compared("!="),
    "lt": _compared("<"),
    "le": _compared("<="),
    "gt": _compared(">"),
    "ge": _compared(">="),
    "is_finite": _plain(lambda x: ~(is_nan(x) | is_infinite(x))),
    "select_n": _selected,
    # logic and bits
    "and": _plain(lambda a, b: a & b),
    "or": _plain(lambda a, b: a | b),
    "xor": _plain(lambda a, b: a ^ b),
    "not": _plain(lambda x: ~x),
    "shift_left": _plain(lambda a, b: a << b),
    "shift_right_arithmetic": _plain(lambda a, b: a >> b),
    "shift_right_logical": _shifted_in_zeros,
    # functions
    **{name: _function(own) for name, own in _FUNCTIONS.items()},
    "tan": _plain(tan),
    "sinh": _plain(sinh),
    "cosh": _plain(cosh),
    "asinh": _plain(asinh),
    "acosh": _plain(acosh),
    "atanh": _plain(atanh),
    "erfc": _plain(erfc),
    # the value itself
    "copy": _plain(lambda x: x),
    "copy_p": _plain(lambda x: x),
    "convert_element_type": lambda params, x: converted(x, params["new_dtype"].name),
}

# Reductions of whole rows: how two values are combined, and the value of an empty row.
REDUCTIONS: dict[str, tuple[Callable[[Value, Value], Value], Any]] = {
    "reduce_sum": (lambda a, b: a + b, 0),
    "reduce_prod": (lambda a, b: a * b, 1),
    "reduce_max": (maximum, None),
    "reduce_min": (minimum, None),
    "reduce_and": (lambda a, b: a & b, True),
    "reduce_or": (lambda a, b: a | b, False),
}

_HINTS = {
    "stop_gradient": ": a formula has one derivative; apply lax.stop_gradient to a captured array before the mod",
    "while": "; a mod has no loops",
    "scan": "; a mod has no loops",
    "cond": "; write jnp.where",
    "custom_vjp_call": ": derivatives of one's own cannot be a part of a mod",
    "custom_jvp_call": ": derivatives of one's own cannot be a part of a mod",
    "bitcast_convert_type": "; formulas know numbers, not their bits",
}


def refuse(name: str) -> NoReturn:
    """Raises the error for a primitive that is in no table, with what to write instead if that is known."""
    fail(f"the primitive {name} cannot be traced" + _HINTS.get(name, ""))

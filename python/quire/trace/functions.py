"""Functions that torch and JAX have but the formula language lacks, written in that language.

Trace layer, shared by quire.torch and quire.jax; above value.py.
"""

from __future__ import annotations

import math

from .value import (
    BOOL,
    FLOAT,
    INT,
    Value,
    call,
    cast,
    const,
    equal,
    lift,
    maximum,
    not_equal,
    number,
    rounding,
    sign,
    where,
)


def truth(x) -> Value:
    return cast(lift(x), BOOL)


def truncated_div(a, b):
    a, b = lift(a), lift(b)
    if FLOAT in (a.kind, b.kind):
        return rounding("trunc", a / b)
    a, b = number(a), number(b)
    if a.low >= 0 and b.low > 0:
        return a // b
    size = abs(a) // abs(b)
    return where(equal(a < 0, b < 0), size, -size)


def fmod(a, b):
    a, b = number(lift(a)), number(lift(b))
    if a.kind == b.kind == INT and a.low >= 0 and b.low > 0:
        return a % b
    size = abs(a) % abs(b)
    return where(a < 0, -size, size)


def is_nan(x):
    return not_equal(x, x) if x.kind == FLOAT else const(False)


def is_infinite(x):
    return equal(abs(x), math.inf) if x.kind == FLOAT else const(False)


_FAR = 1e9  # from here on x * x + 1 is x * x, in f64 too


def asinh(x):
    size = abs(x)
    near = where(size > _FAR, 1.0, size)
    value = call("log1p", near + near * near / (1.0 + call("sqrt", near * near + 1.0)))
    value = where(size > _FAR, call("log", where(size > _FAR, size, 1.0)) + math.log(2.0), value)
    return where(size < 1e-8, x, sign(x) * value)  # the slope of sign and abs at 0 is 0


def acosh(x):
    near = where(x > _FAR, 1.0, x)
    value = call("log", near + call("sqrt", where(x > _FAR, 1.0, near * near - 1.0)))
    return where(x > _FAR, call("log", where(x > _FAR, x, 1.0)) + math.log(2.0), value)


def logaddexp(a, b):
    largest = maximum(a, b)
    return where(equal(abs(largest), math.inf), largest, largest + call("log1p", call("exp", -abs(a - b))))


def tan(x) -> Value:
    return call("sin", x) / call("cos", x)


def sinh(x) -> Value:
    return (call("expm1", x) - call("expm1", -x)) * 0.5


def cosh(x) -> Value:
    return (call("exp", x) + call("exp", -x)) * 0.5


def atanh(x) -> Value:
    return call("log1p", 2.0 * x / (1.0 - x)) * 0.5


def erfc(x) -> Value:
    return 1.0 - call("erf", x)

"""The table of ATen operations: what each pointwise operation is in the formula language.

A rule takes the operands in the order of the ATen schema (tensors as values, everything else unchanged) and returns a
value; the tracer casts it to the dtype that torch gives the result. The key is the name of the operation, for all its
overloads. What moves elements (MOVEMENTS), makes constants (CREATIONS), reduces rows (REDUCTIONS, PRODUCTS, SEARCHES)
or reads a captured tensor (LOOKUPS) is only named here; trace_record.py and field.py do it. Trace layer.
"""

from __future__ import annotations

import math
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
    logaddexp,
    sinh,
    tan,
    truncated_div,
    truth,
)
from quire.trace.value import (
    FLOAT,
    call,
    clamp,
    compare,
    const,
    equal,
    lift,
    maximum,
    minimum,
    rounding,
    sign,
    where,
)


def _scaled(x, alpha):
    return x if alpha == 1 else lift(x) * alpha


def _add(a, b, alpha=1):
    return a + _scaled(b, alpha)


def _sub(a, b, alpha=1):
    return a - _scaled(b, alpha)


def _rsub(a, b, alpha=1):
    return b - _scaled(a, alpha)


def _div(a, b, rounding_mode=None):
    if rounding_mode is None:
        return lift(a) / b
    return lift(a) // b if rounding_mode == "floor" else truncated_div(a, b)


def _round(x, decimals=0):
    if decimals == 0 or x.kind != FLOAT:
        return rounding("round", x)
    power = 10.0 ** abs(decimals)
    return rounding("round", x * power) / power if decimals > 0 else rounding("round", x / power) * power


def _clamp(x, low=None, high=None):
    if low is None:
        return minimum(x, high)
    return maximum(x, low) if high is None else clamp(x, low, high)


def _relu(x):
    return call("relu", x) if x.kind == FLOAT else maximum(x, 0)


def _gelu(x, approximate="none"):
    return call("gelu_tanh" if approximate == "tanh" else "gelu", x)


def _softplus(x, beta=1, threshold=20):
    if beta == 1 and threshold == 20:
        return call("softplus", x)
    return where(x * beta > threshold, x, call("softplus", x * beta) / beta)


# A branch that is not chosen has cotangent 0, and 0 * inf is not 0: its argument is replaced where it would overflow.


def _elu(x, alpha=1, scale=1, input_scale=1):
    below = where(x > 0, 0.0, x)
    return where(x > 0, _scaled(x, scale), call("expm1", _scaled(below, input_scale)) * (alpha * scale))


def _celu(x, alpha=1):
    return where(x > 0, x, call("expm1", where(x > 0, 0.0, x) / alpha) * alpha)


def _hard_tanh(x, low=-1, high=1):
    """Unlike clamp, flat at its limits, too."""
    return where(x <= low, low, where(x >= high, high, x))


def _hypot(a, b):
    a, b = lift(a), lift(b)
    largest = maximum(abs(a), abs(b))
    scale = where(largest > 1e18, 2.0**-64, where(largest < 1e-18, 2.0**64, 1.0))
    near, far = a * scale, b * scale
    return call("sqrt", near * near + far * far) / scale


def _nan_to_num(x, nan=None, posinf=None, neginf=None):
    if x.kind != FLOAT:
        return x
    largest = 3.4028234663852886e38
    finite = where(equal(x, math.inf), largest if posinf is None else posinf, x)
    finite = where(equal(x, -math.inf), -largest if neginf is None else neginf, finite)
    return where(is_nan(x), 0.0 if nan is None else nan, finite)


def _lerp(a, b, weight):
    weight = lift(weight)
    near, far = a + weight * (b - a), b - (b - a) * (1 - weight)
    if weight.is_const:
        return near if abs(weight.constant) < 0.5 else far
    return where(abs(weight) < 0.5, near, far)


def _xlogy(a, b):
    a, b = lift(a), lift(b)
    is_zero = equal(a, 0) & ((b <= 0) | equal(b, math.inf))  # otherwise the product is 0 by itself, with its slope
    product = where(is_zero, 0.0, a * call("log", where(is_zero, 1.0, b)))
    return where(is_nan(b), math.nan, product)


def _smaller_number(a, b):
    return where(is_nan(a), b, where(is_nan(b), a, minimum(a, b)))


def _larger_number(a, b):
    return where(is_nan(a), b, where(is_nan(b), a, maximum(a, b)))


def _hard_gate(x):
    return _hard_tanh(x + 3.0, 0.0, 6.0) / 6.0


def _logit(x, eps=None):
    x = x if eps is None else clamp(x, eps, 1.0 - eps)
    return call("log", x / (1.0 - x))


def _function(name):
    return lambda x: call(name, x)


def _comparison(op):
    return lambda a, b: compare(op, a, b)


_LEFT_SHIFT = lambda a, b: lift(a) << b  # noqa: E731
_RIGHT_SHIFT = lambda a, b: lift(a) >> b  # noqa: E731

# Functions of one float that the formula language has by the same name.
FUNCTIONS = "exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos atan tanh sigmoid erf silu".split()

OPERATIONS: dict[str, Callable] = {
    # arithmetic
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "mul": lambda a, b: a * b,
    "div": _div,
    "floor_divide": lambda a, b: lift(a) // b,
    "remainder": lambda a, b: lift(a) % b,
    "fmod": fmod,
    "pow": lambda a, b: lift(a) ** b,
    "neg": lambda x: -x,
    "abs": lambda x: abs(x),
    "sign": sign,
    "sgn": sign,
    "reciprocal": lambda x: 1.0 / x,
    "addcmul": lambda x, a, b, value=1: x + _scaled(a * b, value),
    "addcdiv": lambda x, a, b, value=1: x + _scaled(a, value) / b,
    "lerp": _lerp,
    "hypot": _hypot,
    # rounding
    "floor": lambda x: rounding("floor", x),
    "ceil": lambda x: rounding("ceil", x),
    "round": _round,
    "trunc": lambda x: rounding("trunc", x),
    "frac": lambda x: x - rounding("trunc", x),
    # limits and choices
    "minimum": minimum,
    "maximum": maximum,
    "fmin": _smaller_number,
    "fmax": _larger_number,
    "clamp": _clamp,
    "clamp_min": maximum,
    "clamp_max": minimum,
    "where": where,
    "masked_fill": lambda x, mask, value: where(mask, value, x),
    "threshold": lambda x, limit, value: where(x <= limit, value, x),
    "nan_to_num": _nan_to_num,
    "heaviside": lambda x, at_zero: where(equal(x, 0), at_zero, x > 0),
    # comparisons
    "eq": _comparison("=="),
    "ne": _comparison("!="),
    "lt": _comparison("<"),
    "le": _comparison("<="),
    "gt": _comparison(">"),
    "ge": _comparison(">="),
    "isnan": is_nan,
    "isinf": is_infinite,
    "isposinf": lambda x: equal(x, math.inf) if x.kind == FLOAT else const(False),
    "isneginf": lambda x: equal(x, -math.inf) if x.kind == FLOAT else const(False),
    # logic and bits
    "logical_and": lambda a, b: truth(a) & truth(b),
    "logical_or": lambda a, b: truth(a) | truth(b),
    "logical_xor": lambda a, b: truth(a) ^ truth(b),
    "logical_not": lambda x: ~truth(x),
    "bitwise_and": lambda a, b: lift(a) & b,
    "bitwise_or": lambda a, b: lift(a) | b,
    "bitwise_xor": lambda a, b: lift(a) ^ b,
    "bitwise_not": lambda x: ~x,
    "bitwise_left_shift": _LEFT_SHIFT,
    "bitwise_right_shift": _RIGHT_SHIFT,
    "__lshift__": _LEFT_SHIFT,
    "__rshift__": _RIGHT_SHIFT,
    # functions
    **{name: _function(name) for name in FUNCTIONS},
    "relu": _relu,
    "gelu": _gelu,
    "softplus": _softplus,
    "erfc": erfc,
    "log10": lambda x: call("log2", x) * math.log10(2.0),
    "tan": tan,
    "sinh": sinh,
    "cosh": cosh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "deg2rad": lambda x: x * (math.pi / 180.0),
    "rad2deg": lambda x: x * (180.0 / math.pi),
    "xlogy": _xlogy,
    "logit": _logit,
    "logaddexp": logaddexp,
    "leaky_relu": lambda x, slope=0.01: where(x > 0, x, x * slope),
    "elu": _elu,
    "celu": _celu,
    "hardtanh": _hard_tanh,
    "hardsigmoid": _hard_gate,
    "hardswish": lambda x: x * _hard_gate(x),
    "mish": lambda x: x * call("tanh", call("softplus", x)),
    "softshrink": lambda x, limit=0.5: where(x > limit, x - limit, where(x < -limit, x + limit, 0.0)),
    "hardshrink": lambda x, limit=0.5: where(abs(x) <= limit, 0.0, x),
    "log_sigmoid_forward": lambda x: -call("softplus", -x),
}

# Operations that torch refuses for operands of different types, except under vmap, which converts them first. They are
# always accepted here: score - (q_idx > kv_idx).
CONVERTED = frozenset(("sub", "rsub", "heaviside"))

# Casts are recorded by value.converted, which handles narrowing.
CAST = "_to_copy"

# Operations that return elements of their operands in another order or shape.
MOVEMENTS = frozenset(
    """alias cat clone contiguous detach diagonal expand flip lift lift_fresh movedim narrow permute repeat reshape roll
    select slice split split_with_sizes squeeze stack t transpose unbind unsqueeze unsafe_split view _reshape_alias
    _unsafe_view""".split()
)

# Operations that take only dtype and shape from a traced operand.
CREATIONS = frozenset("new_ones new_zeros new_full ones_like zeros_like full_like".split())

# Those of them, and of operations without a tensor, that are filled with a number.
FILLS = frozenset("new_full full_like full scalar_tensor".split())

# Operations that torch refuses for some values of a number, or that depend on the value: each value is traced.
BY_VALUE = frozenset("pow celu softshrink".split())

# Operations that reduce the elements of a row: how two values are combined, and the value of an empty row.
REDUCTIONS: dict[str, tuple[Callable, Any]] = {
    "sum": (lambda a, b: a + b, 0),
    "mean": (lambda a, b: a + b, 0),
    "prod": (lambda a, b: a * b, 1),
    "any": (lambda a, b: truth(a) | truth(b), False),
    "all": (lambda a, b: truth(a) & truth(b), True),
    "amax": (maximum, None),
    "amin": (minimum, None),
    "max": (maximum, None),
    "min": (minimum, None),
}


# Operations that become others on a captured tensor: the tracer handles each of them.
PRODUCTS = frozenset("dot vdot mv mm bmm".split())
SEARCHES = frozenset("bucketize searchsorted isin".split())
LOOKUPS = frozenset("index embedding take".split())

_INDEX = "; index with [...] instead"
_HINTS = {"gather": _INDEX, "index_select": _INDEX}


def refuse(func, name: str) -> NoReturn:
    """Raises the error for an operation that is in no table, with what to write instead if that is known."""
    fail(f"the operation {name} cannot be traced" + _HINTS.get(func._schema.name.removeprefix("aten::"), ""))

"""Every operation of the tracer's table, in every spelling, on ints, floats, bools, captured tensors and Python numbers.

Values are compared with torch's own; what torch refuses, the tracer must refuse too.
"""

import itertools
import operator

import pytest
import torch
import torch.nn.functional as F
from quire.torch.trace import clear_cache, trace_score_mod
from quire.torch.trace.operations import CONVERTED, CREATIONS, FUNCTIONS, OPERATIONS, REDUCTIONS
from torch import Tensor
from traced_values import by_elements, by_quire, by_torch, scores_of

SIZES = (1, 2, 5, 6)

# Operands: functions of the mod's arguments. Captured tensors without dimensions stand for themselves.
CAPTURED = {
    "captured float": torch.tensor(1.75),
    "captured double": torch.tensor(-0.375, dtype=torch.float64),
    "captured int": torch.tensor(3),
    "captured bool": torch.tensor(True),
}
PYTHON = {"python float": 2.5, "python int": 3, "python bool": True}
TABLES = {
    "float element": torch.linspace(-3.3, 4.1, 5),
    "half element": torch.linspace(-2, 2, 5).to(torch.bfloat16),
    "int8 element": torch.tensor([-100, -1, 0, 3, 100], dtype=torch.int8),
    "uint8 element": torch.tensor([0, 1, 127, 128, 255], dtype=torch.uint8),
    "bool element": torch.tensor([True, False, False, True, True]),
}
TRACED = {
    "float": lambda s, b, h, q, k: s,
    "int": lambda s, b, h, q, k: q - 3,
    "odd int": lambda s, b, h, q, k: k * 2 - 3,  # never 0: a divisor
    "bool": lambda s, b, h, q, k: q > k,
}
TRACED.update({name: (lambda t: lambda s, b, h, q, k: t[q])(table) for name, table in TABLES.items()})
for _name, _value in {**CAPTURED, **PYTHON}.items():
    TRACED[_name] = (lambda v: lambda s, b, h, q, k: v)(_value)

LEFT = ["float", "int", "bool", "int8 element", *CAPTURED, *PYTHON]
RIGHT = ["float", "odd int", "bool", *CAPTURED, *PYTHON]
UNARY_OPERANDS = ["float", "int", "bool", *TABLES, *CAPTURED]


def method(name):
    return lambda x, *rest, **options: getattr(Tensor, name)(x, *rest, **options)


def named(function, **options):
    return lambda *operands: function(*operands, **options)


BINARY = {
    "add": [torch.add, method("add"), operator.add, named(torch.add, alpha=2)],
    "sub": [torch.sub, torch.subtract, method("sub"), operator.sub, named(torch.sub, alpha=2)],
    "rsub": [torch.rsub, named(torch.rsub, alpha=2)],
    "mul": [torch.mul, torch.multiply, method("mul"), operator.mul],
    "div": [
        torch.div,
        torch.true_divide,
        method("div"),
        operator.truediv,
        named(torch.div, rounding_mode="floor"),
        named(torch.div, rounding_mode="trunc"),
        named(method("div"), rounding_mode="trunc"),
    ],
    "floor_divide": [torch.floor_divide, method("floor_divide"), operator.floordiv],
    "remainder": [torch.remainder, method("remainder"), operator.mod],
    "fmod": [torch.fmod, method("fmod")],
    "pow": [torch.pow, method("pow"), operator.pow],
    "minimum": [torch.minimum, method("minimum"), torch.min],
    "maximum": [torch.maximum, method("maximum"), torch.max],
    "fmin": [torch.fmin],
    "fmax": [torch.fmax],
    "eq": [torch.eq, method("eq"), operator.eq],
    "ne": [torch.ne, torch.not_equal, method("ne"), operator.ne],
    "lt": [torch.lt, torch.less, method("lt"), operator.lt],
    "le": [torch.le, torch.less_equal, method("le"), operator.le],
    "gt": [torch.gt, torch.greater, method("gt"), operator.gt],
    "ge": [torch.ge, torch.greater_equal, method("ge"), operator.ge],
    "logical_and": [torch.logical_and, method("logical_and")],
    "logical_or": [torch.logical_or, method("logical_or")],
    "logical_xor": [torch.logical_xor, method("logical_xor")],
    "bitwise_and": [torch.bitwise_and, method("bitwise_and"), operator.and_],
    "bitwise_or": [torch.bitwise_or, method("bitwise_or"), operator.or_],
    "bitwise_xor": [torch.bitwise_xor, method("bitwise_xor"), operator.xor],
    "hypot": [torch.hypot, method("hypot")],
    "xlogy": [torch.xlogy, torch.special.xlogy, method("xlogy")],
    "logaddexp": [torch.logaddexp, method("logaddexp")],
    "heaviside": [torch.heaviside, method("heaviside")],
    "clamp_min": [torch.clamp_min, method("clamp_min")],
    "clamp_max": [torch.clamp_max, method("clamp_max")],
    "clamp": [
        lambda a, b: torch.clamp(a, min=b),
        lambda a, b: torch.clamp(a, max=b),
        lambda a, b: torch.clip(a, None, b),
        lambda a, b: a.clamp(-1, b),
        lambda a, b: a.clamp(min=-2.5, max=b),
    ],
    "where": [
        lambda a, b: torch.where(TEST > 1, a, b),
        lambda a, b: torch.where(a > b, a, b),
    ],
    "masked_fill": [lambda a, b: torch.masked_fill(a, a > 1, b), lambda a, b: a.masked_fill(a <= 1, b)],
    "lerp": [lambda a, b: torch.lerp(a, b, 0.25), lambda a, b: torch.lerp(a, b, 0.75), lambda a, b: a.lerp(b, a)],
    "addcmul": [lambda a, b: torch.addcmul(a, b, a), lambda a, b: a.addcmul(b, b, value=2)],
    "addcdiv": [lambda a, b: torch.addcdiv(a, a, b), lambda a, b: a.addcdiv(b, b, value=2.0)],
}
TEST = torch.tensor(2)

# Counts of shifts are small and not negative.
SHIFTS = {
    "bitwise_left_shift": [torch.bitwise_left_shift, method("bitwise_left_shift")],
    "bitwise_right_shift": [torch.bitwise_right_shift, method("bitwise_right_shift")],
    "__lshift__": [operator.lshift],
    "__rshift__": [operator.rshift],
}


def both(name):
    return [getattr(torch, name), method(name)]


UNARY = {
    "neg": [torch.neg, torch.negative, method("neg"), operator.neg],
    "abs": [torch.abs, torch.absolute, method("abs"), operator.abs],
    **{name: both(name) for name in ("sign", "sgn", "reciprocal", "floor", "ceil", "trunc", "frac")},
    "round": [torch.round, method("round"), named(torch.round, decimals=1), named(torch.round, decimals=-1)],
    **{name: both(name) for name in FUNCTIONS if hasattr(torch, name)},
    "sigmoid": [torch.sigmoid, method("sigmoid"), torch.special.expit, F.sigmoid],
    "silu": [F.silu],
    "relu": [F.relu, torch.relu, method("relu")],
    "gelu": [F.gelu, named(F.gelu, approximate="tanh")],
    "softplus": [F.softplus, named(F.softplus, beta=2), named(F.softplus, beta=0.5, threshold=1)],
    **{
        name: both(name)
        for name in ("erfc", "log10", "tan", "sinh", "cosh", "asinh", "acosh", "atanh", "deg2rad", "rad2deg")
    },
    **{name: both(name) for name in ("isnan", "isinf", "isposinf", "isneginf", "logical_not", "bitwise_not")},
    "pow": [
        torch.square,
        method("square"),
        lambda x: x**2,
        lambda x: x**-1,
        lambda x: x**0.5,
        lambda x: 2**x,
        lambda x: 0.5**x,
    ],
    "nan_to_num": [torch.nan_to_num, method("nan_to_num")],
    "threshold": [lambda x: F.threshold(x, 0.5, -2)],
    "leaky_relu": [F.leaky_relu, named(F.leaky_relu, negative_slope=0.2)],
    "elu": [F.elu, F.selu, named(F.elu, alpha=0.5)],
    "logit": [lambda x: torch.logit(0.25 + torch.sigmoid(x) / 2), lambda x: x.sigmoid().logit(eps=0.1)],
    "celu": [F.celu, named(F.celu, alpha=0.5)],
    "hardtanh": [F.hardtanh, F.relu6],
    "hardsigmoid": [F.hardsigmoid],
    "hardswish": [F.hardswish],
    "mish": [F.mish],
    "softshrink": [F.softshrink],
    "hardshrink": [F.hardshrink],
    "log_sigmoid_forward": [F.logsigmoid],
}
# Functions that a composition of others stands for, and functions whose results cancel, have a few more roundings.
ULPS = dict.fromkeys(
    "erfc sinh cosh asinh acosh atanh tan mish logaddexp softplus gelu pow lerp log_sigmoid_forward".split(), 64
)


def test_every_operation_of_the_table_is_tested():
    assert {**BINARY, **SHIFTS, **UNARY}.keys() == OPERATIONS.keys()


def run(evaluate, mod, scores):
    try:
        return evaluate("score", mod, SIZES, scores)
    except Exception as error:
        return error


def close(actual, expected, ulps):
    # torch rounds results of half types to them; Quire computes in the score's type.
    is_half = expected.dtype in (torch.bfloat16, torch.float16)
    error = torch.finfo(expected.dtype).eps if is_half else ulps * torch.finfo(torch.float32).eps
    return torch.allclose(actual.double(), expected.double(), rtol=error, atol=error, equal_nan=True)


def complaints(mods, ulps=8, may_do_more=False):
    """[(what, expected, actual)] for the mods {what: mod} that differ, and how many torch could compute."""
    scores, wrong, computed = scores_of(SIZES), [], 0
    for what, mod in mods.items():
        expected, actual = run(by_torch, mod, scores), run(by_quire, mod, scores)
        if isinstance(expected, Exception):
            if not isinstance(actual, Exception) and not may_do_more:
                wrong.append((what, expected, actual))
            continue
        computed += 1
        if isinstance(actual, Exception) or not close(actual, expected, ulps):
            wrong.append((what, expected, actual))
    return wrong, computed


def mods_of(spelling, *operands):
    """A mod for each combination of operands that is not all Python's."""
    result = {}
    for names in itertools.product(*operands):
        if any(n not in PYTHON for n in names):
            values = [TRACED[n] for n in names]
            result[names] = lambda *args, values=values: spelling(*(v(*args) for v in values))
    return result


def cases(table):
    return [
        pytest.param(name, s, id=f"{name}-{i}") for name, spellings in table.items() for i, s in enumerate(spellings)
    ]


def check(name, spelling, monkeypatch, *operands):
    rule, calls = OPERATIONS[name], []
    monkeypatch.setitem(OPERATIONS, name, lambda *args, **options: calls.append(1) or rule(*args, **options))
    wrong, computed = complaints(mods_of(spelling, *operands), ULPS.get(name, 8), name in CONVERTED)
    assert not wrong, wrong[:3]
    assert computed > 0 and calls


@pytest.fixture(autouse=True)
def no_cache():
    clear_cache()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "spelling"), cases(BINARY))
def test_binary(name, spelling, monkeypatch):
    # vmap forgets in ternary operations that a captured tensor has as many dimensions as the rest, and types by that.
    left = [n for n in LEFT if n != "int8 element" or name not in ("addcmul", "addcdiv", "lerp")]
    check(name, spelling, monkeypatch, left, RIGHT)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "spelling"), cases(SHIFTS))
def test_shift(name, spelling, monkeypatch):
    TRACED["count"] = lambda s, b, h, q, k: k
    left = ["int", "bool", "uint8 element", "captured int", "python int"]
    check(name, spelling, monkeypatch, left, ["count", "python int", "captured int"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "spelling"), cases(UNARY))
def test_unary(name, spelling, monkeypatch):
    check(name, spelling, monkeypatch, UNARY_OPERANDS)


CASTS = {
    "float": lambda x: x.float(),
    "double": lambda x: x.double(),
    "int": lambda x: x.int(),
    "long": lambda x: x.long(),
    "bool": lambda x: x.bool(),
    "to float32": lambda x: x.to(torch.float32),
    "to int64": lambda x: x.to(torch.int64),
    "to keyword": lambda x: x.to(dtype=torch.int32),
    "type": lambda x: x.type(torch.float32),
    "type_as": lambda x: x.type_as(CAPTURED["captured int"]),
    "to other": lambda x: x.to(CAPTURED["captured float"]),
    "to other's dtype": lambda x: x.to(CAPTURED["captured float"].dtype),
    "to device": lambda x: x.to("cpu"),
}
NARROW_CASTS = {
    dtype: lambda x, dtype=dtype: x.to(dtype) for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32)
}


@pytest.mark.parametrize("spelling", CASTS.values(), ids=CASTS.keys())
def test_casts(spelling):
    wrong, computed = complaints(mods_of(spelling, UNARY_OPERANDS))
    assert not wrong, wrong[:3]
    assert computed == len(UNARY_OPERANDS)


@pytest.mark.parametrize(("dtype", "spelling"), NARROW_CASTS.items(), ids=map(str, NARROW_CASTS.keys()))
def test_narrow_casts_wrap(dtype, spelling):
    # A negative float as an unsigned integer is not defined.
    operands = [
        "int",
        "bool",
        *(n for n in TABLES if dtype is not torch.uint8 or n not in ("float element", "half element")),
    ]
    large = lambda s, b, h, q, k: spelling((q - 3) * 1000 + k * 77)  # noqa: E731
    larger = lambda s, b, h, q, k: spelling((q - 3) * 4_000_000_000 + k)  # noqa: E731
    wrong, computed = complaints({"large": large, "larger": larger, **mods_of(spelling, operands)})
    assert not wrong, wrong[:3]
    assert computed == 2 + len(operands)


NARROW_ARITHMETIC = {
    "int8 sum": lambda s, b, h, q, k: TABLES["int8 element"][q] + TABLES["int8 element"][k % 5],
    "int8 product": lambda s, b, h, q, k: TABLES["int8 element"][q] * 3,
    "uint8 difference": lambda s, b, h, q, k: TABLES["uint8 element"][q] - 1,
    "uint8 not": lambda s, b, h, q, k: ~TABLES["uint8 element"][q],
    "uint8 negated": lambda s, b, h, q, k: -TABLES["uint8 element"][q],
    "uint8 shifted": lambda s, b, h, q, k: TABLES["uint8 element"][q] << 1,
    "int8 and int64": lambda s, b, h, q, k: TABLES["int8 element"][q] + q * 100,
}


def test_narrow_arithmetic_wraps():
    wrong, computed = complaints(NARROW_ARITHMETIC)
    assert not wrong, wrong[:3]
    assert computed == len(NARROW_ARITHMETIC)


def test_where_types_narrow_integers_as_plain_torch_does():
    table, other = TABLES["int8 element"], torch.tensor(20)
    mod = lambda s, b, h, q, k: torch.where(q > k, table[q], other) * table[k % 5]  # noqa: E731
    assert torch.equal(by_quire("score", mod, SIZES).double(), by_elements(mod, SIZES))
    assert by_torch("score", mod, SIZES).dtype is torch.int8  # under vmap: the difference that docs/tracing.md names


MADE = {
    "new_ones": lambda s, b, h, q, k: s + q.new_ones(()),
    "new_zeros": lambda s, b, h, q, k: s + q.new_zeros((), dtype=torch.float32),
    "new_full": lambda s, b, h, q, k: torch.where(q > k, s, s.new_full((), -2.5)),
    "ones_like": lambda s, b, h, q, k: s * torch.ones_like(q),
    "zeros_like": lambda s, b, h, q, k: torch.zeros_like(q, dtype=torch.bool) | (q > k),
    "full_like": lambda s, b, h, q, k: torch.full_like(s, 7) * s,
}
MADE_OF_NOTHING = {
    "tensor": lambda s, b, h, q, k: s * torch.tensor(3.0) + torch.tensor(2),
    "tensor bool": lambda s, b, h, q, k: torch.tensor(True) & (q > k),
    "full": lambda s, b, h, q, k: s + torch.full((), 2.5),
    "arange": lambda s, b, h, q, k: s + torch.arange(10, 20)[q],
    "list": lambda s, b, h, q, k: s + torch.tensor([1.5, 2.5, 3.5])[k % 3],
    "scalar": lambda s, b, h, q, k: s + torch.scalar_tensor(4.0),
    "new_tensor": lambda s, b, h, q, k: s + s.new_tensor(4.0),
}


def test_every_creation_is_tested():
    assert MADE.keys() == CREATIONS


@pytest.mark.parametrize("mod", [*MADE.values(), *MADE_OF_NOTHING.values()], ids=[*MADE, *MADE_OF_NOTHING])
def test_constants_made_in_the_mod(mod):
    wrong, computed = complaints({"": mod})
    assert not wrong and computed == 1


A, C = torch.linspace(-1, 1, 20).reshape(5, 4), torch.linspace(2, -1, 24).reshape(6, 4)
CUBE = torch.arange(60.0).reshape(5, 3, 4) / 7
IDS = torch.arange(20).reshape(5, 4) % 6
REDUCED = {
    "sum": [
        lambda s, b, h, q, k: A[q].sum(),
        lambda s, b, h, q, k: torch.sum(A[q] * C[k], dim=-1),
        lambda s, b, h, q, k: CUBE[q].sum((0, 1)),
        lambda s, b, h, q, k: CUBE[q].sum(0)[2] + CUBE[q].sum(1, keepdim=True)[2, 0],
        lambda s, b, h, q, k: (A[q] * C[k] * 2).sum(),
        lambda s, b, h, q, k: (A[q] > C[k]).sum(),
        lambda s, b, h, q, k: IDS[q].sum(),
        lambda s, b, h, q, k: (A[q] * A[0]).sum(),
        lambda s, b, h, q, k: s.sum(),
    ],
    "mean": [lambda s, b, h, q, k: A[q].mean(), lambda s, b, h, q, k: (A[q] - C[k]).mean(-1)],
    "prod": [lambda s, b, h, q, k: A[q].prod(), lambda s, b, h, q, k: IDS[q].prod()],
    "any": [lambda s, b, h, q, k: (IDS[q] == k).any(), lambda s, b, h, q, k: torch.any(IDS[q] == k, dim=0)],
    "all": [lambda s, b, h, q, k: (IDS[q] != k).all()],
    "amax": [lambda s, b, h, q, k: A[q].amax(), lambda s, b, h, q, k: (A[q] * C[k]).amax(0)],
    "amin": [lambda s, b, h, q, k: torch.amin(A[q] * C[k])],
    "max": [lambda s, b, h, q, k: A[q].max()],
    "min": [lambda s, b, h, q, k: (A[q] + s).min()],
}
PRODUCT = [
    lambda s, b, h, q, k: torch.dot(A[q], C[k]),
    lambda s, b, h, q, k: A[q].dot(C[k]),
    lambda s, b, h, q, k: A[q] @ C[k],
    lambda s, b, h, q, k: torch.matmul(A[q].float(), C[k].float()),
    lambda s, b, h, q, k: torch.inner(A[q], C[k]),
    lambda s, b, h, q, k: torch.dot(A[q] * 2, C[k]),
    lambda s, b, h, q, k: torch.dot(IDS[q], IDS[k % 5]),
    lambda s, b, h, q, k: torch.vdot(A[q], C[k]),
    lambda s, b, h, q, k: torch.linalg.vecdot(A[q], C[k]),
    lambda s, b, h, q, k: torch.einsum("d,d->", A[q], C[k]),
    lambda s, b, h, q, k: (CUBE[q] @ C[k])[2],
    lambda s, b, h, q, k: (CUBE[q] @ CUBE[k % 5].T)[1, 2],
    lambda s, b, h, q, k: torch.bmm(CUBE[q].reshape(3, 2, 2), CUBE[k % 5].reshape(3, 2, 2))[2, 1, 0],
    lambda s, b, h, q, k: torch.einsum("ij,ij->i", CUBE[q], CUBE[k % 5])[2],
]
BOUNDS = torch.tensor([-2, 0, 3, 3, 5])
SEARCHED = [
    lambda s, b, h, q, k: torch.bucketize(q - k, BOUNDS),
    lambda s, b, h, q, k: torch.bucketize(q - k, BOUNDS, right=True),
    lambda s, b, h, q, k: torch.searchsorted(BOUNDS, q - k, side="right"),
    lambda s, b, h, q, k: torch.searchsorted(BOUNDS.float(), s, out_int32=True),
    lambda s, b, h, q, k: torch.isin(q - k, BOUNDS),
    lambda s, b, h, q, k: torch.isin(q - k, BOUNDS, invert=True),
    lambda s, b, h, q, k: torch.isin(q - k, 3),
    lambda s, b, h, q, k: torch.isin(3, q - k, invert=True),
    lambda s, b, h, q, k: torch.isin(q - k, BOUNDS[1]),
]
LOOKED_UP = [
    lambda s, b, h, q, k: F.embedding(q, A)[2],
    lambda s, b, h, q, k: torch.take(A, q * 4 + k % 4),
    lambda s, b, h, q, k: torch.ops.aten.index.Tensor(CUBE, [q, None, k % 4])[1],
]


def test_every_reduction_is_tested():
    assert REDUCED.keys() == REDUCTIONS.keys()


@pytest.mark.parametrize("mod", [m for mods in REDUCED.values() for m in mods] + PRODUCT + SEARCHED + LOOKED_UP)
def test_operations_on_rows(mod):
    oracle = lambda kind, mod, sizes, scores: by_elements(mod, sizes, scores)  # noqa: E731
    expected, actual = run(oracle, mod, scores_of(SIZES)), run(by_quire, mod, scores_of(SIZES))
    assert isinstance(actual, torch.Tensor) and close(actual, expected, 8), actual


def test_long_products_are_dots():
    a, c = torch.ones(8, 1000), torch.ones(8, 1000)
    for mod in (lambda s, b, h, q, k: a[q] @ c[k], lambda s, b, h, q, k: torch.einsum("d,d->", a[q], c[k])):
        assert trace_score_mod(mod).text == "dot(a[q_idx], c[kv_idx])"

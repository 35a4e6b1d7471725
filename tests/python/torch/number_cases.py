"""For every operation of the tracer's tables: an expression with a number in it, for a sweep over kinds of numbers.

A case takes x, a float of the mod (its score, or one made of indices), i, an int of the mod, and n, a number: an int, a
float, or a size. What it gives depends on n, which test_torch_compile_sweep.py checks.
"""

import torch
import torch.nn.functional as F
from quire.torch.trace.operations import FUNCTIONS

ROWS = torch.linspace(-1.0, 1.5, 16).reshape(4, 4)
MATRICES = torch.linspace(-1.0, 1.0, 64).reshape(4, 4, 4)
TABLE = torch.linspace(-2.0, 2.0, 16)
BOUNDS = torch.tensor([-8.0, -2.0, 0.5, 3.0, 6.0, 9.0])
aten = torch.ops.aten


def row(i):
    return ROWS[i % 4]


def matrix(i):
    return MATRICES[i % 4]


def positive(x, n):
    """Small and above 0, so that nothing saturates."""
    return x.abs() * 0.1 + n * 0.1


def place(i, n):
    """An index into TABLE."""
    return (i * 0.25 + n * 4).long() % 16


def like(x, n):
    return torch.full_like(x, n)


def fraction(n):
    """Of the numbers that are tried: all different."""
    return n * 0.1


OF_SCALARS = {
    "add": lambda x, i, n: x + n + torch.add(x, i, alpha=n),
    "sub": lambda x, i, n: (x - n) + torch.sub(x, i, alpha=n),
    "rsub": lambda x, i, n: (n - x) * torch.rsub(x, n),
    "mul": lambda x, i, n: x * n + n * i,
    "div": lambda x, i, n: x / n + n / (x.abs() + 1) + torch.div(i, n, rounding_mode="floor"),
    "floor_divide": lambda x, i, n: i // n + torch.floor_divide(i, n),
    "remainder": lambda x, i, n: i % n + n % (i.abs() + 1),
    "fmod": lambda x, i, n: torch.fmod(i, n),
    "pow": lambda x, i, n: (x.abs() + 0.5) ** fraction(n) + n ** (i * 0.05),
    "addcmul": lambda x, i, n: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, i, n: torch.addcdiv(x, x, x.abs() + 1, value=n),
    "lerp": lambda x, i, n: torch.lerp(x, x * 2, fraction(n)),
    "clamp": lambda x, i, n: i.clamp(0, n) + x.clamp(min=-n, max=fraction(n)) + x.clamp(max=fraction(n)),
    "clamp_min": lambda x, i, n: torch.clamp_min(i, n),
    "clamp_max": lambda x, i, n: torch.clamp_max(i, n),
    "where": lambda x, i, n: torch.where(i > 2, x, n) + torch.where(i > n, n, 0.5),
    "masked_fill": lambda x, i, n: x.masked_fill(i > 2, n),
    "threshold": lambda x, i, n: F.threshold(x, fraction(n), n),
    "nan_to_num": lambda x, i, n: torch.nan_to_num(torch.where(i > 0, float("inf"), 0.0), posinf=n * 1.0),
    "eq": lambda x, i, n: (i * 0.25 == n) | (i == n),
    "ne": lambda x, i, n: (i * 0.25 != n) & (i != n),
    "lt": lambda x, i, n: (i < n) & (n < i + 99),
    "le": lambda x, i, n: i <= n,
    "gt": lambda x, i, n: i > n,
    "ge": lambda x, i, n: (i >= n) | (n >= i + 99),
    "xlogy": lambda x, i, n: torch.xlogy(x.abs(), n),
    "leaky_relu": lambda x, i, n: F.leaky_relu(i - 3.0 + x * 0, fraction(n)),
    "elu": lambda x, i, n: F.elu(i - 3.0 + x * 0, fraction(n)),
    "celu": lambda x, i, n: F.celu(x * 0.25 - 0.5, fraction(n)),
    "hardtanh": lambda x, i, n: F.hardtanh(x * 4, -fraction(n), fraction(n)),
    "softplus": lambda x, i, n: F.softplus(x, fraction(n), n),
    "softshrink": lambda x, i, n: F.softshrink(x * 4, fraction(n)),
    "hardshrink": lambda x, i, n: F.hardshrink(i * 0.25, n * 0.4),
    "logit": lambda x, i, n: torch.logit(positive(x, n) * 0.1, eps=n * 0.01),
    "round": lambda x, i, n: torch.round(x * n) + torch.round(i * fraction(n), decimals=1),
}

# A number goes in as an operand that is made of it.
OF_TENSORS = {
    "hypot": lambda x, i, n: torch.hypot(x, like(x, n)),
    "minimum": lambda x, i, n: torch.minimum(x, like(x, fraction(n))),
    "maximum": lambda x, i, n: torch.maximum(x, like(x, fraction(n))),
    "fmin": lambda x, i, n: torch.fmin(x, like(x, fraction(n))),
    "fmax": lambda x, i, n: torch.fmax(x, like(x, fraction(n))),
    "heaviside": lambda x, i, n: torch.heaviside(x * 0, like(x, n)),
    "logaddexp": lambda x, i, n: torch.logaddexp(x, like(x, n)),
    "neg": lambda x, i, n: -(x + n),
    "abs": lambda x, i, n: (i - n).abs(),
    "sign": lambda x, i, n: torch.sign(i - n),
    "sgn": lambda x, i, n: torch.sgn(i - n),
    "reciprocal": lambda x, i, n: torch.reciprocal(x.abs() + n),
    **{
        name: (lambda f: lambda x, i, n: f((i + 0.5) * fraction(n)))(getattr(torch, name))
        for name in ("floor", "ceil", "trunc", "frac")
    },
    "isnan": lambda x, i, n: torch.isnan(torch.sqrt(i - n * 1.0)),
    "isinf": lambda x, i, n: torch.isinf(torch.log(torch.relu(i - n * 1.0))),
    "isposinf": lambda x, i, n: torch.isposinf(-torch.log(torch.relu(i - n * 1.0))),
    "isneginf": lambda x, i, n: torch.isneginf(torch.log(torch.relu(i - n * 1.0))),
    "logical_and": lambda x, i, n: torch.logical_and(i > n, i < 20),
    "logical_or": lambda x, i, n: torch.logical_or(i > n, i < -5),
    "logical_xor": lambda x, i, n: torch.logical_xor(i > n, i > -5),
    "logical_not": lambda x, i, n: torch.logical_not(i > n),
    **{
        name: (lambda f: lambda x, i, n: f(positive(x, n)))(getattr(torch, name))
        for name in [*FUNCTIONS, *"erfc log10 tan sinh cosh asinh rad2deg".split()]
        if hasattr(torch, name)
    },
    "deg2rad": lambda x, i, n: torch.deg2rad(positive(x, n) * 100),
    "silu": lambda x, i, n: F.silu(positive(x, n)),
    "relu": lambda x, i, n: F.relu(x + fraction(n)),
    "gelu": lambda x, i, n: F.gelu(positive(x, n)) + F.gelu(positive(x, n), approximate="tanh"),
    "acosh": lambda x, i, n: torch.acosh(positive(x, n) + 1),
    "atanh": lambda x, i, n: torch.atanh(positive(x, n) * 0.1),
    "hardsigmoid": lambda x, i, n: F.hardsigmoid(positive(x, n)),
    "hardswish": lambda x, i, n: F.hardswish(positive(x, n)),
    "mish": lambda x, i, n: F.mish(positive(x, n)),
    "log_sigmoid_forward": lambda x, i, n: F.logsigmoid(positive(x, n)),
}

# Not for floats.
OF_INTS = {
    "bitwise_and": lambda x, i, n: i & n,
    "bitwise_or": lambda x, i, n: i | n,
    "bitwise_xor": lambda x, i, n: torch.bitwise_xor(i, n),
    "bitwise_not": lambda x, i, n: ~(i + n),
    "bitwise_left_shift": lambda x, i, n: torch.bitwise_left_shift(i, n),
    "bitwise_right_shift": lambda x, i, n: torch.bitwise_right_shift(i * 16, n),
    "__lshift__": lambda x, i, n: i << n,
    "__rshift__": lambda x, i, n: (i * 16) >> n,
}

MOVED = {
    "alias": lambda x, i, n: aten.alias(x * n),
    "cat": lambda x, i, n: torch.cat([row(i) * n, row(i)])[1],
    "clone": lambda x, i, n: (x * n).clone(),
    "contiguous": lambda x, i, n: (row(i) * n).contiguous()[0],
    "detach": lambda x, i, n: (x * n).detach(),
    "diagonal": lambda x, i, n: (matrix(i) * n).diagonal()[1],
    "expand": lambda x, i, n: (x * n).expand(2)[1],
    "flip": lambda x, i, n: (row(i) * n).flip(0)[0],
    "lift": lambda x, i, n: aten.lift(x * n),
    "lift_fresh": lambda x, i, n: x * torch.tensor(n),
    "movedim": lambda x, i, n: torch.movedim(matrix(i) * n, 0, 1)[0, 1],
    "narrow": lambda x, i, n: (row(i) * n).narrow(0, 1, 2)[0],
    "permute": lambda x, i, n: (matrix(i) * n).permute(1, 0)[0, 1],
    "repeat": lambda x, i, n: (row(i) * n).repeat(2)[5],
    "reshape": lambda x, i, n: (row(i) * n).reshape(2, 2)[1, 0],
    "roll": lambda x, i, n: (row(i) * n).roll(1)[0],
    "select": lambda x, i, n: torch.select(row(i) * n, 0, 2),
    "slice": lambda x, i, n: (row(i) * n)[1:3][0],
    "split": lambda x, i, n: torch.split(row(i) * n, 2)[1][0],
    "split_with_sizes": lambda x, i, n: torch.split(row(i) * n, [1, 3])[1][0],
    "squeeze": lambda x, i, n: (row(i)[None] * n).squeeze(0)[0],
    "stack": lambda x, i, n: torch.stack([x * n, x])[0],
    "t": lambda x, i, n: (matrix(i) * n).t()[0, 1],
    "transpose": lambda x, i, n: (matrix(i) * n).transpose(0, 1)[0, 1],
    "unbind": lambda x, i, n: (row(i) * n).unbind(0)[1],
    "unsqueeze": lambda x, i, n: (x * n).unsqueeze(0)[0],
    "unsafe_split": lambda x, i, n: torch.unsafe_split(row(i) * n, 2)[1][0],
    "view": lambda x, i, n: (row(i) * n).view(2, 2)[1, 0],
    "_reshape_alias": lambda x, i, n: aten._reshape_alias(row(i) * n, [2, 2], [2, 1])[1, 0],
    "_unsafe_view": lambda x, i, n: aten._unsafe_view(row(i) * n, [2, 2])[1, 0],
}

REST = {
    "_to_copy": lambda x, i, n: ((i + 0.5) * fraction(n)).to(torch.int32) + (i * n).double(),
    "new_ones": lambda x, i, n: x.new_ones(()) * n,
    "new_zeros": lambda x, i, n: x.new_zeros(()) + n,
    "new_full": lambda x, i, n: x.new_full((), n),
    "ones_like": lambda x, i, n: torch.ones_like(x) * n,
    "zeros_like": lambda x, i, n: torch.zeros_like(x) + n,
    "full_like": lambda x, i, n: torch.full_like(x, n),
    "full": lambda x, i, n: x * torch.full((), n),
    "scalar_tensor": lambda x, i, n: x * torch.scalar_tensor(n),
    "sum": lambda x, i, n: (row(i) * n).sum(),
    "mean": lambda x, i, n: (row(i) * n).mean(),
    "prod": lambda x, i, n: (row(i) + n).prod() * 0.01,
    "any": lambda x, i, n: (row(i) + i * 0.25 > n).any(),
    "all": lambda x, i, n: (row(i) + i * 0.25 > n).all(),
    "amax": lambda x, i, n: (row(i) * n).amax(),
    "amin": lambda x, i, n: (row(i) * n).amin(0),
    "max": lambda x, i, n: (row(i) * n).max(),
    "min": lambda x, i, n: (row(i) * n).min(),
    "dot": lambda x, i, n: torch.dot(row(i) * n, row(i)),
    "vdot": lambda x, i, n: torch.vdot(row(i) * n, row(i)),
    "mv": lambda x, i, n: torch.mv(matrix(i) * n, row(i))[0],
    "mm": lambda x, i, n: torch.mm(matrix(i) * n, matrix(i))[0, 1],
    "bmm": lambda x, i, n: torch.bmm((matrix(i) * n)[None], matrix(i)[None])[0, 0, 1],
    "bucketize": lambda x, i, n: torch.bucketize(i * 0.25 + n, BOUNDS),
    "searchsorted": lambda x, i, n: torch.searchsorted(BOUNDS, i * 0.25 + n),
    "isin": lambda x, i, n: torch.isin(i * 0.25, torch.tensor([n, n + 1])),
    "index": lambda x, i, n: TABLE[place(i, n)],
    "embedding": lambda x, i, n: F.embedding(place(i, n), TABLE[:, None])[0],
    "take": lambda x, i, n: torch.take(TABLE, place(i, n)),
}

CASES = {**OF_SCALARS, **OF_TENSORS, **OF_INTS, **MOVED, **REST}

"""Random mods, built from the operations people use, against torch run on the same."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traced_values import by_elements, by_quire

SIZES = (1, 2, 4, 5)
TABLES = [
    torch.linspace(-2, 2, 7),
    torch.tensor([3, -1, 4, 1, -5, 9, 2]),
    torch.tensor([True, False, True, True, False, False, True]),
    torch.tensor([100, -100, 7, 0, 1, 127, -128], dtype=torch.int8),
    torch.tensor(1.5),
    torch.tensor(-3),
]

INT_BINARY = ["add", "sub", "mul", "minimum", "maximum", "bitwise_and", "bitwise_or", "bitwise_xor"]
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]
# Continuous functions: where floor or sign jumps, a rounding more or less would change the result.
FLOAT_UNARY = ["tanh", "sigmoid", "sin", "cos", "erf", "abs", "neg", "relu"]


def ints(depth):
    leaves = st.one_of(
        st.sampled_from(["b", "h", "q", "k"]).map(lambda n: ("arg", n)),
        st.integers(-20, 20).map(lambda v: ("number", v)),
        st.just(("captured", 5)),
    )
    if depth == 0:
        return leaves
    below = ints(depth - 1)
    return st.one_of(
        leaves,
        st.tuples(st.sampled_from(INT_BINARY), below, below),
        st.tuples(
            st.sampled_from(["floor_divide", "remainder", "fmod"]),
            below,
            st.integers(1, 9).map(lambda v: ("number", v)),
        ),
        st.tuples(st.just("element"), st.sampled_from([1, 3]), below),
        st.tuples(st.just("where"), bools(depth - 1), below, below),
        st.tuples(st.sampled_from(["abs", "neg"]), below),
        st.tuples(st.just("clamp"), below, st.integers(-9, 0), st.integers(1, 9)),
        st.tuples(st.just("int"), bools(depth - 1)),
        st.tuples(st.just("narrow"), below, st.sampled_from([torch.int8, torch.uint8, torch.int16, torch.int32])),
    )


def bools(depth):
    leaves = st.tuples(st.sampled_from(COMPARISONS), ints(0), ints(0))
    if depth == 0:
        return leaves
    below = bools(depth - 1)
    return st.one_of(
        st.tuples(st.sampled_from(COMPARISONS), ints(depth - 1), ints(depth - 1)),
        st.tuples(
            st.sampled_from(["bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "eq", "add", "mul"]),
            below,
            below,
        ),
        st.tuples(st.just("logical_not"), below),
        st.tuples(st.just("element"), st.just(2), ints(depth - 1)),
    )


def floats(depth):
    leaves = st.one_of(
        st.just(("arg", "s")),
        st.floats(-4, 4, width=32).map(lambda v: ("number", v)),
        st.just(("captured", 4)),
        ints(0),
    )
    if depth == 0:
        return leaves
    below = floats(depth - 1)
    return st.one_of(
        leaves,
        st.tuples(st.sampled_from(["add", "sub", "mul", "minimum", "maximum"]), below, below),
        st.tuples(st.sampled_from(FLOAT_UNARY), below),
        st.tuples(st.just("where"), bools(depth - 1), below, below),
        st.tuples(st.just("element"), st.just(0), ints(depth - 1)),
        ints(depth - 1),
    )


def tensor(x):
    return x if isinstance(x, torch.Tensor) else torch.tensor(x)


def compute(node, args):
    """The value of a description, with torch."""
    op = node[0]
    if op == "arg":
        return args[node[1]]
    if op == "number":
        return node[1]
    if op == "captured":
        return TABLES[node[1]]
    if op == "element":
        return TABLES[node[1]][torch.remainder(tensor(compute(node[2], args)).long(), 7)]
    if op == "where":
        return torch.where(tensor(compute(node[1], args)).bool(), compute(node[2], args), compute(node[3], args))
    if op == "clamp":
        return tensor(compute(node[1], args)).clamp(node[2], node[3])
    if op == "int":
        return tensor(compute(node[1], args)).long()
    if op == "narrow":
        return tensor(compute(node[1], args)).to(node[2]).long()
    operands = [tensor(compute(n, args)) for n in node[1:]]
    return getattr(torch, op)(*operands)


def mod_of(node):
    return lambda s, b, h, q, k: tensor(compute(node, {"s": s, "b": b, "h": h, "q": q, "k": k}))


def mask_by_elements(mod):
    """Element by element and not under vmap, whose torch.where types narrow integers in its own way (docs/tracing.md)."""
    return by_elements(lambda s, b, h, q, k: mod(b, h, q, k), SIZES).bool()


COMMON = settings(max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@COMMON
@given(ints(3))
def test_integers_are_exact(node):
    mod = lambda b, h, q, k: mod_of(node)(None, b, h, q, k).long() % 1009 == (q * 7 + k) % 5  # noqa: E731
    assert torch.equal(by_quire("mask", mod, SIZES), mask_by_elements(mod))


@COMMON
@given(bools(3))
def test_bools_are_exact(node):
    mod = lambda b, h, q, k: mod_of(node)(None, b, h, q, k).bool()  # noqa: E731
    assert torch.equal(by_quire("mask", mod, SIZES), mask_by_elements(mod))


@COMMON
@given(floats(3))
def test_floats(node):
    expected, actual = by_elements(mod_of(node), SIZES), by_quire("score", mod_of(node), SIZES)
    scale = max(1.0, expected.abs().max().item())
    assert ((actual.double() - expected).abs() <= 64 * torch.finfo(torch.float32).eps * scale).all()

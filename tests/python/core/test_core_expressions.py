"""Mods written as Python functions: every operator and function against NumPy, and what a traced value refuses."""

import inspect
import math
import operator

import numpy as np
import pytest
import quire
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_reference import grids
from property_runs import runs

SHAPE = (2, 3, 5, 7)
SCORES = np.linspace(-3, 3, math.prod(SHAPE)).reshape(SHAPE)
AT = grids(*SHAPE)


def assert_same_values(mod, expected=None):
    """The mod traced by Quire against the same function (or `expected`) over NumPy's index arrays, in f64."""
    got = quire.evaluate(quire.ScoreMod(mod), SCORES)
    values = (expected or mod)(SCORES, *AT)
    np.testing.assert_allclose(got, np.broadcast_to(values, SHAPE).astype(float), rtol=1e-14, atol=1e-14)


ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod]
INTEGER = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


@pytest.mark.parametrize("op", ARITHMETIC, ids=lambda op: op.__name__)
def test_arithmetic(op):
    assert_same_values(lambda s, b, h, q, kv: op(s, kv + 1.5))
    assert_same_values(lambda s, b, h, q, kv: op(q - 2, kv + 1))
    assert_same_values(lambda s, b, h, q, kv: op(s, 3))
    assert_same_values(lambda s, b, h, q, kv: op(2.5, q + 1))  # reflected
    assert_same_values(lambda s, b, h, q, kv: op(-7, kv + 1))
    assert_same_values(
        lambda s, b, h, q, kv: op(np.float32(2.5), kv + 1.0)
    )  # NumPy's numbers leave it to the expression
    assert_same_values(lambda s, b, h, q, kv: op(np.int64(5), kv + 1))
    assert_same_values(lambda s, b, h, q, kv: op(kv, np.array(3)))


@pytest.mark.parametrize("op", INTEGER, ids=lambda op: op.__name__)
def test_integers(op):
    assert_same_values(lambda s, b, h, q, kv: op(q - 2, kv))
    assert_same_values(lambda s, b, h, q, kv: op(q, 2))
    assert_same_values(lambda s, b, h, q, kv: op(5, kv))


@pytest.mark.parametrize("op", COMPARISONS, ids=lambda op: op.__name__)
def test_comparisons(op):
    assert_same_values(lambda s, b, h, q, kv: op(q, kv) * 1.0)
    assert_same_values(lambda s, b, h, q, kv: op(s, 0.5) * 1.0)
    assert_same_values(lambda s, b, h, q, kv: op(3, kv) * 1)


def test_powers_and_signs():
    assert_same_values(lambda s, b, h, q, kv: s**2)
    assert_same_values(lambda s, b, h, q, kv: q**3)
    assert_same_values(lambda s, b, h, q, kv: 2.0**q)
    assert_same_values(lambda s, b, h, q, kv: (kv + 1.0) ** 0.5)
    assert_same_values(lambda s, b, h, q, kv: -s + (+q) - abs(q - kv))
    assert_same_values(lambda s, b, h, q, kv: (~(q > kv)) * 1, lambda s, b, h, q, kv: (q <= kv) * 1)
    assert_same_values(lambda s, b, h, q, kv: ~q)
    assert_same_values(
        lambda s, b, h, q, kv: round(s) + math.floor(s) - math.ceil(s) * math.trunc(s),
        lambda s, b, h, q, kv: np.round(s) + np.floor(s) - np.ceil(s) * np.trunc(s),
    )


def test_logic_of_bools():
    assert_same_values(lambda s, b, h, q, kv: ((q >= kv) & (kv > 1)) * 1)
    assert_same_values(lambda s, b, h, q, kv: ((q >= kv) | (kv > 3) ^ (h == 1)) * 2)
    assert_same_values(lambda s, b, h, q, kv: True & (q > kv), lambda s, b, h, q, kv: q > kv)


erf = np.vectorize(math.erf)
FUNCTIONS = {
    "abs": abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "trunc": np.trunc,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": erf,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "to_int": np.trunc,
    "to_float": lambda x: x,
    "to_bool": lambda x: x != 0,
    "logical_not": lambda x: x == 0,
}
POSITIVE = {"log": np.log, "log2": np.log2, "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x)}
BINARY = {
    "minimum": np.minimum,
    "maximum": np.maximum,
    "true_div": np.true_divide,
    "floor_div": np.floor_divide,
    "remainder": np.remainder,
    "pow": lambda a, b: np.power(a.astype(float), b),
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}


@pytest.mark.parametrize("name", [*FUNCTIONS, *POSITIVE])
def test_functions(name):
    function = getattr(quire, name)
    expected = FUNCTIONS.get(name) or (lambda x: POSITIVE[name](np.abs(x) + 0.5))
    argument = (lambda s: s) if name in FUNCTIONS else (lambda s: abs(s) + 0.5)
    got = quire.evaluate(quire.ScoreMod(lambda s, b, h, q, kv: function(argument(s))), SCORES)
    np.testing.assert_allclose(got, expected(SCORES).astype(float), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two(name):
    function = getattr(quire, name)
    assert_same_values(
        lambda s, b, h, q, kv: function(q + 1, kv + 1), lambda s, b, h, q, kv: BINARY[name](q + 1, kv + 1)
    )
    assert_same_values(lambda s, b, h, q, kv: function(q, 2), lambda s, b, h, q, kv: BINARY[name](q, 2))


def test_every_function_of_the_language_is_tested():
    """The functions that quire offers are those of the formula language."""
    others = {"where", "clamp", "sum", "dot"}
    offered = {name for name in vars(quire) if type(inspect.unwrap(getattr(quire, name))).__name__ == "nb_func"}
    not_functions = {
        "and_masks",
        "or_masks",
        "create_block_mask",
        "create_mask",
        "draw",
        "draw_png",
        "draw_svg",
        "explain",
        "force_isa",
        "get_num_threads",
        "info",
        "set_num_threads",
    }
    assert offered - not_functions == {*FUNCTIONS, *POSITIVE, *BINARY, *others}


def test_choice():
    assert_same_values(
        lambda s, b, h, q, kv: quire.where(q >= kv, s, -100), lambda s, b, h, q, kv: np.where(q >= kv, s, -100)
    )
    assert_same_values(lambda s, b, h, q, kv: quire.clamp(kv - q, -2, 2), lambda s, b, h, q, kv: np.clip(kv - q, -2, 2))
    hidden = quire.evaluate(quire.ScoreMod(lambda s, b, h, q, kv: quire.where(q >= kv, s, -math.inf)), SCORES)
    assert np.isneginf(hidden[0, 0, 0, 1]) and np.isfinite(hidden[0, 0, 0, 0])


def test_constants_alone_are_mods():
    assert (quire.evaluate(quire.ScoreMod(lambda s, b, h, q, kv: 3), SCORES) == 3).all()
    assert str(quire.ScoreMod(lambda s, b, h, q, kv: np.float32(0.5))) == "0.5"
    assert not quire.evaluate(quire.MaskMod(lambda b, h, q, kv: False), SHAPE).any()
    assert quire.evaluate(quire.MaskMod(lambda b, h, q, kv: np.True_), SHAPE).all()
    assert (quire.evaluate(quire.ScoreMod(lambda s, b, h, q, kv: quire.exp(0)), SCORES) == 1).all()


def test_buffers_are_indexed():
    table = np.arange(24.0).reshape(2, 3, 4)
    ids = np.array([0, 0, 1, 1, 1, 0, 0], np.int32)
    slopes, doc, t = quire.Buffer([0.5, 0.25, 0.125], "slopes"), quire.Buffer(ids, "doc"), quire.Buffer(table, name="t")
    scalar = quire.Buffer(np.array(2.5), "c")
    assert_same_values(
        lambda s, b, h, q, kv: s + slopes[h] * (kv - q),
        lambda s, b, h, q, kv: s + np.array([0.5, 0.25, 0.125])[h] * (kv - q),
    )
    assert_same_values(lambda s, b, h, q, kv: t[b, h, kv % 4], lambda s, b, h, q, kv: table[b, h, kv % 4])
    assert_same_values(lambda s, b, h, q, kv: t[b][h][-1] + 1, lambda s, b, h, q, kv: table[b, h, -1] + 1)
    assert_same_values(
        lambda s, b, h, q, kv: t[doc[kv], 0, doc[q] + 1], lambda s, b, h, q, kv: table[ids[kv], 0, ids[q] + 1]
    )
    assert_same_values(lambda s, b, h, q, kv: s * scalar + 2 * scalar, lambda s, b, h, q, kv: s * 2.5 + 5)
    assert_same_values(lambda s, b, h, q, kv: s + quire.sum(t[b, h]), lambda s, b, h, q, kv: s + table.sum(-1)[b, h])
    assert_same_values(
        lambda s, b, h, q, kv: quire.dot(t[0, h], t[b, 1]),
        lambda s, b, h, q, kv: np.einsum("hd,bd->bh", table[0], table[:, 1])[b, h],
    )
    assert_same_values(lambda s, b, h, q, kv: s + quire.sum(t), lambda s, b, h, q, kv: s + table.sum())
    assert t.shape == (2, 3, 4) and t.name == "t" and t.dtype == "f64"
    assert np.shares_memory(t.numpy(), table)
    assert repr(t) == "quire.Buffer(t: f64 [2, 3, 4])"


def test_buffers_are_read_at_each_run():
    values = np.zeros(3)
    table = quire.Buffer(values)
    mod = quire.ScoreMod(lambda s, b, h, q, kv: table[h])
    assert quire.evaluate(mod, SCORES).max() == 0
    values[:] = 7
    assert quire.evaluate(mod, SCORES).min() == 7


@pytest.mark.parametrize(
    "mod",
    [
        lambda s, b, h, q, kv: s if q > kv else 0,
        lambda s, b, h, q, kv: (q > kv) and s,
        lambda s, b, h, q, kv: (q > kv) or s,
        lambda s, b, h, q, kv: not s,
        lambda s, b, h, q, kv: 0 <= q < kv,
        lambda s, b, h, q, kv: bool(s),
        lambda s, b, h, q, kv: max(s, 0),
    ],
)
def test_a_traced_value_decides_nothing(mod):
    with pytest.raises(TypeError, match=r"\[formula\] a traced value is not known yet, so `if`, `and`"):
        quire.ScoreMod(mod)


@pytest.mark.parametrize("use", [int, float, range, operator.index, lambda x: [1, 2][x], math.sqrt])
def test_a_traced_value_is_no_number(use):
    with pytest.raises(TypeError, match=r"\[formula\] a traced value is not known yet, so int\(\), float\(\)"):
        quire.ScoreMod(lambda s, b, h, q, kv: use(q))


def test_arrays_are_not_indexed_by_traced_values():
    table = np.zeros(3)
    with pytest.raises(TypeError, match=r"\[ScoreMod\] an array that a mod reads .* quire.Buffer\(array\)"):
        quire.ScoreMod(lambda s, b, h, q, kv: s + table[h])
    with pytest.raises(IndexError, match="list index"):  # anybody else's error stays
        quire.ScoreMod(lambda s, b, h, q, kv: [1][2])


def test_refused_operands():
    for wrong in ("x", None, [1], {}, np.zeros(3), 1j):
        with pytest.raises(TypeError):
            quire.ScoreMod(lambda s, b, h, q, kv: s + wrong)
        with pytest.raises(TypeError):
            quire.ScoreMod(lambda s, b, h, q, kv: wrong)
    with pytest.raises(TypeError, match=r"\[exp\] an expression or a number is needed; got str"):
        quire.exp("x")
    with pytest.raises(TypeError, match=r"\[sum\] a Buffer, or one with some indices, is needed"):
        quire.sum(3)
    with pytest.raises(OverflowError):
        quire.ScoreMod(lambda s, b, h, q, kv: q + 2**64)
    table = quire.Buffer(np.zeros((2, 2)), "table")
    with pytest.raises(ValueError, match="'table' has rank 2"):
        quire.ScoreMod(lambda s, b, h, q, kv: s + table[h])
    with pytest.raises(TypeError):
        list(table)
    with pytest.raises(TypeError):
        list(table[0])
    with pytest.raises(TypeError):
        hash(table[0, 0])
    assert not quire.ScoreMod("score") == "score"


def test_reprs_show_the_formula():
    seen = []
    table = quire.Buffer(np.zeros((2, 2)), "table")
    quire.ScoreMod(lambda s, b, h, q, kv: seen.extend([s * 2 + kv, table[h], table[h, q]]) or s)
    assert [repr(one) for one in seen] == ["score * 2.0 + kv_idx", "table[1 of 2 indices]", "table[h, q_idx]"]


# Random integer expressions: the same code traced, and run on NumPy's arrays. Both wrap at 64 bits.
INTS = st.recursive(
    st.sampled_from(["b", "h", "q", "kv", "1", "2", "3", "7"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "&", "|", "^"]), inner),
        st.builds(
            "({} {} {})".format, inner, st.sampled_from(["//", "%"]), st.sampled_from(["2", "3", "-4", "(q + 1)"])
        ),
        st.builds("({} {} {})".format, inner, st.sampled_from(["<<", ">>"]), st.sampled_from(["0", "1", "2"])),
        st.builds(
            "where({} {} {}, {}, {})".format,
            inner,
            st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
            inner,
            inner,
            inner,
        ),
        st.builds("(-{})".format, inner),
        st.builds("(~{})".format, inner),
        st.builds("abs({})".format, inner),
    ),
    max_leaves=12,
)


@settings(max_examples=runs(150))
@given(INTS)
def test_random_integer_expressions(text):
    code = compile(text, "expression", "eval")

    def run(where, b, h, q, kv):
        return eval(code, {"where": where, "b": b, "h": h, "q": q, "kv": kv})

    shape = (1, 2, 3, 4)
    got = quire.evaluate(quire.ScoreMod(lambda s, *at: run(quire.where, *at)), np.zeros(shape))
    expected = np.asarray(run(np.where, *grids(*shape))).astype(float)
    np.testing.assert_array_equal(got, np.broadcast_to(expected, shape), err_msg=text)
    parsed = quire.ScoreMod(str(quire.ScoreMod(lambda s, *at: run(quire.where, *at))))
    np.testing.assert_array_equal(quire.evaluate(parsed, np.zeros(shape)), got, err_msg=text)

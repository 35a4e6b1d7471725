"""Mods of jax.numpy operations as formulas: every primitive of the table against JAX, texts, indexing, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quire
import quire.jax as qj
from jax_reference import each
from quire.jax.trace import trace_mod

T1 = jnp.asarray(np.random.default_rng(1).standard_normal(9), jnp.float32)
T2 = jnp.asarray(np.random.default_rng(2).standard_normal((6, 8)), jnp.float32)
T3 = jnp.asarray(np.random.default_rng(3).standard_normal((2, 3, 5)), jnp.float32)
INTS = jnp.array([4, 0, 3, 1, 2, 5, 7, 6])
BITS = jnp.asarray(np.random.default_rng(4).random((6, 8)) > 0.5)
BYTES = jnp.asarray(np.arange(8), jnp.uint8)
SIZES = (2, 3, 6, 8)

SCORE_MODS = {
    "arithmetic": lambda s, b, h, q, k: (s + 1) * 2 - s / 3 + -s + (q - k) * s + b,
    "int division": lambda s, b, h, q, k: s + q // 2 + (k - q) // 3 + (q - k) % 3 + (k - 2 * q) % -4,
    "lax division": lambda s, b, h, q, k: (
        s + jax.lax.div(q - k, jnp.int32(2)) + jax.lax.rem(q - k, jnp.int32(3)) + jnp.fmod(s, 2.0)
    ),
    "float division": lambda s, b, h, q, k: s // 0.7 + s % 0.7 + q / (k + 1),
    "powers": lambda s, b, h, q, k: s**2 + s**3 + s**5 + jnp.abs(s) ** 1.5 + jnp.square(s) + (s * s + 1) ** -1,
    "limits": lambda s, b, h, q, k: jnp.maximum(s, 0.1) + jnp.minimum(s, q) + jnp.clip(s, -1, 1) + jnp.sign(s),
    "rounding": lambda s, b, h, q, k: jnp.floor(s) + jnp.ceil(s * 2) + jnp.round(s * 3) + jnp.trunc(s * 4),
    "round away": lambda s, b, h, q, k: jax.lax.round(s * 2, jax.lax.RoundingMethod.AWAY_FROM_ZERO),
    "where": lambda s, b, h, q, k: jnp.where((q > k) | (k == 3), s, jnp.where(q != k, -1.0, h)),
    "logic": lambda s, b, h, q, k: s * ((q & k) | (q ^ 3)) + (~q) + jnp.logical_not(q > 2) + (q << 2) + (k >> 1),
    "logical and": lambda s, b, h, q, k: s * jnp.logical_and(q > 1, jnp.logical_xor(k > 2, h > 1)),
    "exponentials": lambda s, b, h, q, k: jnp.exp(s) + jnp.exp2(s) + jnp.expm1(s) + jnp.log1p(s * s) + jnp.log2(s * s),
    "roots": lambda s, b, h, q, k: jnp.sqrt(s * s + 1) + jax.lax.rsqrt(s * s + 1) + jnp.log(s * s + 1),
    "trigonometry": lambda s, b, h, q, k: jnp.sin(s) + jnp.cos(s) + jnp.tan(s / 4) + jnp.arctan(s),
    "hyperbolic": lambda s, b, h, q, k: jnp.sinh(s) + jnp.cosh(s) + jnp.tanh(s) + jnp.arcsinh(s),
    "more hyperbolic": lambda s, b, h, q, k: jnp.arccosh(s * s + 1.5) + jnp.arctanh(s / 10),
    "errors": lambda s, b, h, q, k: jax.lax.erf(s) + jax.lax.erfc(s) + jax.nn.sigmoid(s),
    "activations": lambda s, b, h, q, k: jax.nn.relu(s) + jax.nn.gelu(s) + jax.nn.silu(s) + jax.nn.softplus(s),
    "more activations": lambda s, b, h, q, k: jax.nn.gelu(s, approximate=False) + jax.nn.elu(s) + jax.nn.relu6(s * 4),
    "others": lambda s, b, h, q, k: jnp.logaddexp(s, 0.3) + jnp.hypot(s, 2.0) + jnp.nan_to_num(s) + jax.nn.celu(s),
    "finite": lambda s, b, h, q, k: jnp.where(jnp.isfinite(jnp.log(q + 0.0)), s, 7.0),
    "casts": lambda s, b, h, q, k: s.astype(jnp.int32) + (q * 100).astype(jnp.int8) + (s > 0).astype(jnp.float32),
    "bytes": lambda s, b, h, q, k: s + (BYTES[k] * 50 + 10),
    "element": lambda s, b, h, q, k: s + T1[k] + T2[q, k] + T3[b, h, 2],
    "negative": lambda s, b, h, q, k: s + T1[k - q] + T2[q, -1] + T1[-k - 1],
    "clamped": lambda s, b, h, q, k: s + T1[3 * k] + T1[k - 2 * q - 5],
    "nested": lambda s, b, h, q, k: s + T1[INTS[k]] + T1[INTS[INTS[k]] - 2],
    "take": lambda s, b, h, q, k: s + jnp.take(T1, k) + jnp.take(INTS, q) + T1.at[q].get(mode="clip"),
    "take outside": lambda s, b, h, q, k: s + jnp.nan_to_num(jnp.take(T1, 2 * k), nan=3.0),
    "partial": lambda s, b, h, q, k: s + T2[q][k] + T3[b][h][4] + T2[0][k],
    "slices": lambda s, b, h, q, k: s + T2[q][2:5].sum() + T2[q, ::2].max() + T2[q][::-1][k],
    "bools": lambda s, b, h, q, k: jnp.where(BITS[q, k], s, -s) + BITS[q, 0],
    "sum": lambda s, b, h, q, k: s + T2[q].sum() + jnp.sum(T3[b], axis=1)[h] + T2[q].mean(),
    "dot": lambda s, b, h, q, k: s + jnp.dot(T2[q], T2[k % 6]) + (T2[q] * T2[0]).sum(),
    "product": lambda s, b, h, q, k: s + (T3[b] @ T3[0].T)[h, 1] + jnp.vdot(T3[b, h], T1[:5]),
    "reductions": lambda s, b, h, q, k: s + T2[q].max() + T2[q].min() + BITS[q].any() + BITS[q].all() + T3[b, h].prod(),
    "stacked": lambda s, b, h, q, k: s + jnp.stack([s, s * 2, q * 1.0])[h] + jnp.concatenate([T1[:2], T2[q]])[k],
    "unpacked": lambda s, b, h, q, k: s + (lambda x, *y: x * 2 + y[1])(*T3[b, h]) + jnp.split(T2[q], 2)[1][1],
    "reshaped": lambda s, b, h, q, k: s + T2[q].reshape(2, 4)[k // 4, k % 4] + T3[b].T[1, h],
    "computed": lambda s, b, h, q, k: s + (jnp.cumsum(T1) * 2)[k] + jnp.sort(T2, axis=1)[q, k],
    "jitted": lambda s, b, h, q, k: jax.jit(lambda x: x * 2 + q)(s),
    "constant": lambda s, b, h, q, k: 2.5,
    "unsigned": lambda s, b, h, q, k: s + ((q.astype(jnp.uint32) * jnp.uint32(2654435761)) >> 28).astype(jnp.int32),
}


def evaluated(rule, scores):
    mod = quire.ScoreMod(rule.text, {name: np.asarray(one) for name, one in zip(rule.names, rule.arrays)})
    return quire.evaluate(mod, scores)


@pytest.mark.parametrize("name", SCORE_MODS)
def test_score_mods_are_what_jax_computes(name):
    mod = SCORE_MODS[name]
    scores = np.random.default_rng(0).standard_normal(SIZES).astype(np.float32) * 2
    found = evaluated(trace_mod(mod, np.float32, SIZES), scores)
    indices = np.meshgrid(*map(np.arange, SIZES), indexing="ij")
    wanted = each(mod, jnp.asarray(scores), *map(jnp.asarray, indices))
    assert np.allclose(found, np.broadcast_to(wanted, SIZES), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(set(SCORE_MODS) - {"casts"}))
def test_gradients_by_the_score_are_jax_s(name):
    """Of attention with the mod, by the queries, in f64; away from the corners of the functions."""
    mod = SCORE_MODS[name]
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        q, k, v = (jnp.asarray(random.standard_normal((2, 3, n, 4))) for n in (6, 8, 8))
        weights = jnp.asarray(random.standard_normal((2, 3, 6, 4)))

        def ours(q):
            return (qj.flex_attention(q, k, v, mod) * weights).sum()

        def theirs(q):
            score = jnp.einsum("bhqe,bhke->bhqk", q, k) / 2
            indices = jnp.meshgrid(*(jnp.arange(n, dtype=jnp.int32) for n in score.shape), indexing="ij")
            weight = jax.nn.softmax(jnp.broadcast_to(each(mod, score, *indices), score.shape).astype(float))
            return (jnp.einsum("bhqk,bhke->bhqe", weight, v) * weights).sum()

        assert np.allclose(ours(q), theirs(q), rtol=1e-6)
        assert np.allclose(jax.grad(ours)(q), jax.grad(theirs)(q), rtol=1e-5, atol=1e-6)


MASK_TEXTS = {
    "q_idx >= kv_idx": lambda b, h, q, k: q >= k,
    "INTS[q_idx] == INTS[kv_idx]": lambda b, h, q, k: INTS[q] == INTS[k],
    "q_idx // 4 == kv_idx // 4": lambda b, h, q, k: q // 4 == k // 4,
    "(q_idx - kv_idx) % 3 == 0": lambda b, h, q, k: (q - k) % 3 == 0,
    "T1[q_idx - kv_idx] > 0.0": lambda b, h, q, k: T1[q - k] > 0,
    "True": lambda b, h, q, k: True,
}


@pytest.mark.parametrize("text", MASK_TEXTS)
def test_texts_are_plain(text):
    """What JAX does to indices and to signs of divisions is not left in the formula."""
    assert trace_mod(MASK_TEXTS[text], None, SIZES).text == text


def test_what_depends_on_arrays_alone_is_computed_outside():
    rule = trace_mod(lambda s, b, h, q, k: s + jnp.exp(T1 * 2)[k], np.float32, SIZES)
    assert len(rule.arrays) == 1 and np.allclose(rule.arrays[0], np.exp(np.asarray(T1) * 2))


@jax.custom_jvp
def own_derivative(x):
    return x * 2


own_derivative.defjvp(lambda primals, tangents: (own_derivative(*primals), tangents[0] * 5))


@jax.jit
def floor_divide(a, b):
    return a * b  # not what its name says


REFUSED = {
    "while": lambda s, b, h, q, k: jax.lax.while_loop(lambda x: x < 3.0, lambda x: x + 1, s),
    "cond": lambda s, b, h, q, k: jax.lax.cond(q > k, lambda x: x, lambda x: -x, s),
    "sort": lambda s, b, h, q, k: jnp.sort(T2[q])[0],
    "stop_gradient": lambda s, b, h, q, k: jax.lax.stop_gradient(s),
    "argmax": lambda s, b, h, q, k: jnp.select([q > 4, k > 4], [s, s * 2], 0.5),
    "cbrt": lambda s, b, h, q, k: jnp.cbrt(s),
    "atan2": lambda s, b, h, q, k: jnp.arctan2(s, 1.0),
    "nextafter": lambda s, b, h, q, k: jnp.nextafter(s, 1.0),
    "population_count": lambda s, b, h, q, k: s + jax.lax.population_count(q),
    "bitcast_convert_type": lambda s, b, h, q, k: jax.lax.bitcast_convert_type(q, jnp.float32) + s,
    "custom_jvp_call": lambda s, b, h, q, k: own_derivative(s),
    "reduce_max over 1000": lambda s, b, h, q, k: s + (jnp.ones((6, 1000))[q] * s).max(),
    "must return one value": lambda s, b, h, q, k: T2[q],
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    with pytest.raises(qj.TraceError, match=name):
        trace_mod(REFUSED[name], np.float32, SIZES)


def test_a_function_is_not_known_by_its_name_alone():
    rule = trace_mod(lambda b, h, q, k: floor_divide(q, k) == 6, None, SIZES)
    assert rule.text == "q_idx * kv_idx == 6"


def test_python_conditions_are_refused_by_jax():
    with pytest.raises(jax.errors.TracerBoolConversionError):
        trace_mod(lambda s, b, h, q, k: s if q > k else 0.0, np.float32, SIZES)


def test_integers_that_do_not_fit_are_refused():
    mod = quire.MaskMod("table[kv_idx] > 0", {"table": np.array([1 << 40, 1])})
    with pytest.raises(ValueError, match="'table' holds integers that int32 does not"):
        qj.create_block_mask(mod, None, None, 2, 2)

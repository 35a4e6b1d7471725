"""Gradients of quire.jax against those of the definition in f64: of q, k, v, lse, sinks and captured arrays; under jit and vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quire.jax as qj
from jax_reference import arrays, assert_close, qkv, reference

MASK = {"none": None, "causal": lambda b, h, q, k: q >= k}


def learned(tables):
    slopes, table, plane, one = tables

    def score_mod(s, b, h, q, k):
        return jnp.tanh(s + slopes[h] * 2) + table[k - q + 70] * jnp.exp(slopes)[h] + plane[b, q % 5] * one

    return score_mod


def tables_of(dtype=np.float32):
    return arrays(9, (4,), (160,), (2, 5), (), dtype=dtype)


def losses(mask, weights, call):
    def loss(inputs, tables, sinks):
        out, lse = call(*inputs, learned(tables), mask, sinks)
        return (out.astype(weights[0].dtype) * weights[0]).sum() + (lse * weights[1]).sum()

    return loss


def ours(q, k, v, score_mod, mask, sinks):
    block_mask = None if mask is None else qj.create_block_mask(mask, None, None, q.shape[2], k.shape[2])
    return qj.flex_attention(q, k, v, score_mod, block_mask, enable_gqa=True, return_lse=True, sinks=sinks)


def theirs(q, k, v, score_mod, mask, sinks):
    out, lse = reference(q, k, v, score_mod, mask, sinks=sinks)
    return out.astype(q.dtype), lse


@pytest.mark.parametrize("mask", MASK)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients(dtype, mask):
    inputs, tables = qkv(kv_heads=2, dtype=dtype), tables_of()
    weights = arrays(11, (2, 4, 70, 24), (2, 4, 70))
    (sinks,) = arrays(12, (4,))
    found = jax.jit(jax.grad(losses(MASK[mask], weights, ours), (0, 1, 2)))(inputs, tables, sinks)
    plain = jax.grad(losses(MASK[mask], weights, theirs), (0, 1, 2))(inputs, tables, sinks)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), (inputs, tables, sinks, weights))
        exact = jax.grad(losses(MASK[mask], wide[3], theirs), (0, 1, 2))(*wide[:3])
        exact = jax.tree.map(np.asarray, exact)
    names = ["q", "k", "v", "slopes", "table", "plane", "one", "sinks"]
    for name, one, other, true in zip(names, *map(jax.tree.leaves, (found, plain, exact)), strict=True):
        assert one.dtype == other.dtype, name
        # In bf16 the gradient of the output is rounded; sums over all of it keep some of that.
        assert_close(one, other, true, factor=4.0, share=2e-6 if dtype == jnp.float32 else 8e-3)


def test_f64_gradients_are_exact(x64):
    inputs, tables = qkv(kv_heads=2, dtype=np.float64), tables_of(np.float64)
    weights = arrays(11, (2, 4, 70, 24), (2, 4, 70), dtype=np.float64)
    (sinks,) = arrays(12, (4,), dtype=np.float64)
    found, exact = (
        jax.grad(losses(MASK["causal"], weights, call), (0, 1, 2))(inputs, tables, sinks) for call in (ours, theirs)
    )
    for one, true in zip(*map(jax.tree.leaves, (found, exact)), strict=True):
        assert np.allclose(one, true, rtol=1e-9, atol=1e-10)


def test_gradients_under_vmap_are_those_of_a_loop():
    q, k, v = arrays(3, (3, 2, 4, 30, 16), (3, 2, 4, 40, 16), (3, 2, 4, 40, 8))
    slopes = arrays(4, (4,))[0]

    def loss(q, k, v, slopes):
        out = qj.flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i))
        return (out**2).sum()

    def plain(q, k, v):
        return (qj.flex_attention(q, k, v) ** 2).sum()

    found = jax.vmap(jax.grad(loss, (0, 1, 2, 3)), (0, 0, 0, None))(q, k, v, slopes)
    loop = [jax.grad(loss, (0, 1, 2, 3))(*one, slopes) for one in zip(q, k, v)]
    for i, one in enumerate(found):
        assert np.array_equal(one, jnp.stack([x[i] for x in loop]))
    found = jax.vmap(jax.grad(plain, (0, 1, 2)))(q, k, v)
    loop = [jax.grad(plain, (0, 1, 2))(*one) for one in zip(q, k, v)]
    for i, one in enumerate(found):
        assert np.array_equal(one, jnp.stack([x[i] for x in loop]))
    # The gradient of what all share is a sum over the axis.
    shared = jax.grad(lambda k, v: jax.vmap(plain, (0, None, None))(q, k, v).sum(), (0, 1))(k[0], v[0])
    parts = [jax.grad(plain, (1, 2))(one, k[0], v[0]) for one in q]
    for i, one in enumerate(shared):
        assert np.allclose(one, sum(part[i] for part in parts), rtol=1e-5, atol=1e-5)


def test_dropout_is_the_same_in_both_passes():
    q, k, v = qkv(q_len=20, kv_len=30)
    key = jax.random.key(3)

    def out_of(v):
        return qj.flex_attention(q, k, v, dropout_p=0.4, seed=key)

    d_out = arrays(8, (2, 4, 20, 24))[0]
    # Linear in v: the gradient is the product with the same weights.
    (direction,) = arrays(9, v.shape)
    gradient = jax.grad(lambda v: (out_of(v) * d_out).sum())(v)
    assert np.allclose((gradient * direction).sum(), (out_of(direction) * d_out).sum(), rtol=1e-4)


def test_training_a_step_of_a_bias_lowers_the_loss():
    q, k, v = qkv()
    target = qj.flex_attention(q, k, v, "score + 2.0 * (kv_idx < 10)")

    @jax.jit
    def step(bias):
        def loss(bias):
            return ((qj.flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[j]) - target) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(bias)
        return bias - 300 * gradient, value

    bias, values = jnp.zeros(90), []
    for _ in range(20):
        bias, value = step(bias)
        values.append(float(value))
    assert values[-1] < 0.2 * values[0]


def test_second_derivatives_and_forward_mode_are_refused():
    q, k, v = qkv(q_len=4, kv_len=4)

    def loss(q):
        return (qj.flex_attention(q, k, v) ** 2).sum()

    with pytest.raises(Exception, match="quire_attention_backward|differentiat"):
        jax.grad(lambda q: jax.grad(loss)(q).sum())(q)
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(loss, (q,), (q,))

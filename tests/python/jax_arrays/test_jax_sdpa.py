"""quire.jax.scaled_dot_product_attention: against jax.nn.dot_product_attention, quire's own, and its masks' gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quire
import quire.jax as qj
from jax_reference import arrays, assert_close, qkv, reference


def btnh(x):
    """[B, H, L, E] as jax.nn has it, [B, L, H, E]."""
    return x.transpose(0, 2, 1, 3)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("is_causal", [False, True])
def test_against_jax(is_causal, kv_heads):
    q, k, v = qkv(kv_heads=kv_heads, v_dim=16)
    found = qj.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
    theirs = btnh(jax.nn.dot_product_attention(*map(btnh, (q, k, v)), is_causal=is_causal))
    mask = (lambda b, h, i, j: i >= j) if is_causal else None
    with jax.enable_x64(True):
        exact = np.asarray(reference(*(jnp.asarray(np.asarray(x, np.float64)) for x in (q, k, v)), None, mask)[0])
    assert_close(found, theirs, exact)


@pytest.mark.parametrize("shape", [(90,), (70, 90), (1, 90), (4, 70, 90), (2, 1, 1, 90), (2, 4, 70, 90), (1, 1, 70, 1)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_mask_arrays_as_quire_takes_them(kind, shape):
    q, k, v = qkv()
    mask = arrays(6, shape)[0]
    mask = mask > 0 if kind == "bool" else mask
    own = quire.scaled_dot_product_attention(*map(np.asarray, (q, k, v, mask)))
    found = jax.jit(lambda m: qj.scaled_dot_product_attention(q, k, v, m))(mask)
    assert np.allclose(found, own, atol=1e-6)


def test_the_gradient_of_a_mask():
    q, k, v = qkv(v_dim=16)
    (bias,) = arrays(7, (1, 4, 70, 90))

    def ours(bias):
        return (qj.scaled_dot_product_attention(q, k, v, bias) ** 2).sum()

    def theirs(bias):
        return (jax.nn.dot_product_attention(*map(btnh, (q, k, v)), bias) ** 2).sum()

    assert np.allclose(jax.grad(ours)(bias), jax.grad(theirs)(bias), atol=2e-5)


def test_axes_in_front_and_broadcast_ones():
    q, k, v = arrays(1, (3, 2, 4, 7, 8), (1, 2, 1, 9, 8), (3, 1, 1, 9, 6))
    found = qj.scaled_dot_product_attention(q, k, v)
    own = quire.scaled_dot_product_attention(*map(np.asarray, (q, k, v)))
    assert found.shape == (3, 2, 4, 7, 6) and np.allclose(found, own, atol=1e-6)
    for rank in (2, 3):
        few = [one.reshape(one.shape[-rank:]) for one in arrays(2, (7, 8), (9, 8), (9, 6))] if rank == 2 else None
        few = few or arrays(2, (4, 7, 8), (4, 9, 8), (4, 9, 6))
        own = quire.scaled_dot_product_attention(*map(np.asarray, few))
        assert np.allclose(qj.scaled_dot_product_attention(*few), own, atol=1e-6)


def test_alignment_and_rules():
    q, k, v = qkv()
    found = qj.scaled_dot_product_attention(q, k, v, is_causal=True, alignment="bottom_right")
    own = quire.scaled_dot_product_attention(*map(np.asarray, (q, k, v)), is_causal=True, alignment="bottom_right")
    assert np.array_equal(found, own)
    rule = qj.scaled_dot_product_attention(q, k, v, lambda b, h, i, j: i + 20 >= j)
    assert np.array_equal(found, rule)


REFUSED = {
    "both masks": (dict(attn_mask="True", is_causal=True), ValueError, "cannot be given both"),
    "shape": (dict(attn_mask=jnp.ones((3, 90))), ValueError, r"attn_mask of shape \(3, 90\) does not broadcast"),
    "ints": (dict(attn_mask=jnp.ones((70, 90), int)), TypeError, "bools or floats"),
    "alignment": (dict(is_causal=True, alignment="left"), ValueError, "alignment"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    options, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        qj.scaled_dot_product_attention(*qkv(), **options)


def test_dtypes_must_be_one():
    q, k, v = qkv()
    with pytest.raises(TypeError, match="dtypes must be one"):
        qj.scaled_dot_product_attention(q, k.astype(jnp.bfloat16), v)

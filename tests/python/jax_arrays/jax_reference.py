"""Attention by jax.numpy, as the definition that quire.jax is compared with, and arrays for it."""

import jax
import jax.numpy as jnp
import numpy as np


def arrays(seed, *shapes, dtype=np.float32):
    random = np.random.default_rng(seed)
    return [jnp.asarray(random.standard_normal(shape), dtype) for shape in shapes]


def qkv(seed=0, batch=2, q_heads=4, kv_heads=4, q_len=70, kv_len=90, dim=16, v_dim=24, dtype=np.float32):
    keys = (batch, kv_heads, kv_len)
    return arrays(seed, (batch, q_heads, q_len, dim), (*keys, dim), (*keys, v_dim), dtype=dtype)


def reference(q, k, v, score_mod=None, mask_mod=None, scale=None, sinks=None):
    """Attention by jax.numpy, with mods called on whole arrays of indices: what flex_attention means. (out, lse)"""
    group = q.shape[1] // k.shape[1]
    k, v = (jnp.repeat(one, group, 1) for one in (k, v))
    score = jnp.einsum("bhqe,bhke->bhqk", q, k) * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
    indices = jnp.meshgrid(*(jnp.arange(n) for n in score.shape), indexing="ij")
    if score_mod is not None:
        score = each(score_mod, score, *indices)
    visible = jnp.ones(score.shape, bool) if mask_mod is None else each(mask_mod, *indices)
    score = jnp.where(visible, score, -jnp.inf)
    lse = jax.nn.logsumexp(score, -1)
    total = lse if sinks is None else jnp.logaddexp(lse, sinks[None, :, None])
    weights = jnp.where(visible, jnp.exp(score - jnp.where(jnp.isinf(total), 0, total)[..., None]), 0)
    return jnp.einsum("bhqk,bhke->bhqe", weights, v), lse


def each(mod, *indices):
    """A mod of scalars over arrays of them."""
    for _ in range(4):
        mod = jax.vmap(mod)
    return mod(*indices)


def assert_close(found, wanted, exact, factor=2.0, share=2e-6):
    """The error against an f64 result is at most `factor` times that of JAX's own in the same precision, and `share` of the largest
    number."""
    found, wanted, exact = (np.asarray(one, np.float64) for one in (found, wanted, exact))
    assert found.shape == exact.shape
    assert np.array_equal(np.isfinite(found), np.isfinite(exact))
    finite = np.isfinite(exact)
    scale = np.abs(exact[finite]).max(initial=1e-30)
    limit = factor * np.abs(wanted - exact)[finite].max(initial=0) + share * scale
    assert np.abs(found - exact)[finite].max(initial=0) <= limit

"""quire.jax.flex_attention: values against the definition in f64, dtypes, options, jit and vmap, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quire
import quire.jax as qj
from jax_reference import arrays, assert_close, qkv, reference

SLOPES = jnp.array([0.5, 0.25, 0.125, 0.0625])
TABLE = jnp.asarray(np.random.default_rng(1).standard_normal(200), jnp.float32)
PLANE = jnp.asarray(np.random.default_rng(2).standard_normal((70, 90)), jnp.float32)
DOCUMENT = jnp.asarray(np.arange(90) // 17)

SCORE_MODS = {
    "none": None,
    "alibi": lambda s, b, h, q, k: s + SLOPES[h] * (k - q),
    "softcap": lambda s, b, h, q, k: 3 * jnp.tanh(s / 3),
    "relative": lambda s, b, h, q, k: s + TABLE[k - q + 100],
    "plane": lambda s, b, h, q, k: s * PLANE[q, k] + b,
}
MASK_MODS = {
    "none": None,
    "causal": lambda b, h, q, k: q >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k < 20),
    "document": lambda b, h, q, k: DOCUMENT[q] == DOCUMENT[k],
    "heads": lambda b, h, q, k: (q + h) % 3 == (k + b) % 3,
}


def both(q, k, v, score, mask, **options):
    block_mask = None
    if mask is not None:
        block_mask = qj.create_block_mask(mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return qj.flex_attention(q, k, v, score, block_mask, enable_gqa=True, return_lse=True, **options)


def in_f64(function, *inputs):
    with jax.enable_x64(True):
        return [np.asarray(one) for one in function(*(jnp.asarray(np.asarray(x, np.float64)) for x in inputs))]


@pytest.mark.parametrize("mask", MASK_MODS)
@pytest.mark.parametrize("score", SCORE_MODS)
def test_values(score, mask):
    q, k, v = qkv(kv_heads=2)
    score, mask = SCORE_MODS[score], MASK_MODS[mask]
    found = both(q, k, v, score, mask)
    plain = reference(q, k, v, score, mask)
    exact = in_f64(lambda *x: reference(*x, score, mask), q, k, v)
    for one, theirs, true in zip(found, plain, exact, strict=True):
        assert one.dtype == jnp.float32
        assert_close(one, theirs, true)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_dtypes_have_the_bits_of_quire(dtype):
    q, k, v = qkv(dtype=dtype)
    out, lse = qj.flex_attention(q, k, v, "20.0 * tanh(score / 20.0)", return_lse=True)
    own = [quire.flex_attention(*map(np.asarray, (q, k, v)), "20.0 * tanh(score / 20.0)", return_lse=True)]
    assert out.dtype == dtype and lse.dtype == jnp.float32
    assert np.array_equal(np.asarray(out), own[0][0]) and np.array_equal(np.asarray(lse), own[0][1])


def test_f64(x64):
    q, k, v = qkv(dtype=np.float64)
    out, lse = both(q, k, v, SCORE_MODS["alibi"], MASK_MODS["causal"])
    exact = reference(q, k, v, SCORE_MODS["alibi"], MASK_MODS["causal"])
    assert out.dtype == lse.dtype == jnp.float64
    assert np.allclose(out, exact[0], rtol=1e-12, atol=1e-12)


def test_jit_gives_the_same_bits_and_takes_the_mask_as_an_argument():
    q, k, v = qkv()

    @jax.jit
    def call(q, k, v, slopes, mask):
        return qj.flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), mask)

    @jax.jit
    def inside(q, k, v, slopes, document):
        mask = qj.create_block_mask(lambda b, h, i, j: document[i] == document[j], None, None, 70, 90)
        return qj.flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), mask)

    for document in (DOCUMENT, DOCUMENT // 2, DOCUMENT):
        mask = qj.create_block_mask(lambda b, h, i, j: document[i] == document[j], None, None, 70, 90)
        plain = qj.flex_attention(q, k, v, SCORE_MODS["alibi"], mask)
        assert np.array_equal(plain, call(q, k, v, SLOPES, mask))
        assert np.array_equal(plain, inside(q, k, v, SLOPES, document))


def test_texts_and_ready_mods():
    q, k, v = qkv()
    wanted = qj.flex_attention(q, k, v, SCORE_MODS["alibi"])
    text = "score + slopes[h] * (kv_idx - q_idx)"
    assert np.array_equal(wanted, qj.flex_attention(q, k, v, (text, {"slopes": SLOPES})))
    assert np.array_equal(wanted, qj.flex_attention(q, k, v, quire.ScoreMod(text, {"slopes": np.asarray(SLOPES)})))
    causal = qj.create_block_mask(quire.mods.causal(), None, None, 70, 90)
    as_text = qj.create_block_mask("q_idx >= kv_idx", None, None, 70, 90)
    assert np.array_equal(qj.flex_attention(q, k, v, None, causal), qj.flex_attention(q, k, v, None, as_text))


@pytest.mark.parametrize("mask", MASK_MODS)
@pytest.mark.parametrize("score", ["none", "alibi", "plane"])
def test_vmap_is_a_loop(score, mask):
    """Over a new axis of everything, over queries alone, and over two axes."""
    score, mask = SCORE_MODS[score], MASK_MODS[mask]
    q, k, v = arrays(3, (3, 2, 4, 70, 16), (3, 2, 4, 90, 16), (3, 2, 4, 90, 8))

    def call(q, k, v):
        return both(q, k, v, score, mask)

    for axes in ((0, 0, 0), (0, None, None), (None, 0, 0)):
        parts = [one if axis == 0 else one[0] for one, axis in zip((q, k, v), axes)]
        found = jax.vmap(call, axes)(*parts)
        loop = [call(*(one[i] if axis == 0 else one for one, axis in zip(parts, axes))) for i in range(3)]
        for i, one in enumerate(found):
            assert np.array_equal(one, jnp.stack([x[i] for x in loop]))
    found = jax.jit(jax.vmap(jax.vmap(call)))(*(one.reshape(3, 2, 1, *one.shape[2:]) for one in (q, k, v)))
    if score is not SCORE_MODS["plane"] and mask is not MASK_MODS["heads"]:  # those read b
        wanted = jax.vmap(call)(q, k, v)
        assert np.array_equal(found[0][:, :, 0], wanted[0])


def test_vmap_over_captured_arrays():
    q, k, v = qkv()
    slopes = jnp.stack([SLOPES, SLOPES * 2, -SLOPES])
    documents = jnp.stack([DOCUMENT, DOCUMENT // 2, DOCUMENT * 0])

    def call(slopes, document):
        mask = qj.create_block_mask(lambda b, h, i, j: document[i] == document[j], None, None, 70, 90)
        return qj.flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), mask)

    found = jax.vmap(call)(slopes, documents)
    assert np.array_equal(found, jnp.stack([call(*one) for one in zip(slopes, documents)]))


def test_rows_without_keys_give_zero():
    q, k, v = qkv()
    mask = qj.create_block_mask("(q_idx > 10) & (kv_idx < q_idx)", None, None, 70, 90)
    out, lse = qj.flex_attention(q, k, v, None, mask, return_lse=True)
    assert not out[:, :, :11].any() and np.isneginf(lse[:, :, :11]).all() and np.isfinite(lse[:, :, 11:]).all()


def test_sinks_are_a_logit_more():
    q, k, v = qkv()
    (sinks,) = arrays(5, (4,))
    found = qj.flex_attention(q, k, v, sinks=sinks)
    plain = reference(q, k, v, sinks=sinks)[0]
    assert_close(found, plain, in_f64(lambda q, k, v, s: reference(q, k, v, sinks=s), q, k, v, sinks)[0])


def test_dropout_follows_its_seed_alone():
    q, k, v = qkv()
    call = jax.jit(lambda seed: qj.flex_attention(q, k, v, dropout_p=0.3, seed=seed))
    keys = jax.random.split(jax.random.key(7), 2)
    assert np.array_equal(call(keys[0]), call(keys[0])) and not np.array_equal(call(keys[0]), call(keys[1]))
    own = quire.flex_attention(*map(np.asarray, (q, k, v)), dropout_p=0.3, seed=(5 << 32) + 9)
    assert np.array_equal(qj.flex_attention(q, k, v, dropout_p=0.3, seed=(5 << 32) + 9), own)
    assert np.array_equal(call(jnp.array([5, 9], jnp.uint32)), own)


def test_empty_calls():
    for batch, q_len, kv_len in ((0, 3, 4), (1, 0, 4), (1, 3, 0)):
        q, k, v = qkv(batch=batch, q_len=q_len, kv_len=kv_len)
        assert qj.flex_attention(q, k, v).shape == (batch, 4, q_len, 24)
        assert not qj.flex_attention(q, k, v).any()


REFUSED = {
    "heads": (lambda q, k, v: qj.flex_attention(q, k[:, :2], v[:, :2]), ValueError, "enable_gqa"),
    "batch": (lambda q, k, v: qj.flex_attention(q, k[:1], v), ValueError, "batch"),
    "dims": (lambda q, k, v: qj.flex_attention(q[..., :3], k, v), ValueError, "got 3 and 16"),
    "rank": (lambda q, k, v: qj.flex_attention(q[0], k, v), ValueError, "must be"),
    "ints": (lambda q, k, v: qj.flex_attention(q.astype(int), k, v), TypeError, "query must hold floats; got int32"),
    "list": (lambda q, k, v: qj.flex_attention([1.0], k, v), TypeError, "query must be an array"),
    "mask of another length": (
        lambda q, k, v: qj.flex_attention(q, k, v, None, qj.create_block_mask("True", None, None, 64, 90)),
        ValueError,
        "block_mask",
    ),
    "mask of quire": (
        lambda q, k, v: qj.flex_attention(q, k, v, None, quire.create_block_mask("True", None, None, 70, 90)),
        TypeError,
        "quire.jax.create_block_mask",
    ),
    "a mask as a score mod": (
        lambda q, k, v: qj.flex_attention(q, k, v, lambda b, h, q, k: q >= k),
        TypeError,
        "this function takes 4 arguments",
    ),
    "seed": (lambda q, k, v: qj.flex_attention(q, k, v, dropout_p=0.1), ValueError, "dropout needs a seed"),
    "dropout": (lambda q, k, v: qj.flex_attention(q, k, v, dropout_p=2, seed=1), ValueError, "0..1"),
    "sinks": (lambda q, k, v: qj.flex_attention(q, k, v, sinks=jnp.ones(3)), ValueError, "sinks"),
    "scale": (
        lambda q, k, v: jax.jit(lambda s: qj.flex_attention(q, k, v, scale=s))(1.0),
        TypeError,
        "multiply the query",
    ),
    "rope": (lambda q, k, v: qj.flex_attention(q, k, v, rope=1), TypeError, "rope"),
    "text": (lambda q, k, v: qj.flex_attention(q, k, v, "score + slopes[h]"), ValueError, "slopes"),
    "block size": (lambda q, k, v: qj.create_block_mask("True", None, None, 8, 8, BLOCK_SIZE=0), ValueError, "block"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_while_tracing(name):
    call, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text):
        jax.eval_shape(lambda: call(*qkv()))


def test_an_error_at_run_time_names_the_buffer():
    q, k, v = qkv()
    with pytest.raises(Exception, match="table.*99"):
        jax.block_until_ready(qj.flex_attention(q, k, v, ("score + table[q_idx + 30]", {"table": TABLE[:99]})))
    assert np.isfinite(qj.flex_attention(q, k, v)).all()


def test_masks_can_be_looked_at():
    mask = qj.create_block_mask(MASK_MODS["causal"], None, None, 1024, 1024)
    own = quire.create_block_mask("q_idx >= kv_idx", None, None, 1024, 1024)
    assert mask.sparsity() == own.sparsity() and str(mask) == str(own) and mask.proved() == own
    assert "q_idx >= kv_idx" in repr(mask) and mask.shape == (1, 1, 1024, 1024)
    leaves, tree = jax.tree.flatten(qj.create_block_mask(MASK_MODS["document"], None, None, 70, 90))
    assert len(leaves) == 1 and jax.tree.unflatten(tree, leaves).shape == (1, 1, 70, 90)

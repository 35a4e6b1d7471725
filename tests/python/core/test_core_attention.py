"""flex_attention against NumPy in f64: dtypes, strides, heads, masks, mods, what comes beside the output, and errors."""

import math

import ml_dtypes
import numpy as np
import pytest
import quire
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_reference import assert_as_good_as_naive, attention
from property_runs import runs
from quire import mods

BF16 = ml_dtypes.bfloat16
DTYPES = [np.float32, np.float64, np.float16, BF16]


def qkv(shape_q, shape_k, v_dim=None, dtype=np.float32, seed=0):
    random = np.random.default_rng(seed)
    v_shape = (*shape_k[:3], v_dim or shape_k[3])
    return tuple(random.standard_normal(shape).astype(dtype) for shape in (shape_q, shape_k, v_shape))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("lengths", [(1, 1), (1, 257), (113, 203), (40, 3), (16, 16)], ids=str)
def test_plain(dtype, lengths):
    q, k, v = qkv((2, 3, lengths[0], 24), (2, 3, lengths[1], 24), 40, dtype)
    out = quire.flex_attention(q, k, v)
    assert out.dtype == np.dtype(dtype) and out.shape == (2, 3, lengths[0], 40)
    assert_as_good_as_naive(out, q, k, v)


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (0, 0)])
def test_nothing_to_do(lengths):
    q, k, v = qkv((1, 2, lengths[0], 8), (1, 2, lengths[1], 8))
    out, lse = quire.flex_attention(q, k, v, return_lse=True)
    assert out.shape == (1, 2, lengths[0], 8) and not out.any() and np.isneginf(lse).all()


def test_mods_and_mask():
    q, k, v = qkv((2, 4, 70, 16), (2, 2, 90, 16))
    slopes = np.array([0.5, 0.25, 0.125, 0.0625])
    buffer = quire.Buffer(slopes, "slopes")
    mask = quire.create_block_mask(lambda b, h, q, kv: (q + 20 >= kv) & (kv % 7 != b), 2, None, 70, 90, 16)
    out, aux = quire.flex_attention(
        q,
        k,
        v,
        lambda s, b, h, q_idx, kv_idx: s + buffer[h] * (kv_idx - q_idx),
        mask,
        0.3,
        True,
        return_aux=quire.AuxRequest(lse=True, max_scores=True),
    )
    reference = dict(
        score_mod=lambda s, b, h, q, kv: s + slopes[h] * (kv - q),
        mask_mod=lambda b, h, q, kv: (q + 20 >= kv) & (kv % 7 != b),
        scale=0.3,
    )
    assert_as_good_as_naive(out, q, k, v, **reference)
    exact = attention(q, k, v, **reference)
    assert aux.lse.dtype == aux.max_scores.dtype == np.float32
    np.testing.assert_allclose(aux.lse, exact[1], rtol=3e-6, atol=1e-5)
    np.testing.assert_allclose(aux.max_scores, exact[2], rtol=3e-6, atol=1e-5)


def test_a_row_that_sees_nothing():
    q, k, v = qkv((1, 1, 4, 8), (1, 1, 6, 8))
    v[0, 0, 5] = np.nan  # hidden, so it must not matter
    mask = quire.create_block_mask(lambda b, h, q, kv: (q > 1) & (kv < 5), None, None, 4, 6)
    out, aux = quire.flex_attention(q, k, v, block_mask=mask, return_aux=quire.AuxRequest(True, True))
    assert not out[0, 0, :2].any() and np.isfinite(out).all()
    assert np.isneginf(aux.lse[0, 0, :2]).all() and np.isneginf(aux.max_scores[0, 0, :2]).all()


def test_what_is_returned():
    q, k, v = qkv((1, 2, 5, 8), (1, 2, 6, 8))
    plain = quire.flex_attention(q, k, v)
    out, lse = quire.flex_attention(q, k, v, return_lse=True)
    np.testing.assert_array_equal(plain, out)
    np.testing.assert_allclose(lse, attention(q, k, v)[1], rtol=1e-5)
    out, aux = quire.flex_attention(q, k, v, return_aux=quire.AuxRequest())
    assert isinstance(aux, quire.AuxOutput) and aux == (None, None)
    double = quire.flex_attention(q.astype(float), k, v, return_lse=True)
    assert double[0].dtype == double[1].dtype == np.float64
    with pytest.raises(ValueError, match=r"\[flex_attention\] return_lse and return_aux cannot be given both"):
        quire.flex_attention(q, k, v, return_lse=True, return_aux=quire.AuxRequest())


def test_kernel_options():
    q, k, v = qkv((1, 1, 5, 8), (1, 1, 6, 8))
    expected = quire.flex_attention(q, k, v)
    np.testing.assert_array_equal(
        quire.flex_attention(q, k, v, kernel_options={"BLOCK_M": 64, "BACKEND": "TRITON"}), expected
    )
    with pytest.raises(ValueError, match=r"BACKEND must be one of .*; got 'CUDA'"):
        quire.flex_attention(q, k, v, kernel_options={"BACKEND": "CUDA"})


def test_one_key_batch_for_all():
    q, k, v = qkv((3, 2, 10, 8), (1, 2, 30, 8))
    mod = lambda b, h, q, kv: kv // 10 == b  # noqa: E731
    mask = quire.create_block_mask(mod, 3, None, 10, 30, 8)
    assert_as_good_as_naive(quire.flex_attention(q, k, v, block_mask=mask), q, k, v, mask_mod=mod)


def test_q_begin():
    q, k, v = qkv((2, 1, 40, 8), (2, 1, 40, 8))
    alibi = mods.alibi([0.5])
    whole = quire.flex_attention(q, k, v, alibi)
    np.testing.assert_array_equal(quire.flex_attention(q[:, :, 30:], k, v, alibi, q_begin=30), whole[:, :, 30:])
    np.testing.assert_array_equal(quire.flex_attention(q[:, :, 30:], k, v, alibi, q_begin=[30, 30]), whole[:, :, 30:])
    mask = quire.create_block_mask(mods.causal(), None, None, 40, 40, 16)
    whole = quire.flex_attention(q, k, v, block_mask=mask)
    np.testing.assert_array_equal(
        quire.flex_attention(q[:, :, 30:], k, v, block_mask=mask.rows(30, 40)), whole[:, :, 30:]
    )
    with pytest.raises(ValueError, match="may not be empty"):
        quire.flex_attention(q, k, v, q_begin=[])


def test_forward_writes_into_any_strides():
    q, k, v = qkv((1, 3, 20, 8), (1, 3, 20, 8))
    expected = quire.flex_attention(q, k, v)
    memory = np.full((1, 20, 3, 16), 7, np.float32)
    out = memory.transpose(0, 2, 1, 3)[..., ::2]
    view = quire._core.view
    quire._core.attention(quire._core.Options(), view(q), view(k), view(v), view(out))
    np.testing.assert_array_equal(out, expected)
    assert (memory[..., 1::2] == 7).all()


dims = st.integers(1, 20)


@settings(max_examples=runs(60))
@given(
    batch=st.integers(1, 2),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    q_len=st.integers(1, 40),
    kv_len=st.integers(1, 70),
    e=dims,
    ev=dims,
    dtypes=st.tuples(*[st.sampled_from(DTYPES)] * 3),
    order=st.permutations(range(4)),
    step=st.sampled_from([1, 2, -1]),
    has_mask=st.booleans(),
    seed=st.integers(0, 9),
)
def test_random_calls(batch, kv_heads, group, q_len, kv_len, e, ev, dtypes, order, step, has_mask, seed):
    """Shapes, dtypes (mixed), axis orders, steps and heads of any kind."""
    q, k, v = (
        one.astype(dtype)
        for one, dtype in zip(
            qkv((batch, kv_heads * group, q_len, e), (batch, kv_heads, kv_len, e), ev, np.float64, seed), dtypes
        )
    )
    inverse = np.argsort(order)
    q = np.ascontiguousarray(q.transpose(order)).transpose(inverse)
    v = (
        np.repeat(v, 2, axis=2)[:, :, ::2]
        if step == 2
        else np.ascontiguousarray(v[:, :, ::-1])[:, :, ::-1]
        if step == -1
        else v
    )
    mask, mod = None, None
    if has_mask:
        mod = lambda b, h, q, kv: (q + 5 >= kv) | (kv % 3 == 0)  # noqa: E731
        mask = quire.create_block_mask(mod, None, None, q_len, kv_len, (8, 16))
    softcap = mods.softcap(3.0) if seed % 2 else None
    out = quire.flex_attention(q, k, v, softcap, mask, enable_gqa=True)
    assert out.dtype == q.dtype
    reference = (lambda s, b, h, q, kv: s.dtype.type(3) * np.tanh(s / s.dtype.type(3))) if softcap else None
    assert_as_good_as_naive(out, q, k, v, mask_mod=mod, score_mod=reference)


def test_bits_do_not_depend_on_threads_or_batch(threads):
    q, k, v = qkv((3, 4, 50, 16), (3, 4, 60, 16))
    mask = quire.create_block_mask(mods.causal_bottom_right(50, 60), None, None, 50, 60, 16)
    quire.set_num_threads(1)
    one = quire.flex_attention(q, k, v, block_mask=mask)
    quire.set_num_threads(3)
    np.testing.assert_array_equal(quire.flex_attention(q, k, v, block_mask=mask), one)
    np.testing.assert_array_equal(quire.flex_attention(q[1:2], k[1:2], v[1:2], block_mask=mask), one[1:2])


@pytest.mark.parametrize("isa", quire.info()["available_isas"])
def test_every_isa_gives_the_same_bits(isa):
    q, k, v = qkv((1, 2, 33, 20), (1, 2, 47, 20))
    expected = quire.flex_attention(q, k, v, mods.softcap(2.0))
    try:
        quire.force_isa(isa)
        assert quire.info()["isa"] == isa
        np.testing.assert_array_equal(quire.flex_attention(q, k, v, mods.softcap(2.0)), expected)
    finally:
        quire.force_isa(None)


ERRORS = {
    "rank": (
        lambda q, k, v: quire.flex_attention(q[0], k, v),
        ValueError,
        r"query, key and value must be \[batch, heads, length, dim\]; got \[2, 6, 8\]",
    ),
    "value_rank": (lambda q, k, v: quire.flex_attention(q, k, v[0]), ValueError, "query, key and value must be"),
    "dims": (lambda q, k, v: quire.flex_attention(q[..., :4], k, v), ValueError, "the same head dim; got 4 and 8"),
    "heads": (
        lambda q, k, v: quire.flex_attention(q, k[:, :1], v[:, :1]),
        ValueError,
        "same number of heads, or enable_gqa must be set; got 2 and 1",
    ),
    "groups": (
        lambda q, k, v: quire.flex_attention(q[:, [0, 1, 0]], k, v, enable_gqa=True),
        ValueError,
        "q_heads must be a multiple of kv_heads; got 3 and 2",
    ),
    "batch": (
        lambda q, k, v: quire.flex_attention(q[[0, 0]], k, v),
        ValueError,
        "a key batch of 1 for a query batch of 2 needs a block mask",
    ),
    "dtype": (
        lambda q, k, v: quire.flex_attention(q.astype(int), k, v),
        TypeError,
        "query must be f32, f64, bf16 or f16; got i64",
    ),
    "scale": (lambda q, k, v: quire.flex_attention(q, k, v, scale=math.inf), ValueError, "scale must be finite"),
    "mask_length": (
        lambda q, k, v: quire.flex_attention(
            q, k, v, block_mask=quire.create_block_mask(mods.causal(), None, None, 6, 9)
        ),
        ValueError,
        "block_mask was created for 6 queries and 9 keys; got 6 and 7",
    ),
    "index": (
        lambda q, k, v: quire.flex_attention(q, k, v, quire.ScoreMod("score + t[kv_idx]", {"t": np.zeros(6)})),
        IndexError,
        "index 6 is outside buffer 't' of size 6",
    ),
    "mask_type": (
        lambda q, k, v: quire.flex_attention(q, k, v, block_mask=mods.causal()),
        TypeError,
        "block_mask must be a BlockMask, from create_block_mask",
    ),
    "isa": (lambda q, k, v: quire.force_isa("z80"), ValueError, "no ISA has this name; got 'z80'"),
    "threads": (lambda q, k, v: quire.set_num_threads(0), ValueError, "0"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_by_kind(name):
    call, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        call(*qkv((1, 2, 6, 8), (1, 2, 7, 8)))


def test_evaluate():
    scores = np.zeros((1, 1, 2, 3), np.float32)
    out = quire.evaluate(quire.ScoreMod("score + 10 * q_idx + kv_idx"), scores, q_begin=1, kv_begin=5)
    np.testing.assert_array_equal(out[0, 0], [[15, 16, 17], [25, 26, 27]])
    assert out.dtype == np.float32
    np.testing.assert_array_equal(quire.evaluate(lambda b, h, q, kv: q == kv, (1, 1, 2, 2))[0, 0], np.eye(2))
    np.testing.assert_array_equal(quire.evaluate(lambda s, b, h, q, kv: s + 1, scores), scores + 1)
    with pytest.raises(TypeError):
        quire.evaluate(quire.ScoreMod("score"), scores.astype(int))

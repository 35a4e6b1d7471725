"""scaled_dot_product_attention over arrays: against NumPy in f64, its dropout, and the backends with their reasons."""

import threading

import ml_dtypes
import numpy as np
import pytest
import quire
from numpy_reference import assert_as_good_as_naive

SDPA = quire.scaled_dot_product_attention
FLASH, EFFICIENT, MATH = (
    quire.SDPBackend.FLASH_ATTENTION,
    quire.SDPBackend.EFFICIENT_ATTENTION,
    quire.SDPBackend.MATH,
)


def qkv(batch=2, q_heads=4, kv_heads=4, q_len=37, kv_len=53, dim=16, v_dim=24, dtype=np.float32, seed=0):
    random = np.random.default_rng(seed)
    shapes = (batch, q_heads, q_len, dim), (batch, kv_heads, kv_len, dim), (batch, kv_heads, kv_len, v_dim)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("q_heads", [4, 8])
def test_as_good_as_numpy(dtype, q_heads):
    q, k, v = qkv(q_heads=q_heads, dtype=dtype)
    assert_as_good_as_naive(SDPA(q, k, v, enable_gqa=True), q, k, v)
    out = SDPA(q, k, v, is_causal=True, scale=0.5, enable_gqa=True)
    assert_as_good_as_naive(out, q, k, v, mask_mod=lambda b, h, x, y: x >= y, scale=0.5)
    out = SDPA(q, k, v, is_causal=True, alignment="bottom_right", enable_gqa=True)
    assert_as_good_as_naive(out, q, k, v, mask_mod=lambda b, h, x, y: x + 53 - 37 >= y)


@pytest.mark.parametrize(
    "shape", [(37, 53), (1, 53), (37, 1), (4, 1, 53), (2, 1, 1, 53), (2, 4, 37, 53), (1, 4, 37, 1)]
)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_broadcast(shape, kind):
    q, k, v = qkv()
    random = np.random.default_rng(1)
    visible = random.random(shape) < 0.7
    whole = np.broadcast_to(visible, (2, 4, 37, 53))
    if kind == "bool":
        assert_as_good_as_naive(SDPA(q, k, v, visible), q, k, v, mask_mod=lambda b, h, x, y: whole[b, h, x, y])
        return
    added = np.where(visible, random.standard_normal(shape), -np.inf).astype(np.float32)
    wide = np.broadcast_to(added, whole.shape)
    out = SDPA(q, k, v, added)
    assert_as_good_as_naive(out, q, k, v, score_mod=lambda s, b, h, x, y: s + wide[b, h, x, y])


def test_rules_are_masks():
    q, k, v = qkv()
    want = SDPA(q, k, v, is_causal=True)
    assert same_bits(SDPA(q, k, v, quire.mods.causal()), want)
    assert same_bits(SDPA(q, k, v, "q_idx >= kv_idx"), want)
    assert same_bits(SDPA(q, k, v, lambda b, h, q_idx, kv_idx: q_idx >= kv_idx), want)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)])
def test_any_rank(lead):
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((*lead, n, 8)).astype(np.float32) for n in (7, 9, 9))
    out = SDPA(q, k, v, is_causal=True)
    assert out.shape == (*lead, 7, 8)
    whole = [one.reshape(-1, 1, *one.shape[-2:]) for one in (q, k, v)]
    assert same_bits(out.reshape(-1, 1, 7, 8), SDPA(*whole, is_causal=True))


def test_size_1_is_broadcast_and_strides_do_not_matter():
    q, k, v = qkv()
    one_k, one_v = k[:1, :1], v[:1, :1]
    want = SDPA(q, np.tile(one_k, (2, 4, 1, 1)), np.tile(one_v, (2, 4, 1, 1)))
    assert same_bits(SDPA(q, one_k, one_v), want)
    turned = q.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)
    assert same_bits(SDPA(turned, k, v), SDPA(q, k, v))
    none = np.zeros((2, 4, 0, 16), np.float32)
    assert not SDPA(q, none, none).any()


# ---- dropout


def weights(p, seed, q_len=64, kv_len=128, **options):
    """The weights of queries that see all keys alike, after dropout: [2, 3, q_len, kv_len]."""
    q, k = np.zeros((2, 3, q_len, 8), np.float32), np.zeros((2, 3, kv_len, 8), np.float32)
    v = np.broadcast_to(np.eye(kv_len, dtype=np.float32), (2, 3, kv_len, kv_len))
    return SDPA(q, k, v, dropout_p=p, seed=seed, **options) * kv_len


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_its_share_and_scales_the_rest(p):
    found = weights(p, 7)
    dropped = found == 0
    n = found.size
    assert abs(dropped.sum() - n * p) < 5 * np.sqrt(n * p * (1 - p))
    np.testing.assert_allclose(found[~dropped], 1 / (1 - p), rtol=1e-5)


def test_dropout_depends_on_seed_and_position_alone(threads):
    found = weights(0.5, 7)
    assert same_bits(weights(0.5, 7), found)
    assert not same_bits(weights(0.5, 8), found)
    assert not same_bits(weights(0.5, 7 + (1 << 32)), found)  # all 64 bits count
    quire.set_num_threads(1)
    assert same_bits(weights(0.5, 7), found)
    quire.set_num_threads(7)
    assert same_bits(weights(0.5, 7), found)
    assert len({found[b, h].tobytes() for b in range(2) for h in range(3)}) == 6
    # Fewer queries or keys: the same weights are dropped.
    assert np.array_equal(weights(0.5, 7, q_len=1) == 0, found[:, :, :1] == 0)
    assert np.array_equal(weights(0.5, 7, kv_len=32) == 0, found[..., :32] == 0)
    with quire.sdpa_kernel(MATH):
        assert np.array_equal(weights(0.5, 7) == 0, found == 0)


def test_dropout_of_nothing_and_of_everything():
    q, k, v = qkv()
    assert same_bits(SDPA(q, k, v, dropout_p=0.0, seed=3), SDPA(q, k, v))
    assert not SDPA(q, k, v, dropout_p=1.0, seed=3).any()
    assert not same_bits(SDPA(q, k, v, dropout_p=0.5), SDPA(q, k, v, dropout_p=0.5))  # a new seed each


# ---- jagged


def jagged(lengths, heads=2, dim=16, seed=0):
    random = np.random.default_rng(seed)
    return quire.Jagged.pack([random.standard_normal((n, heads, dim)).astype(np.float32) for n in lengths])


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"is_causal": True, "alignment": "bottom_right"}])
def test_jagged_is_each_sequence_alone(options):
    q, kv = jagged([5, 0, 130, 17], heads=4), jagged([9, 4, 100, 0])
    out = SDPA(q, kv, kv, enable_gqa=True, **options)
    assert isinstance(out, quire.Jagged) and out.offsets is q.offsets
    for i in range(len(q)):
        parts = [one[i].transpose(1, 0, 2)[None] for one in (q, kv, kv)]
        want = SDPA(*parts, enable_gqa=True, **options)
        assert same_bits(np.ascontiguousarray(out[i].transpose(1, 0, 2)[None]), want), i


def test_jagged_masks_are_rules_and_dropout_counts_sequences():
    q = jagged([40, 30, 40])
    rule = quire.MaskMod(lambda b, h, q_idx, kv_idx: q_idx + b >= kv_idx)
    assert same_bits(SDPA(q, q, q, rule).values, quire.flex_attention(q, q, q, mask_mod=rule).values)
    with pytest.raises(ValueError, match="attn_mask of a jagged batch must be a rule; got a tensor"):
        SDPA(q, q, q, np.ones((40, 40), bool))
    zero = quire.Jagged(np.zeros_like(q.values), q.offsets)
    ones = quire.Jagged(np.ones_like(q.values), q.offsets)
    out = SDPA(zero, zero, ones, dropout_p=0.5, seed=1)
    assert same_bits(out.values, SDPA(zero, zero, ones, dropout_p=0.5, seed=1).values)
    assert not np.array_equal(out[0], out[2])
    dense = [one.values[:40].transpose(1, 0, 2)[None] for one in (zero, zero, ones)]
    assert np.array_equal(out[0].transpose(1, 0, 2)[None], SDPA(*dense, dropout_p=0.5, seed=1))


# ---- backends


def test_flash_and_efficient_are_the_same_and_math_is_near():
    q, k, v = qkv()
    want = SDPA(q, k, v, is_causal=True)
    for backend in (FLASH, EFFICIENT):
        with quire.sdpa_kernel(backend):
            assert quire.choose_backend(q, k, v) == backend
            assert same_bits(SDPA(q, k, v, is_causal=True), want)
    with quire.sdpa_kernel([MATH]):
        assert quire.choose_backend(q, k, v) is MATH
        np.testing.assert_allclose(SDPA(q, k, v, is_causal=True), want, atol=1e-5)


def test_the_choice_is_ordered_and_explained():
    q, k, v = qkv()
    mask = np.ones((37, 53), bool)
    doubles = [one.astype(np.float64) for one in (q, k, v)]
    assert quire.choose_backend(q, k, v) is quire.choose_backend(*doubles, mask) is FLASH
    assert quire.why_not(FLASH, q, k, v) == quire.why_not(FLASH, *doubles, mask) == []
    wide = quire.Jagged(np.ones((10, 2, 1025)), np.array([0, 4, 10]))
    text = "takes head dims of 0 to 1024; got 1025 for query and key and 1025 for value."
    assert quire.why_not(FLASH, wide, wide, wide) == [f"FLASH_ATTENTION {text}"]
    assert quire.choose_backend(wide, wide, wide) is MATH
    with quire.sdpa_kernel(FLASH):
        (reason,) = quire.why_not(MATH, q, k, v)
    assert reason == "MATH is not among the backends that may be used."


def test_none_is_left():
    q, k, v = (np.ones((1, 1, 3, 1025), np.float32) for _ in range(3))
    with quire.sdpa_kernel([]):
        assert quire.choose_backend(q, k, v) is quire.SDPBackend.ERROR
        with pytest.raises(RuntimeError, match="No viable backend for scaled_dot_product_attention was found"):
            SDPA(q, k, v)
    with quire.sdpa_kernel(FLASH):
        assert quire.choose_backend(q, k, v) is quire.SDPBackend.ERROR
        with pytest.raises(RuntimeError, match="head dims of 0 to 1024"):
            SDPA(q, k, v)
    assert quire.choose_backend(q, k, v) is MATH


def test_without_channels_a_row_is_the_mean_of_the_values():
    q, k = np.zeros((2, 3, 4, 0), np.float32), np.zeros((2, 3, 5, 0), np.float32)
    v = np.random.default_rng(0).standard_normal((2, 3, 5, 8), np.float32)
    mean = np.broadcast_to(v.mean(2, keepdims=True), (2, 3, 4, 8))
    np.testing.assert_allclose(SDPA(q, k, v), mean, atol=1e-6)
    np.testing.assert_allclose(quire.flex_attention(q, k, v), mean, atol=1e-6)
    with quire.sdpa_kernel(MATH):
        np.testing.assert_allclose(SDPA(q, k, v), mean, atol=1e-6)


def test_restrictions_nest_and_belong_to_a_thread():
    q, k, v = qkv()
    seen = []
    with quire.sdpa_kernel([EFFICIENT, MATH]):
        with quire.sdpa_kernel(MATH):
            assert quire.choose_backend(q, k, v) is MATH
        assert quire.choose_backend(q, k, v) is EFFICIENT
        other = threading.Thread(target=lambda: seen.append(quire.choose_backend(q, k, v)))
        other.start()
        other.join()
        with pytest.raises(KeyError), quire.sdpa_kernel(MATH):
            raise KeyError
        assert quire.choose_backend(q, k, v) is EFFICIENT
    assert seen == [FLASH]
    with pytest.raises(ValueError), quire.sdpa_kernel(5):
        pass


# ---- errors


def test_errors():
    q, k, v = qkv()
    with pytest.raises(RuntimeError, match="must have the same dtype; got f32, f64 and f32"):
        SDPA(q, k.astype(np.float64), v)
    with pytest.raises(ValueError, match="must have the same head dim; got 16 and 8"):
        SDPA(q, k[..., :8], v)
    with pytest.raises(ValueError, match="key and value must have the same length; got 53 and 9"):
        SDPA(q, k, v[:, :, :9])
    with pytest.raises(ValueError, match="q_heads must be a multiple of kv_heads; got 4 and 3"):
        SDPA(q, k[:, :3], v[:, :3], enable_gqa=True)
    with pytest.raises(ValueError, match="dropout_p must be in 0..1; got 1.5"):
        SDPA(q, k, v, dropout_p=1.5)
    with pytest.raises(ValueError, match="Explicit attn_mask should not be set when is_causal=True"):
        SDPA(q, k, v, np.ones((37, 53), bool), is_causal=True)
    with pytest.raises(ValueError, match="attn_mask must broadcast to"):
        SDPA(q, k, v, np.ones((36, 53), bool))
    with pytest.raises(ValueError, match="alignment"):
        SDPA(q, k, v, is_causal=True, alignment="middle")
    with pytest.raises(ValueError, match="seed"):
        SDPA(q, k, v, dropout_p=0.5, seed=-1)
    with pytest.raises(TypeError, match="all be Jagged"):
        SDPA(jagged([3]), k, v)

"""Sinks, weights by a formula and rotation on read over arrays: values against NumPy, gradients by differences, errors."""

import ml_dtypes
import numpy as np
import pytest
import quire

RANDOM = np.random.default_rng(5)
Q, K, V = (RANDOM.standard_normal((1, heads, 40, 16)) for heads in (4, 2, 2))
SINKS = RANDOM.standard_normal(4)


def scores():
    return Q @ np.repeat(K, 2, 1).swapaxes(2, 3) / 4


def values():
    return np.repeat(V, 2, 1)


def test_sinks_take_their_share():
    weights = np.exp(scores())
    total = weights.sum(-1, keepdims=True) + np.exp(SINKS)[:, None, None]
    out, lse = quire.flex_attention(Q, K, V, enable_gqa=True, sinks=SINKS, return_lse=True, lse_with_sinks=True)
    assert np.allclose(out, weights / total @ values(), atol=1e-12)
    assert np.allclose(lse, np.log(total[..., 0]), atol=1e-12)
    _, plain = quire.flex_attention(Q, K, V, enable_gqa=True, sinks=SINKS.astype(ml_dtypes.bfloat16), return_lse=True)
    assert np.array_equal(plain, quire.flex_attention(Q, K, V, enable_gqa=True, return_lse=True)[1])


def test_weights_by_a_formula():
    out = quire.flex_attention(Q, K, V, "score * 2.0", enable_gqa=True, weight_mod="sigmoid(score)")
    assert np.allclose(out, 1 / (1 + np.exp(-2 * scores())) @ values(), atol=1e-12)
    weights = np.maximum(scores(), 0)
    out = quire.flex_attention(
        Q, K, V, enable_gqa=True, weight_mod=lambda score, *_: quire.relu(score), normalize="sum"
    )
    assert np.allclose(out, weights / weights.sum(-1, keepdims=True) @ values(), atol=1e-12)


def rotated(x, begin=0, theta=10000.0, interleaved=False):
    half = x.shape[-1] // 2
    angles = (begin + np.arange(x.shape[2]))[:, None] * theta ** (-np.arange(half) / half)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    turned = a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)
    return np.stack(turned, -1).reshape(x.shape) if interleaved else np.concatenate(turned, -1)


LISTS = np.stack([np.arange(40), (np.arange(40) + 5) % 40, np.full(40, -1)], -1)[None].astype(np.int32)
SDPA_HOOKS = [
    dict(sinks=SINKS),
    dict(key_indices=LISTS),
    dict(weight_mod="relu(score) + 0.1", normalize="sum"),
    dict(rope=quire.Rope(theta=100.0)),
]


@pytest.mark.parametrize("hooks", SDPA_HOOKS, ids=lambda hooks: next(iter(hooks)))
def test_scaled_dot_product_attention_has_them(hooks):
    causal = quire.create_block_mask("q_idx >= kv_idx", None, None, 40, 40)
    want = quire.flex_attention(Q, K, V, block_mask=causal, enable_gqa=True, **hooks)
    got = quire.scaled_dot_product_attention(Q, K, V, is_causal=True, enable_gqa=True, **hooks)
    assert np.array_equal(got, want)
    with quire.sdpa_kernel(quire.SDPBackend.MATH):
        exact = quire.scaled_dot_product_attention(Q, K, V, is_causal=True, enable_gqa=True, **hooks)
    assert np.allclose(got, exact, atol=1e-12)


def test_key_weights_of_a_formula():
    request = quire.AuxRequest(key_weights=True)
    for q in (Q, Q[:, :, :1]):
        weights = np.maximum(q @ np.repeat(K, 2, 1).swapaxes(2, 3) / 4, 0)
        _, aux = quire.flex_attention(q, K, V, enable_gqa=True, weight_mod="relu(score)", return_aux=request)
        assert np.allclose(aux.key_weights, weights.sum(2), atol=1e-12)
        _, aux = quire.flex_attention(
            q, K, V, enable_gqa=True, weight_mod="relu(score)", normalize="sum", return_aux=request
        )
        assert np.allclose(aux.key_weights, (weights / weights.sum(-1, keepdims=True)).sum(2), atol=1e-12)
    with pytest.raises(ValueError, match="entropy is of weights that sum up to 1; there is none with weight_mod"):
        quire.flex_attention(
            Q, K, V, enable_gqa=True, weight_mod="relu(score)", return_aux=quire.AuxRequest(entropy=True)
        )


@pytest.mark.parametrize("q_len", [1, 40])
def test_rope_over_hadamard_keys_is_over_what_they_decode_to(q_len):
    q, k, v = (x[:, :, :n].astype(np.float32) for x, n in ((Q, q_len), (K, 40), (V, 40)))
    coded = quire.quantize(k, "int8", hadamard=True)
    for rope in (quire.Rope(theta=100.0), quire.Rope(theta=100.0, dims=8, interleaved=True)):
        got = quire.flex_attention(q, coded, v, enable_gqa=True, rope=rope, q_begin=40 - q_len)
        want = quire.flex_attention(q, quire.dequantize(coded), v, enable_gqa=True, rope=rope, q_begin=40 - q_len)
        assert np.allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_is_rotating_first(interleaved):
    want = quire.flex_attention(
        rotated(Q, 7, 500.0, interleaved), rotated(K, 0, 500.0, interleaved), V, enable_gqa=True
    )
    rope = quire.Rope(theta=500.0, interleaved=interleaved)
    assert np.allclose(quire.flex_attention(Q, K, V, enable_gqa=True, q_begin=7, rope=rope), want, atol=1e-12)
    angles = np.arange(47)[:, None] * 500.0 ** (-np.arange(8) / 8)
    tables = quire.Rope(cos=np.cos(angles), sin=np.sin(angles), interleaved=interleaved)
    assert np.allclose(quire.flex_attention(Q, K, V, enable_gqa=True, q_begin=7, rope=tables), want, atol=1e-12)


HOOKS = {
    "sinks": lambda x: dict(sinks=x),
    "sinks in lse": lambda x: dict(sinks=x, lse_with_sinks=True),
    "sigmoid": lambda x: dict(weight_mod=quire.ScoreMod("sigmoid(score + x[h])", {"x": x})),
    "relu": lambda x: dict(weight_mod=quire.ScoreMod("relu(score + x[h]) + 0.1", {"x": x}), normalize="sum"),
    "rope": lambda x: dict(rope=quire.Rope(dims=10)),
}


@pytest.mark.parametrize("name", HOOKS)
def test_gradients_are_differences(name):
    d_out, d_lse = RANDOM.standard_normal(Q.shape), RANDOM.standard_normal(Q.shape[:3])
    lse = quire.AuxRequest(lse=True)

    def loss(q, k, v, x):
        out, aux = quire.flex_attention(q, k, v, enable_gqa=True, **HOOKS[name](x), return_aux=lse)
        return (out * d_out).sum() + (aux.lse * d_lse).sum()

    _, vjp = quire.flex_attention_vjp(Q, K, V, enable_gqa=True, **HOOKS[name](SINKS))
    d = vjp(d_out, d_lse)
    found = [d.query, d.key, d.value, d.sinks if d.sinks is not None else d.weight_buffers.get("x")]
    inputs = [Q, K, V, SINKS]
    for i, gradient in enumerate(found):
        if gradient is None:
            continue
        step = RANDOM.standard_normal(inputs[i].shape)
        sides = []
        for sign in (1, -1):
            moved = list(inputs)
            moved[i] = inputs[i] + sign * 1e-6 * step
            sides.append(loss(*moved))
        assert np.isclose((sides[0] - sides[1]) / 2e-6, (gradient * step).sum(), rtol=1e-5, atol=1e-6), i


def test_attend_and_plans_have_the_bits_of_flex_attention():
    q, k, v = (x.astype(np.float32) for x in (Q, K, V))
    for name in HOOKS:
        hooks = HOOKS[name](SINKS.astype(np.float32))
        causal = quire.create_block_mask("q_idx >= kv_idx", None, None, 40, 40)
        want = quire.flex_attention(q, k, v, block_mask=causal, enable_gqa=True, **hooks)
        plan, out = quire.AttentionPlan(q, k, v, block_mask=causal, enable_gqa=True, **hooks), np.empty_like(q)
        assert np.array_equal(plan.run(q, k, v, out=out), want)
        cache = quire.KVCache(layers=1, kv_heads=2, head_dim=16, page_size=8, n_pages=8)
        sequence = cache.create()
        cache.append(sequence, counts=40, k=k.swapaxes(1, 2), v=v.swapaxes(1, 2))
        last = np.ascontiguousarray(q[0, :, -3:].swapaxes(0, 1))
        got = quire.attend(cache, 0, sequence, last, **hooks)
        assert np.array_equal(got, want[0, :, -3:].swapaxes(0, 1)), name
        step = quire.AttendPlan(cache, sequence, q_heads=4, counts=3, **hooks)
        assert np.array_equal(step.run(0, last, out=np.empty_like(last)), got), name


def test_errors_name_what_is_wrong():
    def refused(kind, text, **hooks):
        with pytest.raises(kind) as error:
            quire.flex_attention(Q, K, V, enable_gqa=True, **hooks)
        assert text in str(error.value), str(error.value)

    refused(ValueError, "sinks must be one number per query head, [4]; got [3]", sinks=np.zeros(3))
    refused(TypeError, "sinks must be f32, f64, bf16 or f16; got i64", sinks=np.zeros(4, np.int64))
    refused(ValueError, "normalize must be None or 'sum'; got 'mean'", weight_mod="score", normalize="mean")
    refused(ValueError, "normalize is for weight_mod, and there is none", normalize="sum")
    refused(ValueError, "give sinks or weight_mod, not both", sinks=SINKS, weight_mod="score")
    refused(ValueError, "lse_with_sinks is set, and there are no sinks", lse_with_sinks=True)
    refused(TypeError, "rope must be a Rope; got float 10000.0", rope=10000.0)
    refused(ValueError, "dims of rope must be positive; got 0", rope=quire.Rope(dims=0))
    refused(ValueError, "an even number of dims, at most the head dim, 16; got 18", rope=quire.Rope(dims=18))
    refused(ValueError, "rope needs cos and sin, or neither", rope=quire.Rope(cos=np.ones((40, 8))))

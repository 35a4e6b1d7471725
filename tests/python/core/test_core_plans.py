"""quire.AttentionPlan, quire.AttentionBackwardPlan and quire.AttendPlan: the bits of the calls they plan, run after run, into
arrays of the caller's."""

import numpy as np
import pytest
import quire

RANDOM = np.random.default_rng(7)


def normal(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def causal(length):
    return quire.create_block_mask("q_idx >= kv_idx", None, None, length, length)


def test_dense_layers_have_the_bits_of_flex_attention():
    layers = [(normal(2, 4, 70, 32), normal(2, 2, 70, 32), normal(2, 2, 70, 24)) for _ in range(3)]
    options = dict(score_mod="score - 0.1 * abs(q_idx - kv_idx)", block_mask=causal(70), enable_gqa=True)
    plan = quire.AttentionPlan(*layers[0], **options)
    out = np.empty((2, 4, 70, 24), np.float32)
    lse = np.empty((2, 4, 70), np.float32)
    most = np.empty_like(lse)
    for q, k, v in layers:
        assert plan.run(q, k, v, out=out, lse=lse, max_scores=most) is out
        want, aux = quire.flex_attention(q, k, v, **options, return_aux=quire.AuxRequest(lse=True, max_scores=True))
        assert np.array_equal(out, want)
        assert np.array_equal(lse, aux.lse) and np.array_equal(most, aux.max_scores)
    assert plan.scratch_bytes > 0


def test_other_strides_and_wide_output():
    q, k, v = normal(3, 1, 2, 40, 16).astype(np.float16)
    plan = quire.AttentionPlan(q, k, v)
    wide = np.empty((1, 2, 40, 16), np.float32)
    plan.run(q, k, v, out=wide)
    other = np.ascontiguousarray(q.swapaxes(1, 2)).swapaxes(1, 2)
    out = np.empty_like(other)
    plan.run(other, k, v, out=out)
    assert np.array_equal(out, wide.astype(np.float16))


def test_captured_arrays_are_read_at_every_run():
    q, k, v = normal(3, 1, 2, 30, 16)
    bias = np.zeros(30, np.float32)
    mod = quire.ScoreMod("score + bias[kv_idx]", {"bias": bias})
    plan, out = quire.AttentionPlan(q, k, v, mod), np.empty_like(q)
    first = plan.run(q, k, v, out=out).copy()
    bias[:10] = 5
    plan.run(q, k, v, out=out)
    assert not np.array_equal(out, first)
    assert np.array_equal(out, quire.flex_attention(q, k, v, mod))


def test_jagged():
    tokens = [quire.Jagged.pack([normal(n, 2, 16) for n in (5, 1, 30)]) for _ in range(3)]
    plan = quire.AttentionPlan(*tokens, mask_mod="q_idx >= kv_idx")
    out = np.empty((36, 2, 16), np.float32)
    plan.run(*tokens, out=out)
    assert np.array_equal(out, quire.flex_attention(*tokens, mask_mod="q_idx >= kv_idx").values)


def test_dropout_is_the_same_at_every_run():
    q, k, v = normal(3, 1, 2, 30, 16)
    plan = quire.AttentionPlan(q, k, v, "score * 2.0", dropout_p=0.5, seed=3)
    a, b = np.empty_like(q), np.empty_like(q)
    plan.run(q, k, v, out=a)
    plan.run(q, k, v, out=b)
    assert np.array_equal(a, b)
    assert np.array_equal(a, quire.flex_attention(q, k, v, "score * 2.0", dropout_p=0.5, seed=3))
    assert not np.array_equal(a, quire.flex_attention(q, k, v, "score * 2.0", dropout_p=0.5, seed=4))


def gradients_of(plan, inputs, results, d_out, **options):
    d_inputs = [np.full_like(one, 7) for one in inputs]
    names = ("d_query", "d_key", "d_value")
    plan.run(*inputs, out=results[0], lse=results[1], d_out=d_out, **dict(zip(names, d_inputs)), **options)
    return d_inputs


def test_backward_layers_have_the_bits_of_vjp():
    bias = normal(70)
    mod = quire.ScoreMod("score + bias[kv_idx]", {"bias": bias})
    options = dict(score_mod=mod, block_mask=causal(70), enable_gqa=True, dropout_p=0.25, seed=5)
    shapes = (2, 4, 70, 32), (2, 2, 70, 32), (2, 2, 70, 24)
    plan = quire.AttentionBackwardPlan(*(np.zeros(one, np.float32) for one in shapes), **options)
    for _ in range(2):
        inputs, d_out = [normal(*one) for one in shapes], normal(2, 4, 70, 24)
        out, aux = quire.flex_attention(*inputs, **options, return_aux=quire.AuxRequest(lse=True))
        d_bias = np.empty_like(bias)
        got = gradients_of(plan, inputs, (out, aux.lse), d_out, d_buffers={"bias": d_bias})
        want = quire.flex_attention_vjp(*inputs, **options)[1](d_out)
        assert all(np.array_equal(*pair) for pair in zip(got, want[:3]))
        assert np.array_equal(d_bias, want.buffers["bias"])
    assert plan.scratch_bytes > 0


def test_backward_of_jagged():
    inputs = [quire.Jagged.pack([normal(n, 2, 16) for n in (5, 1, 30)]) for _ in range(3)]
    (out, aux), vjp = quire.flex_attention_vjp(*inputs, return_aux=quire.AuxRequest(lse=True))
    d_out = normal(36, 2, 16)
    plan = quire.AttentionBackwardPlan(*inputs, wanted=["value"])
    d_value = np.empty((36, 2, 16), np.float32)
    plan.run(*inputs, out=out, lse=aux.lse, d_out=d_out, d_value=d_value)
    assert np.array_equal(d_value, vjp(d_out).value.values)


def test_backward_mistakes_name_the_plan():
    q, k, v = normal(3, 1, 2, 30, 16)
    out, aux = quire.flex_attention(q, k, v, return_aux=quire.AuxRequest(lse=True))
    with pytest.raises(ValueError, match=r"\[AttentionBackwardPlan\] wanted may hold 'query', 'key', 'value'; got 'q'"):
        quire.AttentionBackwardPlan(q, k, v, wanted=["q"])
    with pytest.raises(ValueError, match=r"\[AttentionBackwardPlan\] the score mod reads no floats called 'bias'"):
        quire.AttentionBackwardPlan(q, k, v, "score * 2.0", buffers=["bias"])
    plan = quire.AttentionBackwardPlan(q, k, v)
    with pytest.raises(ValueError, match=r"\[AttentionBackwardPlan\] the gradient of v was wanted"):
        plan.run(q, k, v, out=out, lse=aux.lse, d_out=out, d_query=np.empty_like(q), d_key=np.empty_like(k))
    with pytest.raises(
        ValueError, match=r"\[AttentionBackwardPlan\] d_buffers must have an array for each of \[\]; got \['x'\]"
    ):
        gradients_of(plan, (q, k, v), (out, aux.lse), out, d_buffers={"x": q})
    with pytest.raises(ValueError, match=r"\[AttentionBackwardPlan\] query and key must have the same number of heads"):
        quire.AttentionBackwardPlan(q, k[:, :1], v[:, :1])


def test_mistakes_name_the_plan():
    q, k, v = normal(3, 1, 2, 30, 16)
    plan = quire.AttentionPlan(q, k, v)
    with pytest.raises(ValueError, match=r"\[AttentionPlan\] the plan was made for a query of f32 \[1, 2, 30, 16\]"):
        plan.run(q[:, :, :9], k, v, out=np.empty_like(q))
    with pytest.raises(ValueError, match=r"\[AttentionPlan\] out must have shape"):
        plan.run(q, k, v, out=np.empty((1, 2, 30, 8), np.float32))
    with pytest.raises(ValueError, match=r"\[AttentionPlan\] out must not share memory with query"):
        plan.run(q, k, v, out=q)
    read_only = np.empty_like(q)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match=r"\[AttentionPlan\] out is read-only"):
        plan.run(q, k, v, out=read_only)
    with pytest.raises(ValueError, match=r"\[AttentionPlan\] query and key must have the same number of heads"):
        quire.AttentionPlan(q, k[:, :1], v[:, :1])


def cache_of(layers=3):
    cache = quire.KVCache(layers=layers, kv_heads=2, head_dim=32, n_pages=64)
    sequences = [cache.create(), cache.create()]
    cache.append(sequences, counts=[20, 100], k=normal(layers, 120, 2, 32), v=normal(layers, 120, 2, 32))
    return cache, sequences


@pytest.mark.parametrize("counts", [1, [3, 20]])
@pytest.mark.parametrize("options", [{}, {"window": 7}, {"mask_mod": "kv_idx <= q_idx"}, {"dropout_p": 0.4, "seed": 9}])
def test_steps_have_the_bits_of_attend(counts, options):
    cache, sequences = cache_of()
    plan = quire.AttendPlan(cache, sequences, 4, counts=counts, **options)
    q = normal(plan.tokens, 4, 32)
    out, lse = np.empty_like(q), np.empty((plan.tokens, 4), np.float32)
    for layer in range(3):
        plan.run(layer, q, out=out, lse=lse)
        want = quire.attend(cache, layer, sequences, q, counts=counts, return_lse=True, **options)
        assert np.array_equal(out, want[0]) and np.array_equal(lse, want[1])


def test_a_changed_cache_is_refused():
    cache, sequences = cache_of()
    plan = quire.AttendPlan(cache, sequences, 4, "float32")
    q = normal(2, 4, 32)
    cache.append(sequences[0], counts=1)
    with pytest.raises(ValueError, match=r"\[AttendPlan\] the cache is another, or has changed"):
        plan.run(0, q, out=np.empty_like(q))
    with pytest.raises(ValueError, match=r"\[AttendPlan\] q_heads must be a multiple of the cache's 2 kv_heads; got 3"):
        quire.AttendPlan(cache, sequences, 3)

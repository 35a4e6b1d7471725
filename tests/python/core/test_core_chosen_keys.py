"""key_indices and top_k_keys over NumPy arrays: the same as a mask that shows the chosen keys, everywhere they are taken."""

import numpy
import pytest
import quire

RANDOM = numpy.random.default_rng(7)


def normal(*shape, dtype=numpy.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def lists_of(*shape, keys, most):
    """Random lists with -1 in them, and the bools of the same meaning."""
    order = numpy.argsort(RANDOM.random((*shape, keys)), -1)[..., :most].astype(numpy.int32)
    order[RANDOM.random(order.shape) < 0.2] = -1
    shown = numpy.zeros((*shape, keys + 1), bool)
    numpy.put_along_axis(shown, numpy.where(order < 0, keys, order), True, -1)
    return order, numpy.ascontiguousarray(shown[..., :keys])


@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("q_len", [1, 40])
def test_are_the_mask_that_shows_them(by_head, q_len):
    q, k, v = normal(2, 4, q_len, 32), normal(2, 2, 700, 32), normal(2, 2, 700, 24)
    lists, shown = lists_of(*((2, 4) if by_head else (2,)), q_len, keys=700, most=30)
    rule = quire.MaskMod(
        f"shown[b, {'h, ' if by_head else ''}q_idx, kv_idx] & (q_idx + 650 >= kv_idx)", {"shown": shown}
    )
    mask = quire.create_block_mask(rule, 2, 4, q_len, 700)
    causal = quire.create_block_mask("q_idx + 650 >= kv_idx", None, None, q_len, 700)
    out = quire.flex_attention(q, k, v, block_mask=causal, enable_gqa=True, key_indices=lists)
    assert numpy.array_equal(out, quire.flex_attention(q, k, v, block_mask=mask, enable_gqa=True))
    plan, planned = quire.AttentionPlan(q, k, v, block_mask=causal, enable_gqa=True, key_indices=lists), out * 0
    assert numpy.array_equal(plan.run(q, k, v, out=planned), out)


def test_gradients():
    q, k, v = normal(1, 2, 20, 8), normal(1, 2, 50, 8), normal(1, 2, 50, 8)
    lists, shown = lists_of(1, 20, keys=50, most=7)
    mask = quire.create_block_mask(quire.MaskMod("shown[b, q_idx, kv_idx]", {"shown": shown}), 1, None, 20, 50)
    out, vjp = quire.flex_attention_vjp(q, k, v, key_indices=lists)
    same, masked_vjp = quire.flex_attention_vjp(q, k, v, block_mask=mask)
    d_out = normal(*out.shape)
    assert numpy.array_equal(out, same)
    for one, other in zip(vjp(d_out)[:3], masked_vjp(d_out)[:3]):
        assert numpy.array_equal(one, other)


def test_gradients_are_finite_differences():
    q, k, v = (normal(1, 2, 6, 5, dtype=numpy.float64) for _ in range(3))
    lists, _ = lists_of(1, 6, keys=6, most=4)
    d_out = normal(1, 2, 6, 5, dtype=numpy.float64)
    gradients = quire.flex_attention_vjp(q, k, v, key_indices=lists)[1](d_out)

    def loss(*inputs):
        return (quire.flex_attention(*inputs, key_indices=lists) * d_out).sum()

    for place, found in enumerate(gradients[:3]):
        step = numpy.zeros_like(q)
        step[0, 1, 3, 2] = 1e-6
        moved = [[*(q, k, v)], [*(q, k, v)]]
        moved[0][place], moved[1][place] = moved[0][place] + step, moved[1][place] - step
        assert numpy.isclose((loss(*moved[0]) - loss(*moved[1])) / 2e-6, found[0, 1, 3, 2], atol=1e-8)


def test_jagged():
    lengths = (5, 0, 70)
    q, k, v = (quire.Jagged.pack([normal(n, 4, 16) for n in lengths]) for _ in range(3))
    lists = [lists_of(n, keys=n, most=min(n, 6))[0] for n in lengths]
    packed = numpy.full((sum(lengths), 6), -1, numpy.int32)
    packed[:5, :5], packed[5:] = lists[0], lists[2]
    out = quire.flex_attention(q, k, v, key_indices=packed)
    alone = [x[2].swapaxes(0, 1)[None] for x in (q, k, v)]
    expected = quire.flex_attention(*map(numpy.ascontiguousarray, alone), key_indices=lists[2][None])
    assert numpy.array_equal(out[2], expected[0].swapaxes(0, 1))


def test_attend():
    cache = quire.KVCache(layers=1, kv_heads=2, head_dim=16, n_pages=64)
    sequences = [cache.create(), cache.create()]
    k, v = normal(1, 320, 2, 16), normal(1, 320, 2, 16)
    cache.append(sequences, counts=[20, 300], k=k, v=v)
    q = normal(2, 4, 16)
    lists, _ = lists_of(2, keys=20, most=9)
    out = quire.attend(cache, 0, sequences, q, key_indices=lists)
    expected = quire.flex_attention(
        q[1].reshape(1, 4, 1, 16),
        *(numpy.ascontiguousarray(one[:, 20:].swapaxes(1, 2)) for one in (k, v)),
        enable_gqa=True,
        key_indices=lists[1][None, None],
    )
    assert numpy.array_equal(out[1], expected[0, :, 0])
    plan = quire.AttendPlan(cache, sequences, 4, key_indices=lists)
    assert numpy.array_equal(plan.run(0, q, out=q * 0), out)


def test_what_is_wrong_is_named():
    x = normal(1, 2, 3, 8)
    with pytest.raises(ValueError, match=r"batch entry 0, query 2 list key 1 twice"):
        quire.flex_attention(x, x, x, key_indices=numpy.array([[[0, 1], [2, 1], [1, 1]]], numpy.int32))
    with pytest.raises(ValueError, match=r"query 1 list key 3 at place 0; there are 3 keys"):
        quire.flex_attention(x, x, x, key_indices=numpy.array([[[0], [3], [1]]], numpy.int32))
    with pytest.raises(TypeError, match=r"key_indices must be i32 or i64; got f32"):
        quire.flex_attention(x, x, x, key_indices=numpy.zeros((1, 3, 1), numpy.float32))


@pytest.mark.parametrize("q_len, keys, top_k", [(1, 9000, 50), (70, 300, 300), (130, 500, 17)])
def test_top_k_keys(q_len, keys, top_k):
    q = RANDOM.integers(-3, 4, (2, q_len, 5, 8)).astype(numpy.float32)
    k = RANDOM.integers(-3, 4, (2, keys, 8)).astype(numpy.float32)
    weights = RANDOM.integers(-2, 5, (2, q_len, 5)).astype(numpy.float32)
    sums = (numpy.maximum(numpy.einsum("bqhd,bkd->bqhk", q, k), 0) * weights[..., None]).sum(2)
    visible = numpy.arange(q_len)[:, None] + 5 >= numpy.arange(keys)
    sums = numpy.where(visible, sums, -numpy.inf)
    order = numpy.argsort(-sums, -1, kind="stable")[..., :top_k]
    taken = numpy.take_along_axis(sums, order, -1) > -numpy.inf
    expected = numpy.sort(numpy.where(taken, order, keys), -1)
    expected = numpy.where(expected == keys, -1, expected)
    found = quire.top_k_keys(q, k, weights, top_k, "q_idx + 5 >= kv_idx")
    assert found.dtype == numpy.int32 and numpy.array_equal(found, expected)
    mask = quire.create_block_mask("q_idx + 5 >= kv_idx", None, None, q_len, keys)
    assert numpy.array_equal(quire.top_k_keys(q, k, weights, top_k, mask), expected)

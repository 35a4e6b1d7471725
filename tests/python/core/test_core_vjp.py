"""flex_attention_vjp over NumPy arrays: against finite differences and the dense gradients of jagged batches."""

import numpy as np
import pytest
import quire

RNG = np.random.default_rng(5)


def inputs(batch=2, q_heads=4, kv_heads=2, q_len=11, kv_len=13, dim=6, v_dim=5, dtype=np.float64):
    keys = (batch, kv_heads, kv_len)
    shapes = (batch, q_heads, q_len, dim), (*keys, dim), (*keys, v_dim)
    return [RNG.standard_normal(shape).astype(dtype) for shape in shapes]


def slope(f, array, direction, step=1e-6):
    """The derivative of f() as `array`, changed in place, moves in a direction."""
    before = array.copy()
    array += step * direction
    above = f()
    array[...] = before - step * direction
    below = f()
    array[...] = before
    return (above - below) / (2 * step)


TABLES = {"bias": (4,), "table": (24,), "pos": (11, 13)}
TEXT = "tanh(score + bias[h]) + table[q_idx - kv_idx + 12] * bias[h] + pos[q_idx, kv_idx]"


@pytest.mark.parametrize("is_causal", [False, True])
def test_finite_differences(is_causal):
    q, k, v = inputs()
    tables = {name: RNG.standard_normal(shape) for name, shape in TABLES.items()}
    mod = quire.ScoreMod(TEXT, tables)
    mask = quire.create_block_mask(lambda b, h, i, j: i >= j, None, None, 11, 13) if is_causal else None
    options = dict(score_mod=mod, block_mask=mask, enable_gqa=True, return_aux=quire.AuxRequest(lse=True))
    (out, aux), vjp = quire.flex_attention_vjp(q, k, v, **options)
    assert np.array_equal(out, quire.flex_attention(q, k, v, **options)[0]) and aux.max_scores is None
    d_out, d_lse = RNG.standard_normal(out.shape), RNG.standard_normal(aux.lse.shape)
    found = vjp(d_out, d_lse)
    assert isinstance(found, quire.Gradients) and sorted(found.buffers) == sorted(TABLES)

    def loss():
        out, aux = quire.flex_attention(q, k, v, **options)
        return (out * d_out).sum() + (aux.lse * d_lse).sum()

    named = {"q": (q, found.query), "k": (k, found.key), "v": (v, found.value)}
    named.update({name: (tables[name], found.buffers[name]) for name in TABLES})
    for name, (array, gradient) in named.items():
        assert gradient.shape == array.shape and gradient.dtype == array.dtype
        direction = RNG.standard_normal(array.shape)
        assert slope(loss, array, direction) == pytest.approx((gradient * direction).sum(), rel=1e-5, abs=1e-7), name


def test_one_gradient_at_a_time():
    q, k, v = inputs()
    (out, aux), vjp = quire.flex_attention_vjp(q, k, v, enable_gqa=True, return_aux=quire.AuxRequest(lse=True))
    d_out, d_lse = np.ones_like(out), np.ones_like(aux.lse)
    both, of_out, of_lse = vjp(d_out, d_lse), vjp(d_out), vjp(d_lse=d_lse)
    np.testing.assert_allclose(both.query, of_out.query + of_lse.query, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(both.key, of_out.key + of_lse.key, rtol=1e-10, atol=1e-12)
    assert not of_lse.value.any()
    with pytest.raises(ValueError, match="nothing to differentiate"):
        vjp()
    assert both.buffers == {}
    # All weights of a row add to 1: what the values give does not depend on the scores if they are equal.
    np.testing.assert_allclose(of_out.value.sum(), out.size, rtol=1e-10)


def test_wanted():
    q, k, v = inputs()
    mod = quire.ScoreMod("score * w[h] + c[0]", {"w": np.ones(4), "c": np.ones(1)})
    out, all_of_them = quire.flex_attention_vjp(q, k, v, mod, enable_gqa=True)
    out, vjp = quire.flex_attention_vjp(q, k, v, mod, enable_gqa=True, wanted=["key"], buffers=["w"])
    want, found = all_of_them(out), vjp(out)
    assert found.query is None and found.value is None and list(found.buffers) == ["w"]
    assert np.array_equal(found.key, want.key) and np.array_equal(found.buffers["w"], want.buffers["w"])
    with pytest.raises(ValueError, match="wanted may hold 'query', 'key', 'value'; got 'keys'"):
        quire.flex_attention_vjp(q, k, v, wanted=["keys"])
    with pytest.raises(ValueError, match="reads no floats called 'x'"):
        quire.flex_attention_vjp(q, k, v, mod, enable_gqa=True, buffers=["x"])


def test_integer_buffers_have_no_gradient():
    q, k, v = inputs()
    kinds = np.arange(13, dtype=np.int64) % 3
    mod = quire.ScoreMod("score + w[kinds[kv_idx]]", {"w": np.ones(3), "kinds": kinds})
    out, vjp = quire.flex_attention_vjp(q, k, v, mod, enable_gqa=True)
    assert list(vjp(out).buffers) == ["w"]


def test_functions_and_f32():
    q, k, v = inputs(dtype=np.float32)
    bias = quire.Buffer(RNG.standard_normal(4).astype(np.float32), "bias")
    out, vjp = quire.flex_attention_vjp(q, k, v, lambda s, b, h, i, j: s * bias[h], enable_gqa=True)
    found = vjp(np.ones(out.shape))  # f64 for f32 results
    assert found.query.dtype == np.float32 and found.buffers["bias"].dtype == np.float32
    exact = [one.astype(np.float64) for one in (q, k, v)]
    wide = quire.Buffer(bias.numpy().astype(np.float64), "bias")
    out, vjp = quire.flex_attention_vjp(*exact, lambda s, b, h, i, j: s * wide[h], enable_gqa=True)
    np.testing.assert_allclose(found.query, vjp(np.ones(out.shape)).query, rtol=1e-3, atol=1e-5)


def test_kv_batch_and_q_begin():
    q, k, v = inputs(3)
    k, v = k[:1], v[:1]
    rule = "q_idx >= kv_idx"
    whole = quire.create_block_mask(rule, 3, None, 11, 13)
    out, vjp = quire.flex_attention_vjp(q, k, v, block_mask=whole, enable_gqa=True)
    shared, parts = vjp(out), []
    for b in range(3):
        one, own = quire.flex_attention_vjp(
            q[b : b + 1], k, v, block_mask=quire.create_block_mask(rule, None, None, 11, 13), enable_gqa=True
        )
        parts.append(own(one))
    assert shared.key.shape == k.shape
    np.testing.assert_allclose(shared.key, sum(one.key for one in parts), rtol=1e-10, atol=1e-12)
    # The last rows of a sequence, by their numbers.
    begin = 7
    mod = "score + 0.1 * q_idx * kv_idx"
    out, vjp = quire.flex_attention_vjp(q, k, v, mod, whole, enable_gqa=True)
    d_out = np.ones_like(out)
    d_out[:, :, :begin] = 0
    rows = quire.create_block_mask(rule, 3, None, 11 - begin, 13, q_begin=begin)
    late, own = quire.flex_attention_vjp(q[:, :, begin:], k, v, mod, rows, enable_gqa=True, q_begin=begin)
    np.testing.assert_allclose(own(np.ones_like(late)).key, vjp(d_out).key, rtol=1e-10, atol=1e-12)


def test_rows_without_keys():
    q, k, v = inputs()
    k[:, :, 12], v[:, :, 12] = np.nan, np.inf  # nobody sees it
    mask = quire.create_block_mask(lambda b, h, i, j: (i > j) & (i != 4), None, None, 11, 13)
    out, vjp = quire.flex_attention_vjp(q, k, v, block_mask=mask, enable_gqa=True)
    found = vjp(np.ones_like(out))
    assert not found.query[:, :, [0, 4]].any() and not found.key[:, :, 12].any() and not found.value[:, :, 12].any()
    assert all(np.isfinite(one).all() for one in found[:3])


@pytest.mark.parametrize("order", ["tokens", "heads"])
def test_jagged_is_each_sequence_alone(order):
    lengths = (5, 0, 70, 1)

    def pack(heads, dim):
        shape = (lambda n: (n, heads, dim)) if order == "tokens" else (lambda n: (heads, n, dim))
        return quire.Jagged.pack([RNG.standard_normal(shape(n)).astype(np.float32) for n in lengths], order)

    q, k, v = pack(4, 8), pack(2, 8), pack(2, 6)
    w = RNG.standard_normal(4).astype(np.float32)
    mod = quire.ScoreMod("score * w[h]", {"w": w})
    out, vjp = quire.flex_attention_vjp(q, k, v, mod, enable_gqa=True, mask_mod=lambda b, h, i, j: i >= j)
    d_out = RNG.standard_normal(out.values.shape).astype(np.float32)
    found = vjp(quire.Jagged(d_out, q.offsets, order=order))
    again = vjp(d_out)
    assert np.array_equal(found.key.values, again.key.values) and isinstance(found.key, quire.Jagged)
    total = np.zeros(4)
    for n in (0, 2, 3):
        turn = (lambda a: a.swapaxes(0, 1)[None]) if order == "tokens" else (lambda a: a[None])
        length = lengths[n]
        mask = quire.create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length)
        one, own = quire.flex_attention_vjp(turn(q[n]), turn(k[n]), turn(v[n]), mod, mask, enable_gqa=True)
        gradients = own(turn(quire.Jagged(d_out, q.offsets, order=order)[n]))
        for packed, alone in zip(found[:3], gradients[:3]):
            assert np.array_equal(turn(packed[n]), alone)
        total += gradients.buffers["w"]
    np.testing.assert_allclose(found.buffers["w"], total, rtol=1e-4, atol=1e-4)
    with pytest.raises(TypeError, match="must all be Jagged"):
        quire.flex_attention_vjp(q, k.values, v)


def test_bits_do_not_depend_on_threads(threads):
    q, k, v = inputs(1, 1, 1, 500, 700, 32, 32, np.float32)
    results = []
    for count in (1, 2, 5):
        quire.set_num_threads(count)
        out, vjp = quire.flex_attention_vjp(q, k, v, "score * 0.5")
        results.append(vjp(out))
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0][:3], other[:3]))


def test_shapes_that_do_not_fit():
    q, k, v = inputs()
    out, vjp = quire.flex_attention_vjp(q, k, v, enable_gqa=True)
    with pytest.raises(ValueError, match="d_out"):
        vjp(out[:1])
    with pytest.raises(ValueError, match="d_lse"):
        vjp(d_lse=np.ones((2, 4, 10)))


def test_errors_of_the_forward_pass_name_the_function():
    q, k = np.zeros((1, 4, 5, 8), np.float32), np.zeros((1, 2, 5, 8), np.float32)
    with pytest.raises(ValueError, match=r"^\[flex_attention_vjp\] query and key must have the same number of heads"):
        quire.flex_attention_vjp(q, k, k)
    tokens = [quire.Jagged.pack([np.zeros((n, heads, 8), np.float32) for n in (3, 2)]) for heads in (4, 2, 2)]
    with pytest.raises(ValueError, match=r"^\[flex_attention_vjp\] query and key must have the same number of heads"):
        quire.flex_attention_vjp(*tokens)
    with pytest.raises(ValueError, match=r"^\[flex_attention_vjp\] q_begin is not for jagged inputs"):
        quire.flex_attention_vjp(*tokens, q_begin=1)
    with pytest.raises(TypeError, match=r"^\[flex_attention_vjp\] the block mask of jagged inputs must be"):
        quire.flex_attention_vjp(*tokens, block_mask=1)

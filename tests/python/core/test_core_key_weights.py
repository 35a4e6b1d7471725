"""key_weights and entropy of AuxRequest over NumPy arrays, jagged batches, plans and caches; latent keys."""

import numpy
import pytest
import quire

RANDOM = numpy.random.default_rng(3)


def normal(*shape, dtype=numpy.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def softmax_weights(q, k, causal_from=None):
    """[B, Hq, L, S] in f64."""
    k = numpy.repeat(k.astype(float), q.shape[1] // k.shape[1], 1)
    scores = numpy.einsum("bhqd,bhkd->bhqk", q.astype(float), k) / q.shape[3] ** 0.5
    if causal_from is not None:
        hidden = numpy.arange(scores.shape[2])[:, None] + causal_from < numpy.arange(scores.shape[3])
        scores[..., hidden] = -numpy.inf
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("q_len", [1, 3, 150])
def test_against_the_definition(q_len):
    q, k, v = normal(2, 4, q_len, 32), normal(2, 2, 1300, 32), normal(2, 2, 1300, 32)
    weights = softmax_weights(q, k, 1100)
    mask = quire.create_block_mask("q_idx + 1100 >= kv_idx", None, None, q_len, 1300)
    request = quire.AuxRequest(key_weights=True, entropy=True)
    out, aux = quire.flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_aux=request)
    assert numpy.array_equal(out, quire.flex_attention(q, k, v, block_mask=mask, enable_gqa=True))
    assert numpy.allclose(aux.key_weights, weights.sum(2), rtol=1e-4, atol=1e-6)
    entropy = -(weights * numpy.log(numpy.where(weights == 0, 1, weights))).sum(-1)
    assert numpy.allclose(aux.entropy, entropy, atol=1e-4) and aux.lse is None
    begin, end = q_len // 3, q_len
    for queries in ((begin, end), (begin - q_len, None)):
        request = quire.AuxRequest(key_weights=True, key_weights_queries=queries)
        aux = quire.flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_aux=request)[1]
        assert numpy.allclose(aux.key_weights, weights[:, :, begin:end].sum(2), rtol=1e-4, atol=1e-6)


def test_plan():
    q, k, v = normal(1, 2, 70, 16), normal(1, 2, 300, 16), normal(1, 2, 300, 16)
    plan = quire.AttentionPlan(q, k, v)
    out, weights, entropy = numpy.empty_like(q), numpy.empty((1, 2, 300), "f"), numpy.empty((1, 2, 70), "f")
    plan.run(q, k, v, out=out, key_weights=weights, entropy=entropy, key_weights_queries=(64, 70))
    request = quire.AuxRequest(key_weights=True, entropy=True, key_weights_queries=(64, 70))
    aux = quire.flex_attention(q, k, v, return_aux=request)[1]
    assert numpy.array_equal(weights, aux.key_weights) and numpy.array_equal(entropy, aux.entropy)


def test_jagged_and_attend():
    lengths = (5, 90)
    q, k, v = (quire.Jagged.pack([normal(n, 2, 16) for n in lengths]) for _ in range(3))
    request = quire.AuxRequest(key_weights=True, entropy=True)
    _, aux = quire.flex_attention(q, k, v, return_aux=request)
    alone = [numpy.ascontiguousarray(x[1].swapaxes(0, 1))[None] for x in (q, k, v)]
    _, expected = quire.flex_attention(*alone, return_aux=request)
    assert numpy.array_equal(aux.key_weights[1].T, expected.key_weights[0])
    assert numpy.array_equal(aux.entropy[1].T, expected.entropy[0])
    cache = quire.KVCache(layers=1, kv_heads=2, head_dim=16, n_pages=64)
    sequences = [cache.create(), cache.create()]
    cache.append(sequences, counts=list(lengths), k=k.values[None], v=v.values[None])
    _, aux = quire.attend(cache, 0, sequences, q.values[[4, 94]], return_aux=request)
    assert aux.key_weights.shape == (2, 2, 90) and not aux.key_weights[0, :, 5:].any()
    weights = softmax_weights(alone[0][:, :, 89:], alone[1])
    assert numpy.allclose(aux.key_weights[1], weights[0, :, 0], rtol=1e-4, atol=1e-6)


def test_wrong_ranges_are_named():
    x = normal(1, 1, 4, 8)
    for queries, text in (((0, 5), "a range of the 4 queries; got 0 to 5"), ((3, 2), "got 3 to 2")):
        with pytest.raises(ValueError, match=text):
            request = quire.AuxRequest(key_weights=True, key_weights_queries=queries)
            quire.flex_attention(x, x, x, return_aux=request)
    with pytest.raises(TypeError, match=r"key_weights_queries must be \(begin, end\); got 3"):
        quire.flex_attention(x, x, x, return_aux=quire.AuxRequest(key_weights=True, key_weights_queries=3))


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float16])
@pytest.mark.parametrize("heads, q_len", [(16, 1), (128, 1), (4, 70)])
@pytest.mark.parametrize("dims", [(576, 512), (192, 128), (40, 24)])
def test_latent_keys_are_their_values_copied(dims, heads, q_len, dtype):
    q, k = normal(1, heads, q_len, dims[0], dtype=dtype), normal(1, 1, 300, dims[0], dtype=dtype)
    view = k[..., : dims[1]]
    out = quire.flex_attention(q, k, view, enable_gqa=True)
    assert numpy.array_equal(out, quire.flex_attention(q, k, view.copy(), enable_gqa=True))

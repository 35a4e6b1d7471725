"""dropout_p and seed of the functions over arrays: what is kept, gradients by differences, errors by name."""

import numpy as np
import pytest
import quire

RANDOM = np.random.default_rng(11)
CAUSAL = quire.create_block_mask("q_idx >= kv_idx", None, None, 40, 40)


def inputs():
    return RANDOM.standard_normal((3, 2, 2, 40, 16))


def test_kept_weights_are_divided():
    q, k, _ = inputs()
    v = np.broadcast_to(np.eye(40), (2, 2, 40, 40))  # outputs are weights
    weights = quire.flex_attention(q, k, v, "0.5 * score", CAUSAL)
    kept = quire.flex_attention(q, k, v, "0.5 * score", CAUSAL, dropout_p=0.25, seed=5)
    is_kept = kept != 0
    visible = weights != 0
    assert np.allclose(kept[is_kept], weights[is_kept] / 0.75)
    assert 0.6 < is_kept[visible].mean() < 0.9
    assert np.array_equal(kept, quire.flex_attention(q, k, v, "0.5 * score", CAUSAL, dropout_p=0.25, seed=5))
    assert not np.array_equal(kept, quire.flex_attention(q, k, v, "0.5 * score", CAUSAL, dropout_p=0.25))


@pytest.mark.parametrize("is_jagged", [False, True])
def test_gradients_by_differences(is_jagged):
    q, k, v = inputs()
    options = dict(score_mod="3.0 * tanh(score / 3.0)", dropout_p=0.3, seed=12)
    if is_jagged:
        q, k, v = (quire.Jagged.pack(list(np.ascontiguousarray(one.swapaxes(1, 2)))) for one in (q, k, v))
        options["mask_mod"] = "q_idx >= kv_idx"
    else:
        options["block_mask"] = CAUSAL
    out, vjp = quire.flex_attention_vjp(q, k, v, **options)
    values = (lambda one: one.values) if is_jagged else (lambda one: one)
    d_out = RANDOM.standard_normal(values(out).shape)
    gradients = vjp(d_out)
    for name, array in zip(("query", "key", "value"), (q, k, v)):
        direction = RANDOM.standard_normal(values(array).shape)
        sums = []
        for step in (1e-6, -1e-6):
            moved = values(array) + step * direction
            moved = quire.Jagged(moved, array.offsets) if is_jagged else moved
            given = [moved if one is array else one for one in (q, k, v)]
            sums.append((values(quire.flex_attention(*given, **options)) * d_out).sum())
        got = (values(getattr(gradients, name)) * direction).sum()
        assert got == pytest.approx((sums[0] - sums[1]) / 2e-6, rel=1e-6)


def test_mistakes_are_named():
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"\[flex_attention\] dropout_p must be in 0..1; got 1.5"):
        quire.flex_attention(q, k, v, dropout_p=1.5)
    with pytest.raises(ValueError, match=r"\[flex_attention\] the seed must have 64 bits and no sign; got -1"):
        quire.flex_attention(q, k, v, dropout_p=0.5, seed=-1)
    with pytest.raises(TypeError, match=r"\[flex_attention\] the seed must be an int; got float 1.5"):
        quire.flex_attention(q, k, v, dropout_p=0.5, seed=1.5)
    out, vjp = quire.flex_attention_vjp(q, k, v, dropout_p=0.5, seed=1)
    with pytest.raises(ValueError, match=r"\[flex_attention_vjp\] d_out must have shape"):
        vjp(out[:, :, :3])

"""quire.attend and quire.merge_states: what Python adds, against flex_attention over the same keys."""

import numpy as np
import pytest
import quire


@pytest.fixture
def filled():
    """A cache of 2 layers with three sequences of 40, 7 and 23 tokens, and their keys and values [layers, tokens, ...]."""
    random = np.random.default_rng(3)
    cache = quire.KVCache(2, 2, 16, v_head_dim=8, page_size=5, n_pages=40)
    made = []
    for length in (40, 7, 23):
        sequence = cache.create()
        k = random.standard_normal((2, length, 2, 16)).astype(np.float32)
        v = random.standard_normal((2, length, 2, 8)).astype(np.float32)
        cache.append(sequence, length, k=k, v=v)
        made.append((sequence, k, v))
    return cache, made


def alone(q, k, v, **options):
    """flex_attention of the last tokens, [tokens, heads, dim] in and out; q_idx are positions."""
    mask = quire.create_block_mask(options.pop("mask", "q_idx >= kv_idx"), None, None, len(k), len(k)).rows(
        len(k) - len(q), len(k)
    )
    q, k, v = (one.transpose(1, 0, 2)[None] for one in (q, k, v))
    return quire.flex_attention(q, k, v, block_mask=mask, enable_gqa=True, **options)[0].transpose(1, 0, 2)


def queries(tokens):
    return np.random.default_rng(tokens).standard_normal((tokens, 4, 16)).astype(np.float32)


@pytest.mark.parametrize("layer", [0, 1])
def test_any_mix_has_the_bits_of_each_alone(filled, layer):
    cache, made = filled
    counts = [1, 7, 5]
    q = queries(13)
    out = quire.attend(cache, layer, [one[0] for one in made], q, quire.mods.softcap(5.0), counts=counts)
    assert out.shape == (13, 4, 8)
    first = 0
    for (_, k, v), count in zip(made, counts):
        part = slice(first, first + count)
        np.testing.assert_array_equal(out[part], alone(q[part], k[layer], v[layer], score_mod=quire.mods.softcap(5.0)))
        first += count


def test_counts_that_are_not_given(filled):
    cache, made = filled
    handles = [one[0] for one in made]
    q = queries(3)
    np.testing.assert_array_equal(
        quire.attend(cache, 0, handles, q), quire.attend(cache, 0, handles, q, counts=[1, 1, 1])
    )
    np.testing.assert_array_equal(quire.attend(cache, 0, handles[0], q), alone(q, made[0][1][0], made[0][2][0]))


def test_masks_windows_and_aux(filled):
    cache, made = filled
    sequence, k, v = made[0]
    q = queries(2)
    seen = quire.attend(
        cache, 1, sequence, q, None, lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx - kv_idx < 9)
    )
    np.testing.assert_array_equal(seen, quire.attend(cache, 1, sequence, q, window=9))
    out, lse = quire.attend(cache, 1, sequence, q, return_lse=True)
    again, aux = quire.attend(cache, 1, sequence, q, return_aux=quire.AuxRequest(lse=True, max_scores=True))
    np.testing.assert_array_equal(lse, aux.lse)
    assert lse.shape == aux.max_scores.shape == (2, 4)
    np.testing.assert_array_equal(out, again)


def test_released_keys_must_be_hidden(filled):
    cache, made = filled
    sequence = made[0][0]
    before = quire.attend(cache, 0, sequence, queries(1), window=9)
    cache.release_before(sequence, 40 - 9)
    np.testing.assert_array_equal(quire.attend(cache, 0, sequence, queries(1), window=9), before)
    with pytest.raises(ValueError, match=r"^\[attend\]"):
        quire.attend(cache, 0, sequence, queries(1))


def test_mistakes(filled):
    cache, made = filled
    with pytest.raises(ValueError, match=r"^\[attend\] counts must be as many as sequences; got 1 and 2$"):
        quire.attend(cache, 0, [made[0][0], made[1][0]], queries(2), counts=[2])
    with pytest.raises(ValueError, match="cannot be given both"):
        quire.attend(cache, 0, made[0][0], queries(1), return_lse=True, return_aux=quire.AuxRequest(lse=True))
    cache.release(made[1][0])
    with pytest.raises(ValueError, match="the handle is stale"):
        quire.attend(cache, 0, made[1][0], queries(1))


def test_merge_states():
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (3, 50, 50))
    whole = quire.flex_attention(q, k, v, return_lse=True)
    parts = [
        quire.flex_attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in ((0, 11), (11, 12), (12, 50))
    ]
    for merged in (quire.merge_states(*parts), quire.merge_states(parts)):
        np.testing.assert_allclose(merged[0], whole[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(merged[1], whole[1], rtol=1e-6)
    nothing = (np.full_like(whole[0], np.nan), np.full_like(whole[1], -np.inf))
    for one, same in zip(quire.merge_states(nothing, whole), whole):
        np.testing.assert_array_equal(one, same)
    with pytest.raises(ValueError):
        quire.merge_states([])

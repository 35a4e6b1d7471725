"""quire.PagedAttention: tables that are arrays, and calls that have the bits of dense ones."""

import pickle

import numpy as np
import pytest
import quire


def test_tables_are_arrays_and_a_list():
    paged = quire.PagedAttention(5, 4, 2)
    paged.reserve(np.array([1]), 9)
    assert paged.page_table.tolist() == [[-1] * 5, [2, 1, 0, -1, -1]]
    assert paged.physical_to_logical.tolist() == [[-1] * 5, [2, 1, 0, -1, -1]]
    assert paged.capacity.tolist() == [0, 12] and paged.empty_pages == [4, 3]
    paged.empty_pages = [3, 4]
    paged.reserve(0, 1)
    assert paged.page_table[0, 0] == 4
    paged.erase(1)
    assert paged.empty_pages == [3, 2, 1, 0] and paged.physical_to_logical[1].tolist() == [-1] * 5
    with pytest.raises(AssertionError, match="requested 5 pages but there are only 4 empty pages"):
        paged.reserve(1, 20)
    with pytest.raises(IndexError):
        paged.reserve(2, 1)
    with pytest.raises(ValueError):
        quire.PagedAttention(5, 0, 2)
    with pytest.raises(ValueError, match="no device but 'cpu'"):
        quire.PagedAttention(5, 1, 2, "cuda")


def test_a_table_that_is_written_to_counts():
    paged = quire.PagedAttention(5, 4, 2)
    paged.page_table[0, 0], paged.physical_to_logical[0, 3], paged.capacity[0] = 3, 0, 4
    k, cache = np.ones((1, 1, 1, 2), np.float32), np.zeros((1, 1, 20, 2), np.float32)
    paged.assign([0], [[2]], k, k, cache, np.zeros_like(cache))
    assert cache[0, 0, 14].tolist() == [1, 1] and cache.sum() == 2
    with pytest.raises(ValueError, match="position 4 of batch entry 0 has no page: reserve it first"):
        paged.assign([0], [[4]], k, k, cache, cache)
    cache.flags.writeable = False
    with pytest.raises(ValueError, match="k_cache is read-only"):
        paged.assign([0], [[2]], k, k, cache, cache)


@pytest.mark.parametrize("page_size", (1, 3, 16))
def test_bits_are_those_of_the_dense_call(page_size):
    rng = np.random.default_rng(page_size)
    lengths = np.array([270, 31])
    q, k, v = (rng.standard_normal((2, 2, n, 8), dtype=np.float32) for n in (3, 270, 270))
    n_pages = 320 // page_size + 3
    paged = quire.PagedAttention(n_pages, page_size, 2)
    rng.shuffle(paged.empty_pages)
    caches = [np.full((1, 2, n_pages * page_size, 8), np.nan, np.float32) for _ in range(2)]
    for b, length in enumerate(lengths):
        paged.reserve(b, length)
        paged.assign([b], np.arange(length)[None], k[b : b + 1, :, :length], v[b : b + 1, :, :length], *caches)
    rule, bias = "q_idx + 260 >= kv_idx", "score + 0.1 * (kv_idx - q_idx)"
    logical = quire.create_block_mask(rule, 2, 1, 3, 270, (8, page_size))
    physical = paged.convert_logical_block_mask(logical, kv_len=lengths)
    out = quire.flex_attention(q, *caches, score_mod=paged.get_score_mod(bias), block_mask=physical)
    inside = quire.MaskMod("kv_idx < lengths[b]", {"lengths": lengths})
    dense = quire.create_block_mask(quire.and_masks(rule, inside), 2, 1, 3, 270)
    expected = quire.flex_attention(q, k, v, score_mod=bias, block_mask=dense)
    assert np.array_equal(out, expected)
    converted = pickle.loads(pickle.dumps(paged.get_mask_mod(rule, lengths)))  # the mark comes along
    physical = paged._tables().convert(logical, None, converted)
    out = quire.flex_attention(q, *caches, block_mask=physical)
    assert np.array_equal(out, quire.flex_attention(q, k, v, block_mask=dense))
    wrapped = lambda b, h, q_idx, kv_idx: paged.get_mask_mod(rule, lengths)(b, h, q_idx, kv_idx) & (h >= 0)  # noqa: E731
    physical.mask_mod = quire.MaskMod(wrapped)
    again = quire.flex_attention(q, *caches, score_mod=paged.get_score_mod(bias), block_mask=physical)
    assert np.array_equal(again, expected)


def test_erase_of_several_sequences():
    paged = quire.PagedAttention(4, 8, 3)
    for sequence in range(3):
        paged.reserve(sequence, 8)
    with pytest.raises(IndexError, match="batch_idx must be in -3..2; got 3"):
        paged.erase(np.array([0, 3]))
    assert paged.capacity.tolist() == [8, 8, 8]
    paged.erase(np.array([2, 0]))
    assert paged.capacity.tolist() == [0, 8, 0] and paged.empty_pages == [3, 2, 0]
    paged.erase((True, True, False))
    assert paged.empty_pages == [3, 2, 0, 1] and (paged.page_table == -1).all()


@pytest.mark.parametrize("page_size", (1, 3, 16))
def test_gradients_are_those_of_the_dense_call(page_size):
    """Of the caches they are dense, 0 where no sequence has a key; a page that both sequences have sums what both add."""
    rng = np.random.default_rng(page_size)
    lengths = np.array([270, 96])
    q, k, v, d_out = (rng.standard_normal((2, 2, n, 8)) for n in (3, 270, 270, 3))
    n_pages = 320 // page_size + 60
    paged = quire.PagedAttention(n_pages, page_size, 2)
    rng.shuffle(paged.empty_pages)
    caches = [np.full((1, 2, n_pages * page_size, 8), np.nan) for _ in range(2)]
    paged.reserve(0, 270)
    paged.assign([0], np.arange(270)[None], k[:1], v[:1], *caches)
    paged.page_table[1], paged.capacity[1] = paged.page_table[0], 96  # all of sequence 1 is shared
    paged.physical_to_logical[1] = paged.physical_to_logical[0]
    k[1], v[1] = k[0], v[0]
    bias = rng.standard_normal(2)
    score_mod = quire.ScoreMod("score + bias[h] * 0.1 * (kv_idx - q_idx)", {"bias": bias})
    logical = quire.create_block_mask("True", 2, 1, 3, 270, (8, page_size))
    physical = paged.convert_logical_block_mask(logical, kv_len=lengths)
    converted = paged.get_score_mod(score_mod)
    out, vjp = quire.flex_attention_vjp(q, *caches, score_mod=converted, block_mask=physical)
    rule = quire.MaskMod("kv_idx < lengths[b]", {"lengths": lengths})
    dense = quire.create_block_mask(rule, 2, 1, 3, 270)
    expected, dense_vjp = quire.flex_attention_vjp(q, k, v, score_mod=score_mod, block_mask=dense)
    assert np.array_equal(out, expected)
    found, want = vjp(d_out), dense_vjp(d_out)
    assert np.array_equal(found.query, want.query)
    np.testing.assert_allclose(found.buffers["bias"], want.buffers["bias"], rtol=1e-12)
    for gradient, other in ((found.key, want.key), (found.value, want.value)):
        pages = paged.page_table[0, : -(-270 // page_size)]
        slots = (pages[:, None] * page_size + np.arange(page_size)).ravel()[:270]
        np.testing.assert_allclose(gradient[0][:, slots], other[0] + other[1], rtol=1e-12, atol=1e-14)
        assert np.array_equal(gradient[0][:, slots[96:]], other[0, :, 96:])  # of one user: bits
        assert np.count_nonzero(gradient) == np.count_nonzero(gradient[0][:, slots])

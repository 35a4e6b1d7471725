"""BlockMask: index arrays, parts, combinations, text and pickles, against masks written out."""

import copy
import pickle

import numpy as np
import pytest
import quire
from hypothesis import given, settings
from hypothesis import strategies as st
from property_runs import runs
from quire import mods


def blocks_of(dense, block):
    """(partial, full) as bools [..., q_blocks, kv_blocks]; beyond the edges everything counts as hidden."""
    q_len, kv_len = dense.shape[-2:]
    rows, columns = -(-q_len // block[0]), -(-kv_len // block[1])
    padded = np.zeros((*dense.shape[:-2], rows * block[0], columns * block[1]), bool)
    padded[..., :q_len, :kv_len] = dense
    cells = padded.reshape(*dense.shape[:-2], rows, block[0], columns, block[1])
    some, every = cells.any((-3, -1)), cells.all((-3, -1))
    return some & ~every, every


def lists_of(present):
    """num_blocks and indices of a bool array: those present in ascending order, then the others."""
    return present.sum(-1, dtype=np.int32), np.argsort(~present, axis=-1, kind="stable").astype(np.int32)


def assert_lists(mask, dense):
    partial, full = blocks_of(dense, mask.BLOCK_SIZE)
    for found, kind, swap in (
        ("kv", partial, False),
        ("full_kv", full, False),
        ("q", partial, True),
        ("full_q", full, True),
    ):
        number, indices = lists_of(kind.swapaxes(-1, -2) if swap else kind)
        got = getattr(mask, f"{found}_num_blocks"), getattr(mask, f"{found}_indices")
        assert got[0].dtype == got[1].dtype == np.int32
        np.testing.assert_array_equal(got[0], number)
        np.testing.assert_array_equal(got[1], indices)
    np.testing.assert_array_equal(mask.to_dense(), partial | full)


@settings(max_examples=runs(40))
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.tuples(st.integers(1, 17), st.integers(1, 17)),
    st.integers(1, 12),
    st.integers(0, 2),
)
def test_random_masks(q_len, kv_len, block, window, heads):
    mod = mods.sliding_window(window) | quire.MaskMod(lambda b, h, q, kv: (q + 3 * h) % 5 == kv % 7)
    mask = quire.create_block_mask(mod, 2, heads or None, q_len, kv_len, BLOCK_SIZE=block)
    dense = quire.create_mask(mod, 2, heads or None, q_len, kv_len)
    q, kv, h = np.ogrid[:q_len, :kv_len, : max(heads, 1)]
    expected = (((q >= kv) & (q - kv < window)) | ((q + 3 * h) % 5 == kv % 7)).transpose(2, 0, 1)
    np.testing.assert_array_equal(dense, np.broadcast_to(expected, dense.shape))
    assert mask.shape == dense.shape and mask.BLOCK_SIZE == block and mask.seq_lengths == (q_len, kv_len)
    assert_lists(mask, dense)
    counted = mask.to_dense().sum() * block[0] * block[1]
    assert mask.sparsity() == pytest.approx(100 * (1 - counted / dense.size))
    assert mask.numel() == dense.size and mask.nbytes > 0


def test_options():
    mask = quire.create_block_mask(mods.causal(), B=None, H=None, Q_LEN=300, KV_LEN=200)
    assert mask.shape == (1, 1, 300, 200) and mask.BLOCK_SIZE == (128, 128) and mask.q_begin == 0
    joined = quire.create_block_mask(mods.causal(), None, None, 300, 200, separate_full_blocks=False)
    assert joined.full_kv_num_blocks is None and joined.full_q_indices is None and not joined.separate_full_blocks
    np.testing.assert_array_equal(joined.to_dense(), mask.to_dense())
    later = quire.create_block_mask("q_idx >= kv_idx", None, None, 8, 200, 16, q_begin=100)
    assert later.q_begin == 100 and later.BLOCK_SIZE == (16, 16)
    np.testing.assert_array_equal(
        quire.create_mask("q_idx >= kv_idx", 1, 1, 8, 200, q_begin=100)[0, 0],
        np.arange(100, 108)[:, None] >= np.arange(200),
    )
    with pytest.raises(ValueError, match=r"\[BLOCK_SIZE\] must be a number or a pair"):
        quire.create_block_mask(mods.causal(), 1, 1, 8, 8, (1, 2, 3))
    with pytest.raises(ValueError):
        quire.create_block_mask(mods.causal(), 1, 1, -8, 8)
    with pytest.raises(IndexError, match="'t'"):
        quire.create_block_mask(quire.MaskMod("t[kv_idx] > 0", {"t": np.ones(7)}), 1, 1, 8, 8)


def test_create_mask_of_score_mods():
    hide = lambda s, b, h, q, kv: quire.where(q >= kv, s * 2 + 1, -np.inf)  # noqa: E731
    expected = np.arange(4)[:, None] >= np.arange(5)
    for mod in (hide, quire.ScoreMod(hide)):
        np.testing.assert_array_equal(quire.create_mask(mod, 1, 1, 4, 5)[0, 0], expected)


def test_index():
    mask = quire.create_block_mask(lambda b, h, q, kv: q * (b + 1) >= kv + h, 3, 2, 64, 64, 16)
    lists = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    for at in (
        0,
        -1,
        slice(1, None),
        slice(None, None, 2),
        (slice(None), 1),
        (0, 1, slice(1, 3)),
        (np.array([2, 0]), slice(None)),
        ([1, 2], 0, [0, 3]),
        (np.int64(1),),
        (slice(None), slice(None), np.array(2)),
    ):
        part = mask[at]
        expected = tuple(
            slice(i, i + 1 or None) if np.ndim(i) == 0 and not isinstance(i, slice) else i
            for i in (at if isinstance(at, tuple) else (at,))
        )
        for name in lists:
            whole = getattr(mask, name)
            for axis, one in enumerate(expected):
                whole = whole[(slice(None),) * axis + (one,)]
            np.testing.assert_array_equal(getattr(part, name), whole)
        assert part.seq_lengths == (64, 64) and not part.has_mask_mod
        with pytest.raises(RuntimeError, match="the mask mod of an indexed block mask cannot be used"):
            part.mask_mod
    for wrong, kind in (
        (7, IndexError),
        ((0, 0, 0, 0), IndexError),
        (np.zeros((2, 2), int), IndexError),
        ("x", TypeError),
        (1.5, TypeError),
        (np.array([True]), TypeError),
    ):
        with pytest.raises(kind):
            mask[wrong]


def test_a_part_needs_a_rule_before_it_is_used():
    q = np.random.default_rng(0).standard_normal((1, 1, 64, 8)).astype(np.float32)
    part = quire.create_block_mask(mods.causal(), None, None, 64, 64, 16)[0]
    with pytest.raises(RuntimeError, match="the mask mod of an indexed block mask cannot be used"):
        quire.flex_attention(q, q, q, block_mask=part)
    part.mask_mod = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx
    whole = quire.create_block_mask(mods.causal(), None, None, 64, 64, 16)
    assert part.mask_mod == mods.causal()
    np.testing.assert_array_equal(
        quire.flex_attention(q, q, q, block_mask=part), quire.flex_attention(q, q, q, block_mask=whole)
    )


def test_parts_and_growth():
    mask = quire.create_block_mask(mods.causal(), None, None, 100, 100, 16)
    assert mask._adjust(50, 40).seq_lengths == (50, 40)
    assert mask.rows(20, 40) == quire.create_block_mask(mods.causal(), None, None, 20, 100, 16, q_begin=20)
    grown = copy.copy(mask)
    grown.append_rows(5, 5)
    assert grown == quire.create_block_mask(mods.causal(), None, None, 105, 105, 16) and mask.shape == (1, 1, 100, 100)
    assert mask.to("cpu") == mask
    with pytest.raises(ValueError, match="there is no device but 'cpu'; got 'cuda'"):
        mask.to("cuda")


def test_combination():
    make = lambda mod: quire.create_block_mask(mod, None, None, 60, 60, 16)  # noqa: E731
    causal, window = mods.causal(), mods.sliding_window(20, 20)
    assert make(causal) & make(window) == make(causal & window)
    assert (make(causal) | make(window)).same_blocks(make(causal | window))
    assert (~make(causal)).same_blocks(make(~causal))
    assert make(causal) != make(window) and not make(causal) == 3


def test_from_kv_blocks():
    number = np.array([[[1, 2]]])
    indices = np.array([[[[0, 1], [1, 0]]]], np.int32)
    mask = quire.BlockMask.from_kv_blocks(number, indices, BLOCK_SIZE=(4, 8), mask_mod=lambda b, h, q, kv: q >= kv)
    assert mask.shape == (1, 1, 8, 16) and mask.full_kv_num_blocks is None
    np.testing.assert_array_equal(mask.kv_indices, indices)
    np.testing.assert_array_equal(mask.q_num_blocks[0, 0], [2, 1])
    full = quire.BlockMask.from_kv_blocks(
        number * 0, indices, number, indices, 8, seq_lengths=(15, 16), compute_q_blocks=False
    )
    assert full.seq_lengths == (15, 16) and full.q_indices is None
    np.testing.assert_array_equal(full.full_kv_num_blocks, number)
    whole = quire.create_mask(mask.whole_mask_mod(), 1, 1, 8, 16)[0, 0]
    expected = np.arange(8)[:, None] >= np.arange(16)
    expected[:4, 8:] = False
    np.testing.assert_array_equal(whole, expected)
    with pytest.raises(ValueError, match="are given together or not at all"):
        quire.BlockMask.from_kv_blocks(number, indices, full_kv_num_blocks=number)
    with pytest.raises(IndexError, match=r"kv_indices of batch 0, head 0, row 0 must be in 0..1; got 5"):
        quire.BlockMask.from_kv_blocks(number, indices + 5)


def test_as_tuple():
    mask = quire.create_block_mask(mods.causal(), None, None, 100, 60, (16, 32))
    flat, nested = mask.as_tuple(), mask.as_tuple(flatten=False)
    assert len(flat) == 13 and len(nested) == 11
    assert flat[:2] == (100, 60) and flat[10:12] == (16, 32) and flat[12] == mods.causal()
    assert nested[0] == (100, 60) and nested[9] == (16, 32)
    np.testing.assert_array_equal(flat[3], mask.kv_indices)


def test_text():
    mask = quire.create_block_mask(mods.causal(), None, None, 384, 384)
    picture = "(0, 0)\n██    \n████  \n██████\n"
    assert str(mask) == f"BlockMask(shape=(1, 1, 384, 384), sparsity=33.33%, \n{picture})"
    assert mask.to_string() == picture
    assert mask.to_string(grid_size=(1, 1)) == "(0, 0)\n░░\n"
    assert mask.to_string(grid_size=2, limit=1).count("\n") == 3
    assert (
        repr(mask)
        == "quire.BlockMask(shape=(1, 1, 384, 384), BLOCK_SIZE=(128, 128), 3 x 3 blocks, sparsity=33.33%, mask_mod=q_idx >= kv_idx)"
    )
    assert repr(mask[0]).endswith("mask_mod=none)")


def test_pickles():
    ids = np.array([0] * 30 + [1] * 34)
    made = quire.create_block_mask(mods.document(ids), 2, None, 64, 64, 16, q_begin=0)
    chosen = quire.BlockMask.from_kv_blocks(
        np.array([[[1, 1]]]), np.array([[[[1, 0], [0, 1]]]]), BLOCK_SIZE=8, seq_lengths=(16, 15)
    )
    for mask in (made, chosen, made[1], quire.create_block_mask(mods.causal(), 1, 1, 8, 64, 16, False, 9)):
        again = pickle.loads(pickle.dumps(mask))
        assert again.same_blocks(mask) and again.has_mask_mod == mask.has_mask_mod and again.q_begin == mask.q_begin
        assert again.separate_full_blocks == mask.separate_full_blocks
    assert copy.deepcopy(made) == made

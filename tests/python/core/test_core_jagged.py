"""Jagged batches: every sequence has the bits it has alone; what is wrong with offsets is said with the sequence's number."""

import threading

import ml_dtypes
import numpy as np
import pytest
import quire
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_reference import assert_as_good_as_naive, attention
from property_runs import runs

DTYPES = (np.float32, np.float64, ml_dtypes.bfloat16, np.float16)


def packed(random, slots, heads, dim, dtype=np.float32, order="tokens", lengths=None, begin=0):
    """A batch of such slots, the first one at `begin`, and something behind the last."""
    offsets = np.cumsum([begin, *slots]).astype(np.int64)
    shape = (int(offsets[-1]) + 2, heads, dim)
    values = random.standard_normal(shape).astype(dtype)
    if order == "heads":
        values = np.ascontiguousarray(values.transpose(1, 0, 2))
    return quire.Jagged(values, offsets, None if lengths is None else np.array(lengths, np.int32), order)


def alone(batch, sequence):
    """One sequence as a dense batch [1, heads, length, dim]."""
    values = batch[sequence]
    return (values.transpose(1, 0, 2) if batch.order == "tokens" else values)[None]


def same_bits(a, b):
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
    )


@st.composite
def cases(draw):
    n = draw(st.integers(1, 6))
    length = st.one_of(st.integers(0, 20), st.integers(0, 150))
    q_slots, kv_slots = ([draw(length) for _ in range(n)] for _ in "qk")
    holes = draw(st.booleans())
    return {
        "q_slots": q_slots,
        "kv_slots": kv_slots,
        "q_lengths": [draw(st.integers(0, slot)) for slot in q_slots] if holes else None,
        "kv_lengths": [draw(st.integers(0, slot)) for slot in kv_slots] if holes else None,
        "heads": draw(st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1)])),
        "dims": draw(st.sampled_from([(16, 16), (8, 24), (5, 3)])),
        "dtype": draw(st.sampled_from(DTYPES)),
        "orders": [draw(st.sampled_from(["tokens", "heads"])) for _ in "qkv"],
        "mask": draw(st.sampled_from([None, "rule", "blocks"])),
        "score": draw(st.booleans()),
        "seed": draw(st.integers(0, 1000)),
    }


@settings(max_examples=runs(60))
@given(cases())
def test_jagged_is_each_sequence_alone(case):
    random = np.random.default_rng(case["seed"])
    (q_heads, kv_heads), (dim, v_dim), dtype = case["heads"], case["dims"], case["dtype"]
    q = packed(random, case["q_slots"], q_heads, dim, dtype, case["orders"][0], case["q_lengths"], begin=3)
    k = packed(random, case["kv_slots"], kv_heads, dim, dtype, case["orders"][1], case["kv_lengths"])
    v = packed(random, case["kv_slots"], kv_heads, v_dim, dtype, case["orders"][2], case["kv_lengths"])
    bias = quire.Buffer(random.standard_normal(len(q)).astype(np.float32), "bias")
    window = quire.Buffer(random.integers(0, 60, len(q)), "window")

    def score(s, b, h, q_idx, kv_idx):
        return s + bias[b] * (kv_idx - q_idx)

    def rule(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= window[b] + h)

    masks = {}
    if case["mask"] == "rule":
        masks["mask_mod"] = rule
    elif case["mask"] == "blocks":
        masks["block_mask"] = quire.create_jagged_block_mask(rule, q_heads, q, k, 16)
    request = quire.AuxRequest(lse=True, max_scores=True)
    out, aux = quire.flex_attention(
        q, k, v, score if case["score"] else None, **masks, enable_gqa=True, return_aux=request
    )
    assert len(out) == len(aux.lse) == len(aux.max_scores) == len(q)
    for i in range(len(q)):
        parts = [alone(one, i) for one in (q, k, v)]
        mask = None
        if case["mask"]:
            lengths = parts[0].shape[2], parts[1].shape[2]
            mask = quire.create_block_mask(lambda b, h, x, y, i=i: rule(i, h, x, y), 1, q_heads, *lengths)
        mod = (lambda s, b, h, x, y, i=i: score(s, i, h, x, y)) if case["score"] else None
        want, want_aux = quire.flex_attention(*parts, mod, mask, enable_gqa=True, return_aux=request)
        assert same_bits(alone(out, i), want), i
        for got, wanted in zip(aux, want_aux):
            rows = got[i].T if q.order == "tokens" else got[i]
            assert same_bits(rows[None], wanted), i


def test_as_good_as_numpy_and_holes_are_0():
    random = np.random.default_rng(0)
    q = packed(random, [40, 0, 7, 130], 4, 16, lengths=[33, 0, 0, 130], begin=2)
    k = packed(random, [50, 3, 9, 100], 2, 16)
    v = packed(random, [50, 3, 9, 100], 2, 24)
    out, lse = quire.flex_attention(
        q, k, v, quire.mods.softcap(5.0), mask_mod=quire.mods.causal(), enable_gqa=True, return_lse=True
    )
    assert out.values.shape == (q.values.shape[0], 4, 24)
    for i in range(len(q)):
        parts = [alone(one, i) for one in (q, k, v)]
        mods = {"score_mod": lambda s, b, h, x, y: 5 * np.tanh(s / 5), "mask_mod": lambda b, h, x, y: x >= y}
        assert_as_good_as_naive(alone(out, i), *parts, **mods)
        np.testing.assert_allclose(lse[i].T[None], attention(*parts, **mods)[1], atol=1e-5)
    seen = np.zeros(q.values.shape[0], bool)
    for begin, length in zip(q.offsets, q.lengths):
        seen[begin : begin + length] = True
    assert not out.values[~seen].any() and not lse.values[~seen].any()


def test_no_sequences_no_queries_no_keys():
    random = np.random.default_rng(0)
    none = packed(random, [], 2, 8)
    out = quire.flex_attention(none, none, none)
    assert len(out) == 0 and not out.values.any()
    q, kv = packed(random, [3, 0, 2], 2, 8), packed(random, [0, 4, 5], 2, 8)
    out, lse = quire.flex_attention(q, kv, kv, return_lse=True)
    assert not out[0].any() and (lse[0] == -np.inf).all()
    assert out[1].shape == (0, 2, 8)
    assert np.isfinite(lse[2]).all()


def test_many_short_sequences_on_any_number_of_threads(threads):
    random = np.random.default_rng(0)
    lengths = random.integers(0, 65, 1000)
    q = packed(random, lengths, 2, 16)
    results = []
    for count in (1, 2, 7):
        quire.set_num_threads(count)
        results.append(quire.flex_attention(q, q, q, mask_mod=quire.mods.causal()).values)
    assert all(same_bits(one, results[0]) for one in results)
    order = random.permutation(1000)
    shuffled = quire.Jagged.pack([q[i] for i in order])
    out = quire.flex_attention(shuffled, shuffled, shuffled, mask_mod=quire.mods.causal())
    whole = quire.Jagged(results[0], q.offsets)
    assert all(same_bits(out[at], whole[i]) for at, i in enumerate(order))


def test_block_masks_are_those_of_each_sequence():
    random = np.random.default_rng(0)
    q, kv = packed(random, [300, 20, 0], 2, 8), packed(random, [200, 40, 5], 2, 8)
    masks = quire.create_jagged_block_mask(lambda b, h, x, y: (x >= y) | (y < b), None, q, kv, BLOCK_SIZE=(64, 32))
    assert len(masks) == 3
    for i, lengths in enumerate([(300, 200), (20, 40), (0, 5)]):
        want = quire.create_block_mask(lambda b, h, x, y, i=i: (x >= y) | (y < i), 1, 1, *lengths, (64, 32))
        assert masks[i].shape == (1, 1, *lengths)
        assert masks[i].same_blocks(want)
    assert masks[-1].shape == masks[2].shape
    with pytest.raises(IndexError, match="3 sequences"):
        masks[3]
    assert "3 sequences" in repr(masks) and "q_idx >= kv_idx" in repr(masks)
    assert quire.create_nested_block_mask is quire.create_jagged_block_mask
    assert quire.create_jagged_block_mask("q_idx >= kv_idx", 2, q)[0].shape == (1, 2, 300, 300)


def test_the_class():
    parts = [np.arange(6.0).reshape(3, 1, 2), np.zeros((0, 1, 2)), np.ones((1, 1, 2))]
    batch = quire.Jagged.pack(parts)
    assert len(batch) == 3 and batch.offsets.tolist() == [0, 3, 3, 4]
    assert all(np.array_equal(a, b) for a, b in zip(batch, parts))
    assert np.shares_memory(batch[0], batch.values)
    turned = quire.Jagged.pack([one.transpose(1, 0, 2) for one in parts], order="heads")
    assert turned.values.shape == (1, 4, 2) and turned[-1].shape == (1, 1, 2)
    assert repr(batch) == "quire.Jagged(3 sequences, values (4, 1, 2), order='tokens')"
    with pytest.raises(IndexError, match="3 sequences; got 3"):
        batch[3]
    with pytest.raises(ValueError, match="order"):
        quire.Jagged(batch.values, batch.offsets, order="dims")
    with pytest.raises(ValueError, match="at least"):
        quire.Jagged.pack([])


def test_results_are_of_the_kind_of_the_query():
    torch = pytest.importorskip("torch")
    values, offsets = torch.randn(10, 2, 8), torch.tensor([0, 4, 10], dtype=torch.int32)
    batch = quire.Jagged(values, offsets)
    out = quire.flex_attention(batch, batch, batch)
    assert isinstance(out.values, torch.Tensor) and out.offsets is offsets
    arrays = quire.Jagged(values.numpy(), offsets.numpy())
    assert same_bits(out.values.numpy(), quire.flex_attention(arrays, arrays, arrays).values)


def test_threads_of_python_call_at_once():
    random = np.random.default_rng(0)
    batch = packed(random, [100, 30, 200], 2, 16)
    want = quire.flex_attention(batch, batch, batch).values
    wrong = []

    def work():
        for _ in range(5):
            if not same_bits(quire.flex_attention(batch, batch, batch).values, want):
                wrong.append(True)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


VALUES = np.ones((10, 2, 8), np.float32)
GOOD = quire.Jagged(VALUES, np.array([0, 4, 10]))


@pytest.mark.parametrize(
    ("offsets", "lengths", "error", "text"),
    [
        ([0, 5, 3, 10], None, ValueError, "offsets must not fall; sequence 1 begins at 5 and ends at 3"),
        ([0, 4, 11], None, ValueError, "sequence 1 ends at 11, beyond the 10 tokens"),
        ([-1, 4, 10], None, ValueError, "must not be negative; sequence 0 begins at -1"),
        ([0, 4, 10], [4, 7], ValueError, "sequence 1 has 7 in a slot of 6"),
        ([0, 4, 10], [-1, 6], ValueError, "must not be negative; sequence 0 has -1"),
        ([0, 4, 10], [1], ValueError, "lengths must be .2., one per sequence; got .1."),
        ([[0, 4, 10]], None, ValueError, "offsets must be .number of sequences"),
        ([0.0, 4.0, 10.0], None, TypeError, "offsets must be i32 or i64; got f64"),
        ([0, 4, 10], [1.0, 2.0], TypeError, "lengths must be i32 or i64; got f64"),
    ],
)
def test_offsets_and_lengths_that_are_wrong(offsets, lengths, error, text):
    bad = quire.Jagged(VALUES, np.array(offsets), None if lengths is None else np.array(lengths))
    with pytest.raises(error, match=text):
        quire.flex_attention(bad, bad, bad)
    with pytest.raises(error, match=text):
        quire.create_jagged_block_mask("q_idx >= kv_idx", 1, bad)
    with pytest.raises(error, match=text):
        quire.scaled_dot_product_attention(bad, bad, bad)


def test_batches_that_do_not_fit_together():
    three = quire.Jagged(VALUES, np.array([0, 2, 4, 10]))
    with pytest.raises(ValueError, match="same number of sequences; got 2, 3 and 3"):
        quire.flex_attention(GOOD, three, three)
    with pytest.raises(ValueError, match="same lengths; sequence 0 has 4 and 5"):
        quire.flex_attention(GOOD, GOOD, quire.Jagged(VALUES, np.array([0, 5, 10])))
    with pytest.raises(TypeError, match="all be Jagged"):
        quire.flex_attention(GOOD, VALUES, VALUES)
    with pytest.raises(TypeError, match="JaggedBlockMask"):
        quire.flex_attention(GOOD, GOOD, GOOD, block_mask=quire.create_block_mask("q_idx >= kv_idx", 1, 1, 4, 4))
    masks = quire.create_jagged_block_mask("q_idx >= kv_idx", 1, GOOD)
    with pytest.raises(ValueError, match="made for 2 sequences; got 3"):
        quire.flex_attention(three, three, three, block_mask=masks)
    with pytest.raises(ValueError, match="give mask_mod or block_mask, not both"):
        quire.flex_attention(GOOD, GOOD, GOOD, block_mask=masks, mask_mod="q_idx >= kv_idx")
    dense = np.ones((1, 2, 4, 8), np.float32)
    with pytest.raises(TypeError, match="jagged inputs"):
        quire.flex_attention(dense, dense, dense, block_mask=masks)
    with pytest.raises(ValueError, match="mask_mod is for jagged"):
        quire.flex_attention(dense, dense, dense, mask_mod="q_idx >= kv_idx")
    with pytest.raises(ValueError, match="q_begin"):
        quire.flex_attention(GOOD, GOOD, GOOD, q_begin=1)

"""A few queries over many keys, as people decode: caches of pages under torch.compile, masks that are cut for a step, offsets
and tables that a step captures."""

import functools

import pytest
import torch
from quire.torch import PagedAttention, create_block_mask, flex_attention, noop_mask

KEYS = 200
PAGE = 16


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True, **options)


def tensors(batch=2, q_heads=4, kv_heads=2, q_len=1, keys=KEYS, dims=(16, 16), dtype=torch.float32):
    shapes = (batch, q_heads, q_len, dims[0]), (batch, kv_heads, keys, dims[0]), (batch, kv_heads, keys, dims[1])
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def in_pages(key, value, n_pages=64):
    """(pages, key cache, value cache): the same keys, scattered."""
    batch, heads, keys, _ = key.shape
    pages = PagedAttention(n_pages, PAGE, batch)
    for part in (3, 2, 1):  # in turns, so that the pages of a sequence do not follow one another
        for sequence in reversed(range(batch)):
            pages.reserve(torch.tensor(sequence), torch.tensor(keys // part))
    caches = [torch.zeros(1, heads, n_pages * PAGE, one.shape[3], dtype=one.dtype) for one in (key, value)]
    positions = torch.arange(keys, dtype=torch.int32).expand(batch, keys)
    pages.assign(torch.arange(batch, dtype=torch.int32), positions, key, value, *caches)
    return pages, *caches


TABLE = torch.randn(2, 4, 4, KEYS)
SWITCH = {"adds": True}
ONE = torch.ones((), dtype=torch.int32)
MODS = {
    "identity": lambda score, b, h, q, kv: score,
    "causal": lambda score, b, h, q, kv: torch.where(q >= kv, score, float("-inf")),
    "squared": lambda score, b, h, q, kv: score * score,
    "head offset": lambda score, b, h, q, kv: score + 2 * h,
    "trig": lambda score, b, h, q, kv: torch.sin(torch.cos(score)) + torch.tan(b),
    "trig 2": lambda score, b, h, q, kv: torch.cos(score) * torch.sin(score) + torch.tan(b),
    "odd keys": lambda score, b, h, q, kv: torch.where(kv % 2 == 0, score, float("-inf")),
    "table": lambda score, b, h, q, kv: score + TABLE[b, h, q, kv],
    "scale": lambda score, b, h, q, kv, one=ONE: score + one,
    "silu": lambda score, b, h, q, kv: torch.nn.functional.silu(score),
}


@pytest.mark.parametrize("name", MODS)
def test_pages_give_the_bits_of_the_dense_call(name):
    query, key, value = tensors(q_len=3, dims=(16, 8))
    pages, *caches = in_pages(key, value)
    mask = create_block_mask(noop_mask, 2, 1, 3, KEYS, BLOCK_SIZE=PAGE)
    expected, lse = flex_attention(query, key, value, MODS[name], mask, enable_gqa=True, return_lse=True)
    lengths = torch.full((2,), KEYS)  # the last page is not full
    rule = pages.convert_logical_block_mask(mask, kv_len=lengths)
    mod = pages.get_score_mod(MODS[name], lengths)
    for attend in (flex_attention, compiled(flex_attention)):
        out, found = attend(query, *caches, mod, rule, enable_gqa=True, return_lse=True)
        assert torch.equal(out, expected) and torch.equal(found, lse)


def test_one_call_after_the_other_over_pages():
    query, key, value = tensors(batch=1, q_heads=4, kv_heads=4, q_len=4)
    mask = create_block_mask(noop_mask, 1, 1, 4, KEYS, BLOCK_SIZE=PAGE)
    mods = [lambda score, b, h, q, kv: score + (q - kv), MODS["causal"]]

    def dense(query):
        return functools.reduce(lambda out, mod: flex_attention(out, key, value, mod, mask), mods, query)

    made = [in_pages(key, value) for _ in mods]
    end = torch.tensor([KEYS])
    converted = [
        (pages.get_score_mod(mod, end), pages.convert_logical_block_mask(mask, kv_len=end))
        for (pages, *_), mod in zip(made, mods)
    ]

    def paged(query):
        for (_, *caches), pair in zip(made, converted):
            query = flex_attention(query, *caches, *pair)
        return query

    assert torch.equal(compiled(paged)(query), dense(query))


@pytest.mark.parametrize("name", ["identity", "causal", "head offset"])
def test_sequences_of_different_lengths_in_one_step(name):
    """A mask for all positions, cut for each sequence, and over pages for all of them at once."""
    lengths, most = (5, 98, 47, 194), 256
    mask = create_block_mask(causal, 4, 1, most, most, BLOCK_SIZE=PAGE)
    alone, queries = [], []
    pages = PagedAttention(80, PAGE, 4)
    caches = torch.zeros(2, 1, 4, 80 * PAGE, 16)
    for sequence, length in enumerate(lengths):
        query, key, value = tensors(1, 4, 4, 1, length)
        cut = mask._adjust(1, length)
        cut.seq_lengths = (1, length)
        alone.append(flex_attention(query, key, value, MODS[name], cut))
        queries.append(query)
        pages.reserve(torch.tensor(sequence), torch.tensor(most))
        pages.assign(torch.tensor([sequence]), torch.arange(length)[None], key, value, *caches)
    converted = pages.convert_logical_block_mask(mask)
    converted.seq_lengths = (1, converted.seq_lengths[1])
    attend = functools.partial(flex_attention, score_mod=pages.get_score_mod(MODS[name]), block_mask=converted)
    for run in (attend, compiled(attend)):
        torch.testing.assert_close(run(torch.cat(queries), *caches), torch.cat(alone))


@pytest.mark.parametrize("q_len", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_offsets_and_lengths_that_blocks_do_not_divide(q_len, dtype):
    query, key, value = tensors(q_len=q_len, keys=KEYS - 3, dtype=dtype)
    offset = torch.tensor(KEYS // 2 - 3, dtype=torch.int32)
    of_keys, of_queries = torch.randn(KEYS - 3, dtype=torch.bfloat16), torch.randn(q_len, dtype=torch.bfloat16)
    mask = create_block_mask(lambda b, h, q, kv: kv >= q + offset, 2, 1, q_len, KEYS - 3)
    mod = lambda score, b, h, q, kv: score + of_keys[kv] + of_queries[q]  # noqa: E731
    out = flex_attention(query, key, value, mod, mask, enable_gqa=True)
    visible = torch.arange(KEYS - 3) >= torch.arange(q_len)[:, None] + offset
    bias = (of_keys.double() + of_queries.double()[:, None]).masked_fill(~visible, float("-inf"))
    exact = torch.nn.functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), bias, enable_gqa=True
    )
    torch.testing.assert_close(
        out.double(),
        exact,
        rtol=1.6e-2 if dtype == torch.bfloat16 else 1e-4,
        atol=1e-2 if dtype == torch.bfloat16 else 1e-5,
    )
    assert torch.equal(compiled(flex_attention)(query, key, value, mod, mask, enable_gqa=True), out)


STRIDES = {
    "transposed": lambda b, h, s, d: ((s * h * d, d, h * d, 1), 0),
    "offset": lambda b, h, s, d: ((h * s * d, s * d, d, 1), 997),
    "shared batch": lambda b, h, s, d: ((0, s * d, d, 1), 0),
    "shared heads": lambda b, h, s, d: ((s * (d + 1), 0, d + 1, 1), 293),
    "shared keys": lambda b, h, s, d: ((h * 64, 64, 0, 1), 0),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strided_caches(name):
    batch, heads, dim = 2, 2, 16
    query = torch.randn(1, 4, batch, dim).transpose(0, 2)
    strides, offset = STRIDES[name](batch, heads, KEYS, dim)
    key, value = (
        torch.as_strided(torch.randn(batch * heads * KEYS * dim * 4), (batch, heads, KEYS, dim), strides, offset)
        for _ in range(2)
    )
    mod = lambda score, b, h, q, kv: score + (kv - q) * torch.exp2(-((h + 1) * 8.0 / 4))  # noqa: E731
    expected = flex_attention(query, key.contiguous(), value.contiguous(), mod, enable_gqa=True)
    assert torch.equal(flex_attention(query, key, value, mod, enable_gqa=True), expected)
    assert torch.equal(compiled(flex_attention)(query, key, value, mod, enable_gqa=True), expected)
    pages, *caches = in_pages(key, value)
    mask, lengths = create_block_mask(noop_mask, batch, 1, 1, KEYS, BLOCK_SIZE=PAGE), torch.full((batch,), KEYS)
    rule = pages.convert_logical_block_mask(mask, kv_len=lengths)
    assert torch.equal(
        flex_attention(query, *caches, pages.get_score_mod(mod, lengths), rule, enable_gqa=True), expected
    )


def test_keys_of_a_batch_of_one():
    query, key, value = tensors(batch=3)
    mask = create_block_mask(noop_mask, 3, 1, 1, KEYS)
    for mod in MODS.values():
        if mod is MODS["table"]:
            continue
        expected = flex_attention(
            query, *(one[:1].expand(3, -1, -1, -1) for one in (key, value)), mod, mask, enable_gqa=True
        )
        assert torch.equal(flex_attention(query, key[:1], value[:1], mod, mask, enable_gqa=True), expected)


def test_a_mod_that_changes_its_mind():
    query, key, value = tensors()
    scale = torch.full((), 2, dtype=torch.int32)

    def mod(score, b, h, q, kv):
        return score + scale if SWITCH["adds"] else score * scale

    run = compiled(flex_attention)
    outs = []
    for SWITCH["adds"] in (True, False):
        outs.append(flex_attention(query, key, value, mod, enable_gqa=True))
        assert torch.equal(run(query, key, value, mod, enable_gqa=True), outs[-1])
    assert not torch.equal(*outs)


def test_growing_keys_are_compiled_twice():
    torch._dynamo.utils.counters.clear()
    run = compiled(flex_attention)
    for step in range(5):
        query, key, value = tensors(kv_heads=4, keys=KEYS + step)
        assert torch.equal(run(query, key, value), flex_attention(query, key, value))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == min(step + 1, 2)


def test_rows_that_see_nothing_under_gqa():
    query, key, value = (one.requires_grad_() for one in tensors(q_len=KEYS))
    mask = create_block_mask(lambda b, h, q, kv: q < KEYS // 2, 1, 1, KEYS, KEYS)
    out, lse = compiled(flex_attention)(query, key, value, block_mask=mask, enable_gqa=True, return_lse=True)
    assert (lse[:, :, KEYS // 2 :] == -float("inf")).all() and not out[:, :, KEYS // 2 :].any()
    (out.sum() + lse.sum()).backward()
    assert not query.grad[:, :, KEYS // 2 :].any() and query.grad[:, :, : KEYS // 2].any()


def test_heads_of_a_mask_that_see_nothing():
    query, key, value = tensors(q_len=3)
    shows = torch.tensor([False, True, True, True])
    mask = create_block_mask(lambda b, h, q, kv: shows[h] & (q + 190 >= kv), 1, 4, 3, KEYS)
    out = flex_attention(query, key, value, MODS["trig"], mask, enable_gqa=True)
    assert not out[:, 0].any() and out[:, 1:].any()
    assert torch.equal(compiled(flex_attention)(query, key, value, MODS["trig"], mask, enable_gqa=True), out)

"""Attention over pages: bits of the dense call, for masks of quire.torch's class and of torch's own, wrapped or not."""

import pytest
import quire.torch as qt
import torch
from paged_pool import CLASSES, Pool
from quire import _core
from torch.nn.attention.flex_attention import flex_attention as torch_flex_attention


def windowed(b, h, q_idx, kv_idx):
    return (kv_idx + 3 * q_idx + h) % 7 != 2


def biased(score, b, h, q_idx, kv_idx):
    return score + 0.01 * (h + 1) * (q_idx - kv_idx)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("page_size", (1, 5, 16, 128))
@pytest.mark.parametrize("q_len", (1, 4, 70))
def test_bits_are_those_of_the_dense_call(cls, page_size, q_len):
    pool = Pool(cls, page_size, (300, 1, 129))
    query = pool.query(q_len)
    expected = pool.dense(query, windowed, biased)
    physical = pool.paged.convert_logical_block_mask(pool.logical(windowed, q_len), kv_len=pool.lengths)
    score_mod = pool.paged.get_score_mod(biased)
    with qt.enable():
        out = torch_flex_attention(query, pool.k_cache, pool.v_cache, score_mod, physical, enable_gqa=True)
    assert torch.equal(out, expected)
    assert torch.equal(
        qt.flex_attention(query, pool.k_cache, pool.v_cache, score_mod, physical, enable_gqa=True), expected
    )


SCORES = {
    "nothing": None,
    "identity": lambda score, b, h, q_idx, kv_idx: score,
    "twice": lambda score, b, h, q_idx, kv_idx: score * 2,
    "soft-cap": lambda score, b, h, q_idx, kv_idx: 20 * torch.tanh(score / 20),
    "alibi": lambda score, b, h, q_idx, kv_idx: score + (kv_idx - q_idx) * torch.exp2(-((h + 1) * 8.0 / 4)),
    "causal": lambda score, b, h, q_idx, kv_idx: torch.where(q_idx + 200 >= kv_idx, score, -float("inf")),
}


def as_attention_gym_converts(paged, score_mod, mask_mod):
    """With the page as the only question of its own, which is how attention-gym's class writes mods."""

    def page_and_key(b, kv_idx):
        page = paged.physical_to_logical[b, kv_idx // paged.page_size]
        return page, page * paged.page_size + kv_idx % paged.page_size

    def score(value, b, h, q_idx, kv_idx):
        page, key = page_and_key(b, kv_idx)
        return torch.where(page >= 0, score_mod(value, b, h, q_idx, key), -float("inf"))

    def mask(b, h, q_idx, kv_idx):
        page, key = page_and_key(b, kv_idx)
        return torch.where(page >= 0, mask_mod(b, h, q_idx, key), False)

    return None if score_mod is None else score, mask


@pytest.mark.parametrize("rule", [qt.noop_mask, windowed], ids=["noop", "windowed"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("cls", CLASSES)
def test_bits_with_any_mod(cls, score, rule):
    """Lengths in the score mod, in the mask, in both; the formulas of attention-gym, for whole pages."""
    pool, score_mod = Pool(cls, 16, (300, 16, 128)), SCORES[score]
    query = pool.query(5)
    expected = pool.dense(query, rule, score_mod)
    for in_score, in_mask in ((True, True), (True, False), (False, True)):
        mask = pool.paged.convert_logical_block_mask(pool.logical(rule, 5), kv_len=pool.lengths if in_mask else None)
        mod = pool.paged.get_score_mod(score_mod, pool.lengths if in_score else None) if in_score or score_mod else None
        out = qt.flex_attention(query, pool.k_cache, pool.v_cache, mod, mask, enable_gqa=True)
        assert torch.equal(out, expected), (in_score, in_mask)
    pool = Pool(cls, 16, (304, 16, 128))
    mod, converted = as_attention_gym_converts(pool.paged, score_mod, rule)
    mask = pool.paged.convert_logical_block_mask(pool.logical(rule, 5, separate_full_blocks=False))
    mask.mask_mod = converted
    out = qt.flex_attention(query, pool.k_cache, pool.v_cache, mod, mask, enable_gqa=True)
    assert torch.equal(out, pool.dense(query, rule, score_mod))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float64))
def test_bits_of_other_dtypes(dtype):
    pool = Pool(qt.PagedAttention, 16, (90, 300), dtype=dtype)
    query = pool.query(2)
    physical = pool.paged.convert_logical_block_mask(pool.logical(windowed, 2), kv_len=pool.lengths)
    score_mod = pool.paged.get_score_mod(biased)
    out = qt.flex_attention(query, pool.k_cache, pool.v_cache, score_mod, physical, enable_gqa=True)
    assert torch.equal(out, pool.dense(query, windowed, biased))


@pytest.mark.parametrize("cls", CLASSES)
def test_mods_are_recognised_inside_wrappers(cls):
    pool = Pool(cls, 16, (300, 77))
    paged, lengths = pool.paged, pool.lengths
    query = pool.query(3)
    converted = paged.get_mask_mod(windowed, lengths)

    def wrapper(b, h, q_idx, kv_idx):
        return torch.where(h < 3, converted(b, h, q_idx, kv_idx), converted(b, h, q_idx + 1, kv_idx))

    def logical_wrapper(b, h, q_idx, kv_idx):
        return torch.where(h < 3, windowed(b, h, q_idx, kv_idx), windowed(b, h, q_idx + 1, kv_idx))

    def late(b, h, q_idx, kv_idx):
        return kv_idx > 30

    expected = pool.dense(query, qt.and_masks(logical_wrapper, late), biased)
    physical = paged.convert_logical_block_mask(pool.logical(windowed, 3, separate_full_blocks=False))
    physical.mask_mod = qt.and_masks(wrapper, qt.or_masks(paged.get_mask_mod(late), paged.get_mask_mod(late, lengths)))
    score_mod = paged.get_score_mod(biased)
    wrapped_score = lambda s, b, h, q, kv: score_mod(s, b, h, q, kv) + 0.0  # noqa: E731
    out = qt.flex_attention(query, pool.k_cache, pool.v_cache, wrapped_score, physical, enable_gqa=True)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("cls", CLASSES)
def test_rows_of_other_sequences(cls):
    """A batch of some of the sequences: the mods take another b than the tables."""
    pool = Pool(cls, 16, (60, 300, 131))
    chosen = torch.tensor([2, 0])
    logical = pool.logical(windowed, 2, separate_full_blocks=False)
    part = qt.create_block_mask(windowed, 2, 4, 2, pool.longest, BLOCK_SIZE=(32, 16), separate_full_blocks=False)
    physical = pool.paged.convert_logical_block_mask(part, chosen)
    converted = pool.paged.get_mask_mod(windowed, pool.lengths)
    physical.mask_mod = lambda b, h, q, kv: converted(chosen[b], h, q, kv)
    query = pool.query(2)
    out = qt.flex_attention(query[chosen], pool.k_cache, pool.v_cache, None, physical, enable_gqa=True)
    assert torch.equal(out, pool.dense(query, windowed)[chosen])
    assert logical.shape[0] == 3


def test_the_lists_say_which_pages_are_visible():
    pool = Pool(qt.PagedAttention, 16, (160,))
    query = pool.query(1)
    physical = pool.paged.convert_logical_block_mask(pool.logical(lambda b, h, q, kv: kv >= 0, 1), kv_len=pool.lengths)
    hidden = pool.paged.page_table[0, 4]
    listed = physical.kv_indices
    keep = listed[..., :10] != hidden
    listed[..., :9] = listed[..., :10][keep].view(1, 4, 1, 9)
    physical.kv_num_blocks.sub_(1)
    out = qt.flex_attention(query, pool.k_cache, pool.v_cache, None, physical, enable_gqa=True)
    assert torch.equal(out, pool.dense(query, lambda b, h, q, kv: kv // 16 != 4))


def test_pages_shared_by_two_sequences():
    pool = Pool(qt.PagedAttention, 16, (160, 3))
    paged = pool.paged
    shared = paged.page_table[0, :4].clone()
    paged.erase(torch.tensor([1]))
    paged.page_table[1, :4] = shared
    paged.physical_to_logical[1, shared] = torch.arange(4)
    query = pool.query(1)
    lengths = torch.tensor([160, 64])
    physical = paged.convert_logical_block_mask(pool.logical(windowed, 1), kv_len=lengths)
    out = qt.flex_attention(query, pool.k_cache, pool.v_cache, None, physical, enable_gqa=True)
    pool.k[1], pool.v[1] = pool.k[0], pool.v[0]
    pool.lengths = lengths
    assert torch.equal(out, pool.dense(query, windowed))


def test_other_arithmetic_is_computed_as_it_is_written():
    pool = Pool(qt.PagedAttention, 16, (100, 37), poison=0.0)
    query = pool.query(2)
    converted = pool.paged.get_mask_mod(windowed, pool.lengths)
    physical = pool.paged.convert_logical_block_mask(pool.logical(windowed, 2, separate_full_blocks=False))
    physical.mask_mod = lambda b, h, q, kv: converted(b, h, q, kv) & (kv % 32 < 30)
    out = qt.flex_attention(query, pool.k_cache, pool.v_cache, None, physical, enable_gqa=True)
    slots = pool.k_cache.shape[2]
    grid = torch.meshgrid(*(torch.arange(n) for n in (2, 4, 2, slots)), indexing="ij")
    k, v = (t.expand(2, -1, -1, -1).repeat_interleave(2, 1).double() for t in (pool.k_cache, pool.v_cache))
    scores = (query.double() @ k.mT / 4).masked_fill(~physical.mask_mod(*grid), -torch.inf)
    torch.testing.assert_close(out.double(), scores.softmax(-1) @ v, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cls", CLASSES)
def test_results_are_torchs(cls):
    pool = Pool(cls, 16, (100, 37), poison=0.0)
    query = pool.query(3)
    physical = pool.paged.convert_logical_block_mask(pool.logical(windowed, 3), kv_len=pool.lengths)
    score_mod = pool.paged.get_score_mod(biased, pool.lengths)
    arguments = (query, pool.k_cache, pool.v_cache, score_mod, physical)
    ours = qt.flex_attention(*arguments, enable_gqa=True)
    torch.testing.assert_close(ours, torch_flex_attention(*arguments, enable_gqa=True), rtol=1e-5, atol=1e-5)


def test_a_score_mod_alone():
    pool = Pool(qt.PagedAttention, 16, (100,))
    query = pool.query(2)
    score_mod = pool.paged.get_score_mod(biased, pool.lengths)
    out = qt.flex_attention(query, pool.k_cache, pool.v_cache, score_mod, enable_gqa=True)
    assert torch.equal(out, pool.dense(query, lambda b, h, q, kv: kv >= 0, biased))


@pytest.mark.parametrize("cls", CLASSES)
def test_a_compiled_decode_step(cls):
    pool = Pool(cls, 16, (300, 77))
    score_mod = pool.paged.get_score_mod(biased)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(query, k_cache, v_cache, mask):
        return qt.flex_attention(query * 1.0, k_cache, v_cache, score_mod, mask, enable_gqa=True) + 0.0

    for length in (40, 70):
        lengths = torch.tensor([300, length])
        physical = pool.paged.convert_logical_block_mask(pool.logical(windowed, 1), kv_len=lengths)
        query = pool.query(1)
        pool.lengths = lengths
        assert torch.equal(step(query, pool.k_cache, pool.v_cache, physical), pool.dense(query, windowed, biased))


def test_a_step_hits_the_cache_of_traced_mods():
    pool = Pool(qt.PagedAttention, 16, (300, 77))
    query = pool.query(1)
    from quire.torch import mods

    keys = set()
    for length in (40, 70):
        kv_len = torch.tensor([300, length])
        pool.paged.reserve(torch.tensor([2]), torch.tensor([length]))
        mask = pool.paged.convert_logical_block_mask(pool.logical(windowed, 1), kv_len=kv_len)
        qt.flex_attention(query, pool.k_cache, pool.v_cache, None, mask, enable_gqa=True)
        keys.add(id(mods.bind_mask_mod(mask.mask_mod).key))
    assert len(keys) == 1


def test_the_core_agrees_that_lists_of_pages_may_have_holes():
    num, pages = torch.tensor([[2]], dtype=torch.int32), torch.tensor([[[-1, 1, 0]]], dtype=torch.int32)
    mask = qt.BlockMask.from_kv_blocks(num[None], pages[None], BLOCK_SIZE=(1, 4), seq_lengths=(1, 12))
    k = torch.randn(1, 1, 12, 4)
    out = qt.flex_attention(k[:, :, :1], k, k, block_mask=mask)
    assert torch.equal(out, qt.flex_attention(k[:, :, :1], k[:, :, 4:8], k[:, :, 4:8]))
    with pytest.raises(IndexError):
        _core.BlockMask.from_kv_blocks(num.numpy(), pages.numpy(), BLOCK_SIZE=(1, 4), seq_lengths=(1, 12))

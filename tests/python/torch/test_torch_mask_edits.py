"""A block mask's attributes may be assigned, and its tensors edited in place: the next call sees it."""

import gc
import weakref

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from peer import causal
from quire.torch import create_block_mask, flex_attention
from quire.torch.blocks import _converted


def dense_attention(query, key, value, visible):
    scores = query.double() @ key.double().mT / query.shape[-1] ** 0.5
    scores = scores.masked_fill(~visible, -torch.inf)
    return (torch.nan_to_num(scores.softmax(-1)) @ value.double()).float()


def blocks_visible(mask, rule):
    """What a mask shows: blocks, and the rule inside partial ones."""
    q_size, kv_size = mask.BLOCK_SIZE
    q_len, kv_len = mask.seq_lengths
    listed = mask.to_dense().bool().repeat_interleave(q_size, -2).repeat_interleave(kv_size, -1)[..., :q_len, :kv_len]
    return listed & rule


@pytest.fixture
def qkv():
    return tuple(torch.randn(2, 2, 128, 16) for _ in range(3))


def make(kind, mod=causal, **options):
    if kind == "quire":
        return create_block_mask(mod, None, None, 128, 128, BLOCK_SIZE=32, **options)
    return torch_flex.create_block_mask(mod, None, None, 128, 128, device="cpu", BLOCK_SIZE=32, **options)


KINDS = pytest.mark.parametrize("kind", ["quire", "torch"])
LOWER = torch.ones(128, 128, dtype=torch.bool).tril()


@KINDS
def test_edited_lists_count(kind, qkv):
    mask = make(kind)
    assert torch.allclose(flex_attention(*qkv, block_mask=mask), dense_attention(*qkv, LOWER), atol=1e-5)
    mask.full_kv_num_blocks[0, 0, 3] = 1  # the last row of blocks: one full block of three remains
    result = flex_attention(*qkv, block_mask=mask)
    assert torch.allclose(result, dense_attention(*qkv, blocks_visible(mask, LOWER)), atol=1e-5)
    assert not torch.allclose(result, dense_attention(*qkv, LOWER), atol=1e-5)


@KINDS
def test_assigned_lists_count(kind, qkv):
    mask = make(kind)
    flex_attention(*qkv, block_mask=mask)
    mask.full_kv_num_blocks = torch.zeros_like(mask.full_kv_num_blocks)
    result = flex_attention(*qkv, block_mask=mask)
    assert torch.allclose(result, dense_attention(*qkv, blocks_visible(mask, LOWER)), atol=1e-5)
    mask.full_kv_num_blocks = mask.full_kv_indices = None
    assert torch.equal(flex_attention(*qkv, block_mask=mask), result)


@KINDS
def test_assigned_rule_counts(kind, qkv):
    mask = make(kind)
    flex_attention(*qkv, block_mask=mask)
    mask.mask_mod = lambda b, h, q, kv: q - kv > 3
    rule = torch.arange(128)[:, None] - torch.arange(128) > 3
    full = torch.zeros(4, 4, dtype=torch.bool).repeat_interleave(32, 0).repeat_interleave(32, 1)
    for row in range(4):
        full[row * 32 : row * 32 + 32, : row * 32] = True  # full blocks do not ask
    visible = (rule | full) & blocks_visible(mask, torch.ones(128, 128, dtype=torch.bool))
    assert torch.allclose(flex_attention(*qkv, block_mask=mask), dense_attention(*qkv, visible), atol=1e-5)


@KINDS
def test_rule_reads_its_tensors_at_the_call(kind, qkv):
    doc = torch.arange(128) // 50
    mask = make(kind, lambda b, h, q, kv: doc[q] == doc[kv])
    before = flex_attention(*qkv, block_mask=mask)
    dense = mask.to_dense().clone()
    doc.copy_(torch.arange(128) // 45)
    after = flex_attention(*qkv, block_mask=mask)
    assert not torch.equal(before, after)
    assert torch.equal(mask.to_dense(), dense)  # the blocks are those of the day it was made
    whole = torch.arange(4) * 32
    full = torch.zeros(128, 128, dtype=torch.bool)
    partial = torch.zeros(128, 128, dtype=torch.bool)
    for row in whole.tolist():
        for column in range(int(mask.full_kv_num_blocks[0, 0, row // 32])):
            at = int(mask.full_kv_indices[0, 0, row // 32, column]) * 32
            full[row : row + 32, at : at + 32] = True
        for column in range(int(mask.kv_num_blocks[0, 0, row // 32])):
            at = int(mask.kv_indices[0, 0, row // 32, column]) * 32
            partial[row : row + 32, at : at + 32] = True
    visible = full | (partial & (doc[:, None] == doc))
    assert torch.allclose(after, dense_attention(*qkv, visible), atol=1e-5)


def test_a_decode_step_as_in_gpt_fast(qkv):
    query, key, value = qkv
    whole = create_block_mask(causal, None, None, 128, 128, BLOCK_SIZE=32)
    for position in (0, 31, 32, 100, 127):
        step = whole[:, :, position // 32]
        with pytest.raises(RuntimeError, match="mask_mod is gone"):
            flex_attention(query[:, :, :1], key, value, block_mask=step)
        step.mask_mod = lambda b, h, q, kv, at=position: whole.mask_mod(b, h, q + at, kv)
        step.seq_lengths = (1, 128)
        result = flex_attention(query[:, :, :1], key, value, block_mask=step)
        visible = (torch.arange(128) <= position)[None]
        assert torch.allclose(result, dense_attention(query[:, :, :1], key, value, visible), atol=1e-5)


def test_conversion_is_cached_and_not_kept_alive(qkv):
    mask = make("torch")
    flex_attention(*qkv, block_mask=mask)
    blocks = _converted[mask]
    flex_attention(*qkv, block_mask=mask)
    assert _converted[mask] is blocks
    mask.kv_num_blocks.add_(0)  # an edit, even if nothing changed
    flex_attention(*qkv, block_mask=mask)
    assert _converted[mask] is not blocks
    gone, count = weakref.ref(mask), len(_converted)
    del mask, blocks
    gc.collect()
    assert gone() is None and len(_converted) == count - 1


def test_masks_made_under_inference_mode(qkv):
    with torch.inference_mode():
        for kind in ("quire", "torch"):
            mask = make(kind)
            expected = flex_attention(*qkv, block_mask=mask)
            assert torch.allclose(expected, dense_attention(*qkv, LOWER), atol=1e-5)
            mask.kv_num_blocks.zero_()
            assert not torch.equal(flex_attention(*qkv, block_mask=mask), expected)


def test_a_rule_over_tensors_made_under_inference_mode(qkv):
    with torch.inference_mode():
        doc = torch.arange(128) // 50
        mask = create_block_mask(lambda b, h, q, kv: doc[q] == doc[kv], None, None, 128, 128)
        assert torch.allclose(
            flex_attention(*qkv, block_mask=mask), dense_attention(*qkv, doc[:, None] == doc), atol=1e-5
        )
        doc.copy_(torch.arange(128) // 45)  # one block, partly visible before and after
        assert torch.allclose(
            flex_attention(*qkv, block_mask=mask), dense_attention(*qkv, doc[:, None] == doc), atol=1e-5
        )


@KINDS
def test_blocks_at_the_edge_ask_again(kind):
    """100 of 128: proved visible when the mask was made, and listed as partial, as torch lists it."""
    query = torch.randn(1, 1, 100, 16)
    limit = torch.tensor(100)
    if kind == "quire":
        mask = create_block_mask(lambda b, h, q, kv: kv < limit, None, None, 100, 100)
    else:
        mask = torch_flex.create_block_mask(lambda b, h, q, kv: kv < limit, None, None, 100, 100, device="cpu")
    everything = torch.ones(100, 100, dtype=torch.bool)
    result = flex_attention(query, query, query, block_mask=mask)
    assert torch.allclose(result, dense_attention(query, query, query, everything), atol=1e-5)
    for at in (30, 60, 100):
        limit.fill_(at)
        visible = everything & (torch.arange(100) < at)
        result = flex_attention(query, query, query, block_mask=mask)
        assert torch.allclose(result, dense_attention(query, query, query, visible), atol=1e-5)
    limit.data = torch.tensor(40)  # other memory, and not counted as an edit
    visible = everything & (torch.arange(100) < 40)
    result = flex_attention(query, query, query, block_mask=mask)
    assert torch.allclose(result, dense_attention(query, query, query, visible), atol=1e-5)


def test_copies_do_not_share_edits(qkv):
    import copy

    mask = make("quire")
    other = copy.deepcopy(mask)
    other.kv_num_blocks.zero_()
    assert torch.allclose(flex_attention(*qkv, block_mask=mask), dense_attention(*qkv, LOWER), atol=1e-5)
    assert not torch.equal(flex_attention(*qkv, block_mask=other), flex_attention(*qkv, block_mask=mask))


def test_a_mask_with_blocks_that_do_not_exist_is_an_error(qkv):
    mask = make("quire")
    mask.kv_indices[0, 0, 0, 0] = 99
    with pytest.raises(IndexError, match="row 0 must be in 0..3; got 99"):
        flex_attention(*qkv, block_mask=mask)
    assert isinstance(mask, quire_torch.BlockMask)

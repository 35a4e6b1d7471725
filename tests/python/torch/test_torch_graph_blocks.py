"""The words of a mask, as graphs hold them: what they say, how many they are, and what happens to damaged ones."""

import copy
import pickle

import pytest
import torch
from peer import causal
from quire import _core
from quire.torch import BlockMask, create_block_mask, flex_attention
from quire.torch.graph_blocks import blocks_of_tensors, blocks_of_words

LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices")


def per_head(b, h, q_idx, kv_idx):
    return (q_idx + 3 * b) // 4 >= kv_idx // (2 + h)


def assert_same(mask, other):
    assert (mask.shape, mask.BLOCK_SIZE) == (other.shape, other.BLOCK_SIZE)
    for name in LISTS:
        one, two = getattr(mask, name), getattr(other, name)
        assert (one is None and two is None) or torch.equal(one, two), name


@pytest.mark.parametrize("sizes", [(2, 3, 70, 90), (1, 1, 1, 257), (2, 1, 0, 5), (1, 2, 5, 0)])
@pytest.mark.parametrize("separate", [False, True])
def test_operators_give_the_words_of_the_mask(sizes, separate):
    mask = create_block_mask(per_head, *sizes, BLOCK_SIZE=(16, 8), separate_full_blocks=separate)
    text = "(q_idx + 3 * b) // 4 >= kv_idx // (2 + h)"
    operator = torch.ops.quire.create_block_mask
    words = operator(text, [], [], list(sizes), [16, 8], separate)
    assert torch.equal(words, mask._words)
    with torch._subclasses.FakeTensorMode():
        assert operator(text, [], [], list(sizes), [16, 8], separate).shape == words.shape
    assert blocks_of_words(words).core.same_blocks(mask._current_blocks().core)
    for name in LISTS:
        expected = getattr(mask, name)
        if expected is not None:
            assert torch.equal(torch.ops.quire.index_tensor(words, name, list(expected.shape)), expected)


def test_torchs_own_check_of_the_operators():
    doc = torch.arange(40) // 7
    arguments = ("d[q_idx] == d[kv_idx]", ["d"], [doc], [1, 1, 40, 40], [16, 16], True)
    words = torch.ops.quire.create_block_mask(*arguments)
    index_tensor = (words, "kv_indices", [1, 1, 3, 3])
    for operator, given in (("create_block_mask", arguments), ("index_tensor", index_tensor)):
        results = torch.library.opcheck(getattr(torch.ops.quire, operator).default, given)
        assert set(results.values()) == {"SUCCESS"}


def test_damaged_words_are_an_error():
    words = create_block_mask(causal, None, None, 100, 100, BLOCK_SIZE=16)._words
    query = torch.randn(1, 2, 100, 16)

    def attend(words):
        return torch.ops.quire.flex_attention(
            query,
            query,
            query,
            "",
            [],
            [],
            "q_idx >= kv_idx",
            [],
            [],
            [words],
            [100, 100],
            [16, 16],
            None,
            False,
            False,
        )

    attend(words)
    for at in range(words.numel()):
        damaged = words.clone()
        damaged[at] ^= 1 << 40
        with pytest.raises(ValueError, match="not those of a block mask, or damaged"):
            attend(damaged)
    for damaged in (words[:-1], words[:1], words[:0]):
        with pytest.raises(ValueError, match="damaged"):
            attend(damaged.clone())
    with pytest.raises(TypeError, match="words must be i64 with one axis"):
        attend(words.int())


def test_blocks_are_found_by_what_a_tensor_holds():
    """Not by where it lies: a compiled graph may write other values into the same memory, and nobody counts that."""
    first = create_block_mask(causal, None, None, 100, 100, BLOCK_SIZE=16)
    second = create_block_mask(lambda b, h, q, kv: q == kv, None, None, 100, 100, BLOCK_SIZE=16)
    words = first._words.clone()
    blocks = blocks_of_words(words)
    assert blocks_of_words(words.clone()) is blocks
    words.numpy()[:] = second._words.numpy()
    assert blocks_of_words(words).core.same_blocks(second._current_blocks().core)

    lists = [first.kv_num_blocks, first.kv_indices]
    blocks = blocks_of_tensors(lists, (100, 100), (16, 16))
    assert blocks_of_tensors(lists, (100, 100), (16, 16)) is blocks
    lists[0].numpy()[:] = 0
    assert blocks_of_tensors(lists, (100, 100), (16, 16)).core.sparsity() > 100 * (1 - 1e-9)
    assert blocks_of_tensors(lists, (96, 100), (16, 16)).core.seq_lengths == (96, 100)


def test_large_masks_take_few_words():
    mask = create_block_mask(lambda b, h, q, kv: (q >= kv) & (q - kv < 4096), None, None, 1 << 20, 1 << 20)
    assert mask._words.numel() < 8192 * 5
    assert mask._words._dynamo_weak_dynamic_indices == {0}  # other masks have another number of words
    assert blocks_of_words(mask._words).core.same_blocks(mask._current_blocks().core)
    assert _core.BlockMask.dense_words(1, 1, 8192, 8192) == 16 + 8192 * 256


def module_rule(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


@pytest.mark.parametrize("edited", [False, True])
def test_copies(edited):
    mask = create_block_mask(module_rule, 1, 2, 100, 90, BLOCK_SIZE=(16, 32))
    expected = create_block_mask(module_rule, 1, 2, 100, 90, BLOCK_SIZE=(16, 32))
    if edited:
        for one in (mask, expected):
            one.full_kv_num_blocks.zero_()
    for other in (copy.copy(mask), copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert type(other) is BlockMask and other.mask_mod is module_rule
        assert_same(other, expected)
    assert mask._is_exposed is edited  # what copies read nobody can edit


def test_rules_without_a_name_are_pickled_as_formulas():
    doc = torch.arange(100) // 30
    mask = create_block_mask(lambda b, h, q, kv: (q >= kv) & (doc[q] == doc[kv]), None, None, 100, 100, BLOCK_SIZE=16)
    other = pickle.loads(pickle.dumps(mask))
    doc.zero_()  # not the other's
    query = torch.randn(1, 2, 100, 16)
    doc_then = torch.arange(100) // 30
    expected = create_block_mask(
        lambda b, h, q, kv: (q >= kv) & (doc_then[q] == doc_then[kv]), None, None, 100, 100, BLOCK_SIZE=16
    )
    assert_same(other, expected)
    found = flex_attention(query, query, query, block_mask=other)
    assert torch.equal(found, flex_attention(query, query, query, block_mask=expected))
    again = pickle.loads(pickle.dumps(other))
    assert torch.equal(flex_attention(query, query, query, block_mask=again), found)
    assert copy.deepcopy(mask).mask_mod is mask.mask_mod

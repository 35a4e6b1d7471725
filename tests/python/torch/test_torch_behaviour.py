"""What later versions of torch do otherwise, asked of stand-ins for them: errors of lengths, lengths of parts; and lists of blocks by
torch's operations, which need none of torch's private functions."""

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from quire.torch import originals, torch_behaviour
from quire.torch.block_lists import adjusted, transposed

LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


def window(b, h, q, kv):
    return (q - kv).abs() <= 50


def compiled(function):
    torch.compiler.reset()
    return torch.compile(function, backend="eager", fullgraph=True)


# ---- the exception of a mask of other lengths


@pytest.fixture
def asked_again():
    torch_behaviour.error_of_lengths.cache_clear()
    yield
    torch_behaviour.error_of_lengths.cache_clear()


def wrong_lengths():
    query, mask = torch.randn(1, 1, 20, 8), quire_torch.create_block_mask(window, None, None, 10, 20)
    call = lambda query: quire_torch.flex_attention(query, query, query, block_mask=mask)  # noqa: E731
    return query, call


@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_lengths_that_differ_raise_what_torch_raises(monkeypatch, asked_again, error):
    asked = []

    def flex_attention(query, key, value, block_mask):
        asked.append(query.shape[2] != block_mask.shape[2])
        raise error("block_mask was created for another length")

    monkeypatch.setattr(originals, "flex_attention", flex_attention)
    query, call = wrong_lengths()
    for attention in (call, call, compiled(call)):
        with pytest.raises(error, match="created for 10 queries and 20 keys; got 20 and 20") as found:
            attention(query)
        assert type(found.value) is error
    assert asked == [True]


def test_of_this_torch(asked_again):
    query, call = wrong_lengths()
    mask = torch_flex.create_block_mask(window, None, None, 10, 20, "cpu")
    with pytest.raises((ValueError, RuntimeError)) as theirs:
        originals.flex_attention(query, query, query, block_mask=mask)
    with quire_torch.enable(), pytest.raises(type(theirs.value)):
        call(query)


def test_an_exception_that_nobody_knows_is_a_value_error(monkeypatch, asked_again):
    monkeypatch.setattr(originals, "flex_attention", lambda *_, **__: 1 / 0)
    assert torch_behaviour.error_of_lengths() is ValueError


# ---- the lengths of a part


def lengths_of_rows(index, rows, length, size):
    """2.15's: those of the chosen blocks, the last of which may be cut off."""
    chosen = range(rows)[index]
    return sum(min(length, (one + 1) * size) - one * size for one in chosen)


@pytest.fixture
def later_torch(monkeypatch):
    of_now = torch_flex.BlockMask.__getitem__

    def later(self, index):
        part = of_now(self, index)
        rows = (*index, *[slice(None)] * 3)[2]
        if isinstance(rows, slice):
            length = lengths_of_rows(rows, self.kv_num_blocks.shape[2], self.seq_lengths[0], self.BLOCK_SIZE[0])
            part.seq_lengths = (length, self.seq_lengths[1])
        return part

    monkeypatch.setattr(torch_flex.BlockMask, "__getitem__", later)


def test_parts_have_the_lengths_that_torch_gives_them(later_torch):
    mask = quire_torch.create_block_mask(window, 2, 3, 300, 457, BLOCK_SIZE=64)
    for index, length in [
        (0, 300),
        ((0, 1), 300),
        ((0, 1, 2), 64),
        ((0, 0, -1), 44),
        ((slice(None), 0, slice(1, 3)), 128),
    ]:
        part = mask[index]
        assert part.seq_lengths == (length, 457) and part.shape[2:] == (length, 457)
        assert part.kv_num_blocks.shape[2] == -(-length // 64)
        assert isinstance(part, quire_torch.BlockMask)


def test_a_part_with_its_own_length_can_be_used(later_torch):
    mask = quire_torch.create_block_mask(window, None, None, 300, 300, BLOCK_SIZE=64)
    query, key = torch.randn(1, 2, 300, 16), torch.randn(1, 2, 300, 16)
    whole = quire_torch.flex_attention(query, key, key, block_mask=mask)
    part = mask[:, :, 2:]
    part.mask_mod = lambda b, h, q, kv: window(b, h, q + 128, kv)
    assert torch.equal(quire_torch.flex_attention(query[:, :, 128:], key, key, block_mask=part), whole[:, :, 128:])


def test_lists_of_fewer_axes_are_indexed_too(later_torch):
    source = quire_torch.create_block_mask(window, 1, 1, 300, 300, BLOCK_SIZE=64)
    lists = (source.kv_num_blocks[0, 0], source.kv_indices[0, 0])
    mask = quire_torch.BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=64, seq_lengths=(300, 300))
    assert mask[1:3].shape == (128, 300)


# ---- lists by torch's operations


def random_lists(rows, columns, width):
    torch.manual_seed(rows)
    counts = torch.randint(0, width + 1, (2, 1, rows), dtype=torch.int32)
    indices = torch.rand(2, 1, rows, columns).argsort(-1)[..., :width].to(torch.int32)
    return counts, indices


@pytest.mark.parametrize("rows, columns, width", [(7, 5, 5), (3, 11, 4), (1, 1, 1), (4, 6, 0)])
def test_lists_seen_from_the_keys(rows, columns, width):
    counts, indices = random_lists(rows, columns, width)
    core = quire_torch.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=16, seq_lengths=(16 * rows, 16 * columns))
    for found, name in zip(transposed(counts, indices, columns), ("q_num_blocks", "q_indices")):
        assert torch.equal(found, getattr(core, name)) and found.dtype is torch.int32
    if width == columns:
        expected = torch_flex._transpose_ordered(counts, indices)
        assert all(map(torch.equal, transposed(counts, indices, columns), expected))


def test_a_block_below_0_is_none():
    counts, indices = torch.tensor([[2]]), torch.tensor([[[-1, 1]]])
    assert transposed(counts, indices, 3)[0].tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("rows, columns", [(5, 8), (3, 2), (1, 1), (8, 8)])
def test_lists_cut_off_are_those_of_the_core(rows, columns):
    mask = quire_torch.create_block_mask(window, 2, None, 128, 128, BLOCK_SIZE=16)
    expected = mask._adjust(16 * rows, 16 * columns)
    for counts, indices in (LISTS[:2], LISTS[2:]):
        found, places = adjusted(getattr(mask, counts), getattr(mask, indices), rows, columns)
        assert torch.equal(found, getattr(expected, counts)) and places.max() < columns
        listed = torch.arange(places.shape[-1]) < found[..., None]
        wanted = getattr(expected, indices)[..., : places.shape[-1]]
        assert torch.equal(places[listed], wanted[listed])


def test_adjusted_in_a_graph_and_on_another_device():
    mask = quire_torch.create_block_mask(window, None, None, 457, 457, BLOCK_SIZE=64)
    query = torch.randn(1, 2, 150, 16)
    expected = quire_torch.flex_attention(
        query, query[:, :, :120], query[:, :, :120], block_mask=mask._adjust(150, 120)
    )

    def attention(query, mask):
        return quire_torch.flex_attention(
            query, query[:, :, :120], query[:, :, :120], block_mask=mask._adjust(150, 120)
        )

    assert torch.equal(compiled(attention)(query, mask), expected)
    there = mask.to("meta")._adjust(150, 120)
    assert there.kv_indices.device.type == "meta" and there.shape == (1, 1, 150, 120)


def test_lists_narrower_than_the_mask():
    """The best 2 of 8 blocks for each row, as chosen by data."""
    torch.manual_seed(0)
    indices = torch.rand(1, 2, 4, 8).argsort(-1)[..., :2].to(torch.int32)
    counts = torch.full((1, 2, 4), 2, dtype=torch.int32)
    query, key = torch.randn(1, 2, 64, 16), torch.randn(1, 2, 128, 16)

    def attention(query, key, counts, indices):
        mask = quire_torch.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=16, seq_lengths=(64, 128))
        return quire_torch.flex_attention(query, key, key, block_mask=mask)

    visible = torch.zeros(1, 2, 4, 8).scatter(-1, indices.long(), 1).bool()
    visible = visible.repeat_interleave(16, 2).repeat_interleave(16, 3)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, key, attn_mask=visible)
    found = attention(query, key, counts, indices)
    torch.testing.assert_close(found, expected)
    assert torch.equal(compiled(attention)(query, key, counts, indices), found)
    query.requires_grad_()
    gradients = [
        torch.autograd.grad(run(query, key, counts, indices).sum(), query)[0]
        for run in (attention, compiled(attention))
    ]
    assert torch.equal(*gradients)

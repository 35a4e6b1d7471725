"""Block masks value by value against torch: every index tensor, texts, parts."""

import math

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from peer import causal

LISTS = (
    "kv_num_blocks kv_indices full_kv_num_blocks full_kv_indices q_num_blocks q_indices full_q_num_blocks full_q_indices"
).split()
DOC = torch.tensor([0] * 70 + [1] * 150 + [2] * 37 + [3] * 200)


def window(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx <= 60)


def document(b, h, q_idx, kv_idx):
    return DOC[q_idx] == DOC[kv_idx]


def per_head(b, h, q_idx, kv_idx):
    return q_idx + b * 10 >= kv_idx * (h + 1)


def nothing(b, h, q_idx, kv_idx):
    return q_idx < -1


MODS = [causal, window, document, per_head, nothing, quire_torch.noop_mask]


def both(mod, *sizes, **options):
    return (
        quire_torch.create_block_mask(mod, *sizes, **options),
        torch_flex.create_block_mask(mod, *sizes, device="cpu", **options),
    )


def assert_same(ours, theirs):
    for name in LISTS + ["dq_write_order", "dq_write_order_full", "dq_kv_order"]:
        a, b = getattr(ours, name), getattr(theirs, name)
        assert (a is None) == (b is None), name
        if a is not None:
            assert a.dtype == b.dtype, name
            assert torch.equal(a, b), name
    assert ours.shape == theirs.shape
    assert ours.seq_lengths == theirs.seq_lengths
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    assert ours.numel() == theirs.numel()
    assert ours.dq_kv_order_spt == theirs.dq_kv_order_spt


@pytest.mark.parametrize("mod", MODS, ids=lambda mod: mod.__name__)
@pytest.mark.parametrize("block_size", [128, 64, (32, 48), 7])
@pytest.mark.parametrize("separate", [True, False])
def test_create_block_mask(mod, block_size, separate):
    ours, theirs = both(mod, 2, 3, 300, 457, BLOCK_SIZE=block_size, separate_full_blocks=separate)
    assert_same(ours, theirs)
    assert ours.sparsity() == pytest.approx(theirs.sparsity())
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    assert str(ours) == str(theirs)
    assert repr(ours) == repr(theirs)
    for grid, limit in ((20, 4), ((3, 5), 1), (-1, 2), (100, 10)):
        assert ours.to_string(grid, limit) == theirs.to_string(grid, limit)


def test_sizes_of_none_and_uneven():
    for sizes in [(None, None, 128, 128), (1, None, 1, 300), (None, 2, 257, 3), (1, 1, 1, 1)]:
        assert_same(*both(causal, *sizes))


def test_as_tuple():
    ours, theirs = both(causal, None, 2, 200, 300)
    for flatten in (True, False):
        for a, b in zip(ours.as_tuple(flatten), theirs.as_tuple(flatten), strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_dq_write_order_is_kept():
    for order in (True, False):
        ours, theirs = both(window, 2, 1, 300, 300, compute_dq_write_order=True, dq_kv_order=order, BLOCK_SIZE=64)
        assert_same(ours, theirs)
        assert_same(ours[1:, :, :3], theirs[1:, :, :3])
        assert ours.as_tuple()[10] is ours.dq_write_order
    order = torch.zeros(1, 1, 4, 4)
    mask = quire_torch.BlockMask.from_kv_blocks(
        ours.kv_num_blocks, ours.kv_indices, dq_write_order=order, dq_kv_order=order
    )
    assert mask.dq_write_order is order and mask.dq_kv_order is order
    for part in (lambda: mask[0], lambda: mask._adjust(64, 64)):
        with pytest.raises(NotImplementedError, match="dq_kv_order"):
            part()


INDICES = [
    0,
    -1,
    slice(1, 3),
    (1, 2),
    (slice(None), 0),
    (0, 1, 2),
    (slice(0, 2), slice(1, 2), torch.tensor([1], dtype=torch.int32)),
    (slice(None), slice(None), torch.tensor([3, 0, 2])),
    (slice(None), slice(None), -2),
    torch.tensor([2, 0]),
    (torch.tensor([2, 0]), torch.tensor([1, 1])),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("mod", [causal, per_head], ids=lambda mod: mod.__name__)
def test_slicing(mod, index):
    ours, theirs = (mask[index] for mask in both(mod, 3, 3, 300, 457, BLOCK_SIZE=64))
    assert type(ours) is quire_torch.BlockMask
    assert_same(ours, theirs)
    assert ours.mask_mod is theirs.mask_mod
    assert str(ours) == str(theirs)


def test_indices_outside_are_refused():
    mask = quire_torch.create_block_mask(causal, 2, 1, 128, 128)
    with pytest.raises(IndexError, match=r"\[BlockMask\] index 5 is outside an axis of size 2"):
        mask[5]
    with pytest.raises(IndexError, match="takes at most 3 indices; got 4"):
        mask[0, 0, 0, 0]
    assert mask[5:7].shape == (0, 1, 128, 128)


@pytest.mark.parametrize("sizes", [(300, 457), (256, 457), (64, 400), (1, 400)])
def test_adjust_to_fewer_rows(sizes):
    ours, theirs = (mask._adjust(*sizes) for mask in both(causal, 2, 1, 300, 457, BLOCK_SIZE=64))
    assert_same(ours, theirs)
    assert ours.mask_mod is causal


@pytest.mark.parametrize("sizes", [(256, 256), (100, 30), (1, 1)])
def test_adjust_to_fewer_columns(sizes):
    """Behind num_blocks torch leaves numbers of blocks that are no longer there."""
    ours, theirs = (mask._adjust(*sizes) for mask in both(causal, 2, 1, 300, 457, BLOCK_SIZE=64))
    assert ours.shape == theirs.shape
    for name in LISTS:
        assert getattr(ours, name).shape == getattr(theirs, name).shape
        if name.endswith("num_blocks"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))
    assert torch.equal(ours.to_dense(), theirs.to_dense())


def test_adjust_of_a_window_keeps_what_remains():
    mask = quire_torch.create_block_mask(window, None, None, 457, 457, BLOCK_SIZE=64)
    expected = mask.to_dense()[:, :, :3, :2]
    assert torch.equal(mask._adjust(150, 120).to_dense(), expected)


def test_from_kv_blocks_keeps_the_tensors_it_is_given():
    source = torch_flex.create_block_mask(window, 2, 1, 300, 457, device="cpu", BLOCK_SIZE=(32, 64))
    lists = [getattr(source, name) for name in LISTS[:4]]
    arguments = dict(BLOCK_SIZE=(32, 64), mask_mod=window, seq_lengths=(300, 457))
    ours, theirs = (c.from_kv_blocks(*lists, **arguments) for c in (quire_torch.BlockMask, torch_flex.BlockMask))
    assert_same(ours, theirs)
    assert ours.kv_indices is lists[1]
    without = quire_torch.BlockMask.from_kv_blocks(*lists, compute_q_blocks=False, **arguments)
    assert without.q_indices is None and without.full_q_num_blocks is None
    assert without[0].q_indices is None
    assert without._adjust(64, 64).q_indices is None
    ours, theirs = (c.from_kv_blocks(*lists[:2]) for c in (quire_torch.BlockMask, torch_flex.BlockMask))
    assert_same(ours, theirs)
    assert ours.shape == (2, 1, 1280, 1024)


def test_lists_of_fewer_axes():
    source = torch_flex.create_block_mask(causal, 1, 1, 256, 256, device="cpu")
    lists = [source.kv_num_blocks[0, 0], source.kv_indices[0, 0]]
    ours, theirs = (c.from_kv_blocks(*lists) for c in (quire_torch.BlockMask, torch_flex.BlockMask))
    assert_same(ours, theirs)
    assert ours.shape == (256, 256)


def test_constructor_refuses_what_torch_refuses():
    counts, indices = torch.zeros(1, 1, 3, dtype=torch.int32), torch.zeros(1, 1, 3, 3, dtype=torch.int32)
    for make in (quire_torch.BlockMask.from_kv_blocks, torch_flex.BlockMask.from_kv_blocks):
        with pytest.raises(RuntimeError):
            make(torch.zeros(3), torch.zeros(3))
        with pytest.raises(AssertionError):
            make(counts, indices, full_kv_indices=indices)
        with pytest.raises(ValueError):
            make(counts, indices, dq_kv_order=3)
        with pytest.raises(ValueError):
            make(counts, indices, dq_write_order_full=indices)


def test_to_moves_every_tensor():
    mask = quire_torch.create_block_mask(causal, None, None, 200, 200)
    moved = mask.to("meta")
    assert type(moved) is quire_torch.BlockMask
    assert all(getattr(moved, name).device.type == "meta" for name in LISTS)
    assert moved.mask_mod is causal
    same = mask.to("cpu")
    assert_same(same, mask)


def test_index_tensors_are_made_when_asked_for():
    mask = quire_torch.create_block_mask(causal, None, None, 1 << 20, 1 << 20)  # 64 million entries of kv_indices
    assert not mask._lists
    assert mask.shape == (1, 1, 1 << 20, 1 << 20)
    assert mask.sparsity() == pytest.approx(49.994, abs=0.001)
    part = mask._adjust(1024, 1024)
    assert not mask._lists
    assert mask.kv_num_blocks.sum() == 8192
    assert list(mask._lists) == ["kv_num_blocks"]
    assert part.kv_indices.shape == (1, 1, 8, 8)
    assert part.kv_indices is part.kv_indices


def test_a_mask_without_elements_prints():
    mask = quire_torch.create_block_mask(causal, 1, 1, 0, 128)
    assert math.isnan(mask.sparsity())
    assert "nan" in str(mask)


def test_create_mask_of_mask_and_score_mods():
    def score(s, b, h, q_idx, kv_idx):
        return torch.where(q_idx >= kv_idx, s, -float("inf"))

    for mod in [*MODS[:-1], score]:
        ours = quire_torch.create_mask(mod, 2, 3, 40, 50)
        theirs = torch_flex.create_mask(mod, 2, 3, 40, 50, device="cpu")
        assert ours.dtype == torch.bool
        assert torch.equal(ours, theirs.expand(2, 3, 40, 50))


def test_texts_and_quire_mods_are_mods():
    import quire

    expected = torch_flex.create_block_mask(causal, None, None, 300, 300, device="cpu")
    for mod in ("q_idx >= kv_idx", quire.MaskMod("q_idx >= kv_idx")):
        assert_same(quire_torch.create_block_mask(mod, None, None, 300, 300), expected)
        assert (
            quire_torch.create_mask(mod, None, None, 30, 40).sum()
            == quire_torch.create_mask(causal, 1, 1, 30, 40).sum()
        )
    query = torch.randn(1, 2, 300, 16)
    mask = quire_torch.create_block_mask("q_idx >= kv_idx", None, None, 300, 300)
    result = quire_torch.flex_attention(query, query, query, "score * 0.5", mask)
    function = quire_torch.flex_attention(query, query, query, lambda s, b, h, q, k: s * 0.5, expected)
    assert torch.equal(result, function)


def test_methods_modules_and_partials_are_mods():
    import functools

    class Window:
        def __init__(self, size):
            self.size = size

        def mask(self, b, h, q_idx, kv_idx):
            return q_idx - kv_idx <= self.size

    def shifted(by, b, h, q_idx, kv_idx):
        return q_idx + by >= kv_idx

    class Module(torch.nn.Module):
        def forward(self, b, h, q_idx, kv_idx):
            return q_idx - kv_idx > 7

    for mod, same in [
        (Module(), lambda b, h, q, kv: q - kv > 7),
        (Window(20).mask, lambda b, h, q, kv: q - kv <= 20),
        (functools.partial(shifted, 5), lambda b, h, q, kv: q + 5 >= kv),
    ]:
        assert_same(
            quire_torch.create_block_mask(mod, 1, 1, 100, 100, BLOCK_SIZE=16),
            torch_flex.create_block_mask(same, 1, 1, 100, 100, device="cpu", BLOCK_SIZE=16),
        )

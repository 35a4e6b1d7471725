"""Kinds of calls that PyTorch's own tests of attention make and no other file here does, against torch's eager results."""

import functools
import math

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.attention.flex_attention as torch_flex
import torch.nn.functional as F
from peer import causal, check, tensors
from quire.torch import AuxRequest, create_block_mask, flex_attention

BATCH, HEADS, LENGTH, DIM = 2, 4, 96, 16


def inputs(**options):
    return tensors(BATCH, HEADS, HEADS, LENGTH, LENGTH, DIM, DIM, **options)


# ---- mods


def offset_by_sequence():
    """Positions inside packed sequences of different lengths, by two tables."""
    starts = torch.tensor([0, 40, 60, LENGTH], dtype=torch.int32)
    sequence = torch.repeat_interleave(torch.arange(3, dtype=torch.int32), starts.diff())

    def mod(score, b, h, q_idx, kv_idx):
        q, kv = q_idx - starts[sequence[q_idx]], kv_idx - starts[sequence[kv_idx]]
        return torch.where(q >= kv, score, -float("inf"))

    return mod


def euclidean():
    """A distance summed over the axis of a captured tensor, with a scale per head."""
    places, scales = torch.randn(LENGTH, 3), torch.logspace(0.001, 0.1, HEADS)

    def mod(score, b, h, q_idx, kv_idx):
        distance = (places[q_idx] - places[kv_idx]).pow(2).sum(-1).sqrt()
        return score * torch.exp(-distance / scales[h])

    return mod


def grid_without_floor():
    """Rows of a grid by true division, as people write who mean the floor."""
    width = 8

    def mod(score, b, h, q_idx, kv_idx):
        is_near = ((q_idx / width - kv_idx / width).abs() <= 3) | ((q_idx % width - kv_idx % width).abs() <= 3)
        return torch.where(is_near, score, float("-inf"))

    return mod


def indexed_twice():
    bias, which = torch.randn(4, BATCH, HEADS, LENGTH), torch.tensor(0)
    return lambda score, b, h, q_idx, kv_idx: score + bias[0][b, h][q_idx] + bias[which, b, h, kv_idx]


def zeros_like_an_index():
    visible = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    return lambda score, b, h, q_idx, kv_idx: score + visible[b, h.new_zeros(h.shape), q_idx, kv_idx]


def trigonometric():
    return lambda score, b, h, q_idx, kv_idx: torch.cos(score) * torch.sin(score) + torch.tan(b)


def dependent_on_the_score():
    lengths = torch.arange(BATCH, dtype=torch.int32) + 1
    return lambda score, b, h, q_idx, kv_idx: torch.where(score <= lengths[b], score, -float("inf"))


def integer_scale():
    scale = torch.ones((), dtype=torch.int32)
    return lambda score, b, h, q_idx, kv_idx: score + scale


def modular_alibi():
    return lambda score, b, h, q_idx, kv_idx: score + (kv_idx - q_idx) * torch.exp2(-((h + 1) * 8.0 / HEADS))


MODS = (
    offset_by_sequence,
    euclidean,
    grid_without_floor,
    indexed_twice,
    zeros_like_an_index,
    trigonometric,
    dependent_on_the_score,
    integer_scale,
    modular_alibi,
)


@pytest.mark.parametrize("make", MODS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_score_mods(make, dtype):
    query, key, value = inputs(dtype=dtype)
    mod = make()
    check(flex_attention(query, key, value, mod, return_lse=True), query, key, value, mod)


def test_a_captured_switch_is_followed():
    query, key, value = inputs()
    adds = True

    def mod(score, b, h, q_idx, kv_idx):
        return score + 1 if adds else score * 3

    for adds in (True, False, True):
        check(flex_attention(query, key, value, mod, return_lse=True), query, key, value, mod)


def test_mods_of_mods():
    shifted = lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx)  # noqa: E731
    hidden = lambda score, b, h, q_idx, kv_idx: torch.where(q_idx <= kv_idx, score, float("-inf"))  # noqa: E731

    def both(score, *indices):
        return hidden(shifted(score, *indices), *indices)

    query, key, value = inputs()
    check(flex_attention(query, key, value, both, return_lse=True), query, key, value, both)


# ---- masks


def test_lists_of_queries_that_were_taken_away():
    query, key, value = inputs()
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, BLOCK_SIZE=32)
    for name in ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"):
        setattr(mask, name, None)
    for x in (query, key, value):
        x.requires_grad_()
    out, want = (
        flex_attention(query, key, value, block_mask=mask),
        F.scaled_dot_product_attention(query, key, value, is_causal=True),
    )
    torch.testing.assert_close(out, want)
    for one, other in zip(*(torch.autograd.grad(x.sum(), (query, key, value)) for x in (out, want))):
        torch.testing.assert_close(one, other)


def test_two_halves_of_a_mask_merged_by_their_lse():
    query, key, value = (x.requires_grad_() for x in inputs())
    near = create_block_mask(lambda b, h, q, kv: (q >= kv) & (q - kv <= 20), None, None, LENGTH, LENGTH, BLOCK_SIZE=32)
    far = create_block_mask(lambda b, h, q, kv: (q >= kv) & (q - kv > 20), None, None, LENGTH, LENGTH, BLOCK_SIZE=32)
    parts = [
        flex_attention(query, key, value, block_mask=mask, return_aux=AuxRequest(lse=True)) for mask in (near, far)
    ]
    lse = torch.stack([aux.lse for _, aux in parts])
    weights = torch.exp(lse - lse.max(0).values).unsqueeze(-1)
    merged = sum(weight * out for weight, (out, _) in zip(weights, parts)) / weights.sum(0)
    want = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(merged, want)
    d_out = torch.randn_like(want)
    for one, other in zip(*(torch.autograd.grad(x, (query, key, value), d_out) for x in (merged, want))):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_documents_by_clamped_indices():
    ids = torch.repeat_interleave(torch.arange(3), torch.tensor([50, 30, 20]))

    def rule(b, h, q_idx, kv_idx):
        return ids[q_idx.clamp(0, len(ids) - 1)] == ids[kv_idx.clamp(0, len(ids) - 1)]

    x = torch.randn(1, 2, 101, 16)  # one longer than the table
    ours = create_block_mask(rule, None, None, 101, 101, BLOCK_SIZE=32)
    theirs = torch_flex.create_block_mask(rule, None, None, 101, 101, device="cpu", BLOCK_SIZE=32)
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    check(flex_attention(x, x, x, None, ours, return_lse=True), x, x, x, None, theirs)


def test_lists_written_by_hand():
    count = LENGTH // 32
    rows = (torch.arange(count) + 1).int()[None, None]
    columns = torch.arange(count).int().expand(count, count)[None, None]
    by_hand = quire_torch.BlockMask.from_kv_blocks(rows, columns, BLOCK_SIZE=32, mask_mod=causal)
    made = create_block_mask(causal, 1, 1, LENGTH, LENGTH, BLOCK_SIZE=32)
    assert torch.equal(by_hand.to_dense(), made.to_dense())
    query, key, value = inputs()
    assert torch.equal(*(flex_attention(query, key, value, block_mask=mask) for mask in (by_hand, made)))


# ---- layouts


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)])
@pytest.mark.parametrize("sizes", [(2, 1, 32, 16), (4, 2, 16, 16)])
def test_the_order_of_axes_in_memory_is_kept(order, sizes):
    query, key, value = (torch.randn(sizes).permute(order) for _ in range(3))
    out = flex_attention(query, key, value)
    assert out.stride() == torch_flex.flex_attention(query, key, value).stride()
    torch.testing.assert_close(out, F.scaled_dot_product_attention(query, key, value))


def test_queries_keys_and_values_split_from_one_projection():
    x = torch.randn(1, 50, 48, requires_grad=True)
    project = torch.nn.Linear(48, 3 * 48)

    def run(attention):
        parts = project(x).split(48, dim=2)
        return attention(*(part.reshape(1, 50, 3, 16).transpose(1, 2) for part in parts))

    found, wanted = run(flex_attention), run(F.scaled_dot_product_attention)
    torch.testing.assert_close(found, wanted)
    parameters = (x, *project.parameters())
    for one, other in zip(*(torch.autograd.grad(out.square().sum(), parameters) for out in (found, wanted))):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_values_that_overlap_in_memory():
    """A window over one buffer: strides smaller than the sizes behind them."""
    buffer = torch.randn(4000)
    shape = (BATCH, HEADS, 40, DIM)
    views = [buffer.as_strided(shape, strides, 97) for strides in ((640, 160, 16, 1), (1, DIM, 60, 1), (16, 32, 8, 1))]
    torch.testing.assert_close(
        flex_attention(*views), F.scaled_dot_product_attention(*(view.contiguous() for view in views))
    )


def test_one_query_and_one_key():
    query, key, value = (torch.ones(1, 1, 1, 16, requires_grad=True) for _ in range(3))
    out, lse = flex_attention(query, key, value, return_lse=True, kernel_options={"FORCE_USE_FLEX_ATTENTION": True})
    assert torch.equal(out, torch.ones_like(out)) and lse.item() == pytest.approx(math.sqrt(16))
    d_query, d_key, d_value = torch.autograd.grad(out.sum(), (query, key, value))
    assert not d_query.any() and not d_key.any() and torch.equal(d_value, torch.ones_like(value))


def test_precision_of_matmuls_is_not_asked_for():
    query, key, value = inputs()
    want = flex_attention(query, key, value)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert torch.equal(flex_attention(query, key, value), want)
    finally:
        torch.set_float32_matmul_precision(before)


# ---- pages


def test_converted_rules_take_numbers():
    paged = quire_torch.PagedAttention(8, 16, 2)
    for lengths in ((10, 20), (20, 40), (64, 64)):
        for b, length in enumerate(lengths):
            paged.reserve(torch.tensor(b), torch.tensor(length))
    rule = paged.get_mask_mod(causal)
    place = int(paged.page_table[0, 1]) * 16 + 3  # key 19 of sequence 0
    assert rule(0, 0, 19, place) and rule(0, 1, 30, place)
    assert not rule(0, 0, 18, place) and not rule(1, 0, 60, place)


@pytest.mark.parametrize("make", [trigonometric, modular_alibi, integer_scale], ids=lambda make: make.__name__)
def test_pages_reserved_little_by_little(make):
    query, key, value = inputs()
    paged = quire_torch.PagedAttention(20, 16, BATCH)
    for lengths in ((10, 40), (70, 40), (LENGTH, LENGTH)):
        for b, length in enumerate(lengths):
            paged.reserve(torch.tensor([b]), torch.tensor([length]))
    caches = torch.zeros(2, 1, HEADS, 20 * 16, DIM)
    paged.assign(torch.arange(BATCH), torch.arange(LENGTH).expand(BATCH, -1), key, value, *caches)
    mask = create_block_mask(causal, BATCH, 1, LENGTH, LENGTH, BLOCK_SIZE=16)
    attention = functools.partial(flex_attention, score_mod=paged.get_score_mod(make()), block_mask=mask)
    out = attention(query, *caches, block_mask=paged.convert_logical_block_mask(mask))
    torch.testing.assert_close(out, flex_attention(query, key, value, make(), mask))


# ---- SDPA


@pytest.mark.parametrize(
    "mask_shape", [(LENGTH, LENGTH), (1, LENGTH), (LENGTH, 1), (BATCH, 1, 1, LENGTH), (1, HEADS, LENGTH, 1)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_broadcast_masks(mask_shape, dtype):
    query, key, value = inputs(dtype=dtype)
    mask = torch.randn(mask_shape, dtype=dtype, requires_grad=True)
    exact = mask.detach().double().requires_grad_()
    d_out = torch.randn_like(query)
    out = quire_torch.scaled_dot_product_attention(query, key, value, mask)
    want = F.scaled_dot_product_attention(query.double(), key.double(), value.double(), exact)
    (found,), (wanted,) = torch.autograd.grad(out, mask, d_out), torch.autograd.grad(want, exact, d_out.double())
    torch.testing.assert_close(found.double(), wanted, atol=0.1 if dtype is torch.bfloat16 else 1e-4, rtol=0.02)


def test_rows_that_a_mask_of_bools_hides_do_not_spoil_gradients():
    query, key, value = (x.requires_grad_() for x in inputs())
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    visible[10:20] = False
    out = quire_torch.scaled_dot_product_attention(query, key, value, visible)
    assert not out[:, :, 10:20].any()
    for gradient in torch.autograd.grad(out.square().sum(), (query, key, value)):
        assert gradient.isfinite().all()


def test_large_and_tiny_scores():
    query, key, value = inputs()
    for scale in (1e4, 1e-6, -1.0, 0.0):
        exact = F.scaled_dot_product_attention(query.double(), key.double(), value.double(), scale=scale)
        out = quire_torch.scaled_dot_product_attention(query, key, value, scale=scale)
        torch.testing.assert_close(out.double(), exact, atol=2e-2 if scale == 1e4 else 1e-5, rtol=1e-4)

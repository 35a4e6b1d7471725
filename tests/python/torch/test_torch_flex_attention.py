"""flex_attention value by value against torch: outputs, lse, memory layout, precision."""

import pathlib
import sys

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from peer import causal, check, tensors
from quire.torch import AuxRequest, create_block_mask, flex_attention

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
TABLE = torch.randn(500, generator=torch.Generator().manual_seed(3))


def alibi(score, b, h, q_idx, kv_idx):
    return score + SLOPES[h] * (kv_idx - q_idx)


def soft_cap(score, b, h, q_idx, kv_idx):
    return 20 * torch.tanh(score / 20)


def relative(score, b, h, q_idx, kv_idx):
    return score + TABLE[q_idx - kv_idx + 250]


def window(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < 40)


SCORE_MODS = [None, alibi, soft_cap, relative]
MASK_MODS = [None, causal, window]


def name(mod):
    return getattr(mod, "__name__", "none")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("score_mod", SCORE_MODS, ids=name)
@pytest.mark.parametrize("mask_mod", MASK_MODS, ids=name)
def test_against_torch(dtype, score_mod, mask_mod):
    query, key, value = tensors(dtype=dtype)
    mask = theirs = None
    if mask_mod is not None:
        mask = create_block_mask(mask_mod, None, None, 113, 203, BLOCK_SIZE=64)
        theirs = torch_flex.create_block_mask(mask_mod, None, None, 113, 203, device="cpu", BLOCK_SIZE=64)
    out, aux = flex_attention(query, key, value, score_mod, mask, return_aux=AuxRequest(lse=True))
    check((out, aux.lse), query, key, value, score_mod, theirs)
    assert torch.equal(flex_attention(query, key, value, score_mod, theirs), out)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 257), (113, 203), (799, 3), (64, 64), (0, 5)], ids=str)
@pytest.mark.parametrize("heads", [(1, 1), (2, 1), (7, 1), (6, 3)], ids=str)
def test_lengths_and_grouped_heads(sizes, heads):
    query, key, value = tensors(q_heads=heads[0], kv_heads=heads[1], q_len=sizes[0], kv_len=sizes[1], dim=20, v_dim=33)
    out, lse = flex_attention(query, key, value, soft_cap, enable_gqa=True, return_lse=True)
    if sizes[0] == 0:
        assert out.shape == (2, heads[0], 0, 33) and lse.shape == (2, heads[0], 0)
        return
    check((out, lse), query, key, value, soft_cap, enable_gqa=True)


def test_key_batch_of_one_with_a_mask_per_batch():
    query = torch.randn(3, 4, 100, 16)
    key, value = torch.randn(1, 4, 120, 16), torch.randn(1, 4, 120, 16)

    def per_batch(b, h, q_idx, kv_idx):
        return kv_idx <= q_idx + 5 * b

    mask = create_block_mask(per_batch, 3, None, 100, 120)
    theirs = torch_flex.create_block_mask(per_batch, 3, None, 100, 120, device="cpu")
    result = flex_attention(query, key, value, block_mask=mask, return_lse=True)
    check(result, query, key, value, None, theirs)
    value = torch.randn(3, 4, 100, 16)  # and a value batch of 1 beside a full key batch
    query = key = torch.randn(3, 4, 100, 16)
    check(flex_attention(query, key, value[:1], return_lse=True), query, key, value[:1])


@pytest.mark.parametrize("dtypes", [(0, 2, 3), (2, 0, 0), (3, 2, 0), (1, 0, 2), (0, 1, 0), (2, 1, 1)], ids=str)
def test_mixed_dtypes(dtypes):
    query, key, value = (t.to(DTYPES[i]) for t, i in zip(tensors(v_dim=32), dtypes))
    out, lse = flex_attention(query, key, value, alibi, return_lse=True)
    assert out.dtype == query.dtype
    check((out, lse), query, key, value, alibi)


def test_scale():
    query, key, value = tensors(dim=16)
    for scale in (1, 0.3, 0.0, -1.0, torch.tensor(0.5)):
        check(flex_attention(query, key, value, scale=scale, return_lse=True), query, key, value, scale=scale)


def test_rows_without_keys():
    def nothing_first(b, h, q_idx, kv_idx):
        return (q_idx > 10) & (q_idx >= kv_idx)

    query, key, value = tensors(q_len=50, kv_len=50)
    mask = create_block_mask(nothing_first, None, None, 50, 50)
    out, aux = flex_attention(query, key, value, None, mask, return_aux=AuxRequest(lse=True, max_scores=True))
    assert (out[:, :, :11] == 0).all()
    assert (aux.lse[:, :, :11] == -torch.inf).all()
    assert (aux.max_scores[:, :, :11] == -torch.inf).all()
    theirs = torch_flex.create_block_mask(nothing_first, None, None, 50, 50, device="cpu")
    check((out, aux.lse), query, key, value, None, theirs)


def test_no_keys():
    query = torch.randn(2, 4, 5, 8)
    out, lse = flex_attention(query, query[:, :, :0], query[:, :, :0], return_lse=True)
    assert (out == 0).all() and (lse == -torch.inf).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_auxiliary_outputs(dtype):
    query, key, value = tensors(dtype=dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    out, aux = flex_attention(query, key, value, alibi, return_aux=AuxRequest(lse=True, max_scores=True))
    assert aux.lse.dtype == aux.max_scores.dtype == wide
    assert aux.lse.shape == aux.max_scores.shape == (2, 4, 113)
    scores = query.double() @ key.double().mT / query.shape[-1] ** 0.5
    scores += (SLOPES.double()[:, None, None] * (torch.arange(203) - torch.arange(113)[:, None])).expand_as(scores)
    expected = scores.amax(-1)
    assert (aux.max_scores - expected).abs().max() <= 8 * torch.finfo(wide).eps * expected.abs().max()
    out, aux = flex_attention(query, key, value, alibi, return_aux=AuxRequest())
    assert isinstance(aux, quire_torch.AuxOutput) and aux == (None, None)
    assert isinstance(flex_attention(query, key, value), torch.Tensor)


def test_return_lse_warns_once(monkeypatch):
    monkeypatch.setattr(sys.modules["quire.torch.flex_attention"], "_warned", False)
    query = torch.randn(1, 1, 4, 8)
    with pytest.warns(FutureWarning, match="return_lse is deprecated"):
        flex_attention(query, query, query, return_lse=True)


LAYOUTS = {
    "contiguous": lambda: torch.randn(2, 4, 16, 8),
    "heads last": lambda: torch.randn(2, 16, 4, 8).transpose(1, 2),
    "batch second": lambda: torch.randn(16, 2, 4, 8).permute(1, 2, 0, 3),
    "dims strided": lambda: torch.randn(2, 4, 8, 16).transpose(2, 3),
    "every second": lambda: torch.randn(2, 4, 32, 16)[:, :, ::2, ::2],
    "expanded heads": lambda: torch.randn(2, 1, 16, 8).expand(2, 4, 16, 8),
    "expanded batch": lambda: torch.randn(1, 4, 16, 8).expand(2, 4, 16, 8),
    "expanded all": lambda: torch.randn(1).expand(2, 4, 16, 8),
    "offset": lambda: torch.randn(3, 5, 20, 11)[1:, 1:, 3:19, 2:10],
    "of qkv": lambda: torch.randn(2, 16, 3, 4, 8)[:, :, 1].transpose(1, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    query, key, value = (LAYOUTS[layout]() for _ in range(3))
    out, lse = flex_attention(query, key, value, soft_cap, return_lse=True)
    dense = flex_attention(query.contiguous(), key.contiguous(), value.contiguous(), soft_cap)
    assert torch.equal(out, dense)
    check((out, lse), query, key, value, soft_cap)
    assert out.stride() == torch_flex.flex_attention(query, key, value).stride()


def test_strides_of_the_output_with_axes_of_one():
    for shape, order in [((2, 16, 1, 8), (0, 2, 1, 3)), ((1, 4, 1, 8), (0, 1, 2, 3)), ((3, 1, 5, 1), (2, 1, 0, 3))]:
        query = torch.randn(shape).permute(order)
        expected = torch_flex.flex_attention(query, query, query).stride()
        assert flex_attention(query, query, query).stride() == expected


@pytest.mark.parametrize("batch, heads", [(1, 3), (2, 3), (4, 5), (1, 1)])
@pytest.mark.parametrize("is_learned", [False, True])
def test_masks_with_more_entries_than_the_queries(batch, heads, is_learned):
    """Their first entries count, as in torch."""

    def rule(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx + 16 * b - 8 * h

    query = torch.randn(batch, heads, 113, 16, requires_grad=is_learned)
    mask = create_block_mask(rule, 4, 5, 113, 113, BLOCK_SIZE=16)
    theirs = torch_flex.create_block_mask(rule, 4, 5, 113, 113, device="cpu", BLOCK_SIZE=16)
    for block_mask in (mask, theirs):
        out, lse = flex_attention(query, query, query, None, block_mask, return_lse=True)
        x = query.detach()
        check((out.detach(), lse.detach()), x, x, x, None, theirs)
    own = create_block_mask(rule, batch, heads, 113, 113, BLOCK_SIZE=16)
    wanted = flex_attention(query, query, query, None, own)
    assert torch.equal(out, wanted)
    if is_learned:
        assert torch.equal(torch.autograd.grad(out.sum(), query)[0], torch.autograd.grad(wanted.sum(), query)[0])


def test_negative_bit():
    query = torch.view_as_complex(torch.randn(1, 2, 8, 4, 2)).conj().imag
    assert query.is_neg()
    plain = query.resolve_neg().contiguous()
    assert torch.equal(flex_attention(query, query, query), flex_attention(plain, plain, plain))


def test_new_values_of_captured_tensors_are_seen():
    bias = torch.zeros(64)

    def biased(score, b, h, q_idx, kv_idx):
        return score + bias[kv_idx]

    query, key, value = tensors(q_len=64, kv_len=64)
    before = flex_attention(query, key, value, biased)
    assert torch.allclose(before, flex_attention(query, key, value), atol=1e-6)
    bias.copy_(torch.randn(64))
    assert not torch.equal(flex_attention(query, key, value, biased), before)
    check(flex_attention(query, key, value, biased, return_lse=True), query, key, value, biased)
    bias = torch.randn(64)
    check(flex_attention(query, key, value, biased, return_lse=True), query, key, value, biased)


def user_mods():
    sys.path.insert(0, str(pathlib.Path(__file__).parent / "trace"))
    from user_mods import USER_MODS

    return USER_MODS


@pytest.mark.parametrize("case", user_mods(), ids=lambda case: case[0])
def test_mods_as_users_write_them(case):
    _, kind, factory = case
    batch, heads, q_len, kv_len = 2, 4, 96, 96
    mod = factory(batch, heads, q_len, kv_len)
    query, key, value = tensors(batch, heads, heads, q_len, kv_len, 16, 16)
    if kind == "score":
        result = flex_attention(query, key, value, mod, return_lse=True)
        check(result, query, key, value, mod)
        return
    mask = create_block_mask(mod, batch, heads, q_len, kv_len, BLOCK_SIZE=32)
    theirs = torch_flex.create_block_mask(mod, batch, heads, q_len, kv_len, device="cpu", BLOCK_SIZE=32)
    for list_name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_indices"):
        assert torch.equal(getattr(mask, list_name), getattr(theirs, list_name))
    check(flex_attention(query, key, value, None, mask, return_lse=True), query, key, value, None, theirs)

"""Nested tensors of the layout torch.strided: SDPA against torch's own, flex_attention against each sequence alone."""

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.functional as F

SDPA = quire_torch.scaled_dot_product_attention
FLEX = quire_torch.flex_attention


def nested(*shapes, **options):
    return torch.nested.nested_tensor([torch.randn(*shape) for shape in shapes], **options)


def assert_same(found, wanted):
    assert found.layout is torch.strided and found.is_contiguous()
    for one, other in zip(found.unbind(), wanted.unbind(), strict=True):
        torch.testing.assert_close(one, other)


CASES = {
    "heads": [nested((2, 30, 8), (2, 5, 8)) for _ in range(3)],
    "lengths of their own": [
        nested((2, 7, 8), (2, 60, 8)),
        nested((2, 30, 8), (2, 5, 8)),
        nested((2, 30, 4), (2, 5, 4)),
    ],
    "without heads": [nested((3, 8), (5, 8)) for _ in range(3)],
    "two batch axes": [nested((4, 2, 3, 8), (4, 2, 5, 8)) for _ in range(3)],
    "heads that vary": [nested((3, 4, 8), (2, 5, 8)) for _ in range(3)],
    "one sequence": [nested((2, 9, 8)) for _ in range(3)],
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_sdpa_is_torchs(name, scale):
    assert_same(SDPA(*CASES[name], scale=scale), F.scaled_dot_product_attention(*CASES[name], scale=scale))


@pytest.mark.parametrize("call", [SDPA, FLEX])
def test_gradients_are_torchs(call):
    tensors = [nested((2, 30, 8), (2, 5, 8), requires_grad=True) for _ in range(3)]
    d_out = nested((2, 30, 8), (2, 5, 8))
    found = torch.autograd.grad(call(*tensors), tensors, d_out)
    for one, other in zip(found, torch.autograd.grad(F.scaled_dot_product_attention(*tensors), tensors, d_out)):
        assert_same(one, other)


def test_what_torch_refuses_on_a_cpu():
    lengths = (30, 0, 5)
    turned = torch.nested.nested_tensor([torch.randn(length, 2, 8) for length in lengths]).transpose(1, 2)
    for out in (SDPA(turned, turned, turned, is_causal=True), SDPA(turned, turned, turned, "q_idx >= kv_idx")):
        for one, x in zip(out.unbind(), turned.unbind(), strict=True):
            torch.testing.assert_close(one, F.scaled_dot_product_attention(x, x, x, is_causal=True))
    shared = nested((1, 30, 8), (1, 5, 8))
    many = nested((4, 30, 8), (4, 5, 8))
    for one, q, k in zip(SDPA(many, shared, shared).unbind(), many.unbind(), shared.unbind()):
        torch.testing.assert_close(one, F.scaled_dot_product_attention(q, k, k))
    torch.manual_seed(1)
    dropped = SDPA(many, many, many, dropout_p=0.5)
    torch.manual_seed(1)
    assert_same(SDPA(many, many, many, dropout_p=0.5), dropped)


def test_flex_attention():
    x = nested((2, 30, 8), (2, 5, 8))
    causal = quire_torch.create_nested_block_mask(lambda b, h, q_idx, kv_idx: q_idx + b >= kv_idx, None, None, x)
    rule = lambda score, b, h, q_idx, kv_idx: score * (b + 1) + h  # noqa: E731
    out, lse = FLEX(x, x, x, rule, causal, return_lse=True)
    for b, one in enumerate(x.unbind()):
        length = one.size(1)
        mask = quire_torch.create_block_mask(
            lambda _, h, q_idx, kv_idx: q_idx + b >= kv_idx, None, None, length, length
        )
        alone = lambda score, _, h, q_idx, kv_idx: score * (b + 1) + h  # noqa: E731
        want, want_lse = FLEX(one[None], one[None], one[None], alone, mask, return_lse=True)
        assert torch.equal(out[b], want[0]) and torch.equal(lse[b], want_lse[0])
    assert out.layout is lse.layout is torch.strided


def test_errors_are_of_torchs_types():
    x, other = nested((2, 30, 8), (2, 5, 8)), nested((2, 30, 8), (2, 5, 8), (2, 1, 8))
    dense = torch.randn(2, 2, 30, 8)
    jagged = torch.nested.nested_tensor([torch.randn(n, 2, 8) for n in (3, 5)], layout=torch.jagged).transpose(1, 2)
    empty = torch.nested.nested_tensor([])
    wrong = [(dense, x, x), (x, dense, x), (x, other, other), (empty,) * 3, (x, x.double(), x), (x, jagged, jagged)]
    wrong.append((x, x, x, torch.ones(1)))
    for tensors in wrong:
        with pytest.raises(Exception) as theirs:
            F.scaled_dot_product_attention(*tensors)
        with pytest.raises(theirs.type):
            SDPA(*tensors)
    for tensors in ((x, dense, x), (x, other, other), (x, jagged, jagged), (nested((3, 8), (5, 8)),) * 3):
        with pytest.raises((ValueError, RuntimeError), match="flex_attention"):
            FLEX(*tensors)
    with pytest.raises(RuntimeError, match="not supported when an explicit attn_mask is set: their mask is a mask_mod"):
        SDPA(x, x, x, torch.ones(1))
    uneven = nested((3, 4, 8), (2, 5, 8))
    with pytest.raises(RuntimeError, match="the same heads and dims in all sequences"):
        SDPA(uneven, uneven, uneven, "q_idx >= kv_idx")
    with pytest.raises(ValueError, match="the same heads and dims in all sequences"):
        FLEX(uneven, uneven, uneven)


def test_why_not():
    wide = nested((1, 4, 2000), (1, 5, 2000))
    (reason,) = quire_torch.why_not(quire_torch.SDPBackend.FLASH_ATTENTION, wide, wide, wide)
    assert "got 2000" in reason
    uneven = nested((3, 4, 8), (2, 5, 8))
    assert quire_torch.why_not(quire_torch.SDPBackend.FLASH_ATTENTION, uneven, uneven, uneven) == []

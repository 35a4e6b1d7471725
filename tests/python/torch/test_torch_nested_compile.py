"""Nested tensors inside torch.compile: flex_attention and SDPA have the bits and gradients of eager calls."""

import pytest
import torch
from quire.torch import AuxRequest, create_nested_block_mask, flex_attention, scaled_dot_product_attention


def nested(lengths=(30, 1, 17), heads=4, dim=16, requires_grad=False):
    parts = [torch.randn(n, heads, dim) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=requires_grad)


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def test_flex_attention_with_mods():
    x = nested()
    slopes = torch.rand(4)
    mask = create_nested_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, x.transpose(1, 2))

    def attention(x):
        q = x.transpose(1, 2)
        return flex_attention(
            q, q * 2, q, lambda score, b, h, q_idx, kv_idx: score - slopes[h] * (q_idx - kv_idx) + b, mask,
            return_aux=AuxRequest(lse=True),
        )  # fmt: skip

    (out, aux), (expected, expected_aux) = compiled(attention)(x), attention(x)
    assert out.shape[0] == 3 and torch.equal(out.values(), expected.values())
    assert torch.equal(aux.lse.values(), expected_aux.lse.values())


@pytest.mark.parametrize("is_causal", [False, True])
def test_sdpa_with_gradients(is_causal):
    values = torch.randn(48, 4, 16, requires_grad=True)
    offsets = torch.tensor([0, 30, 31, 48])

    def attention(values, offsets):
        x = torch.nested.nested_tensor_from_jagged(values, offsets).transpose(1, 2)
        return scaled_dot_product_attention(x, x, x, is_causal=is_causal).transpose(1, 2).values()

    assert torch.equal(compiled(attention)(values, offsets), attention(values, offsets))
    ours, theirs = (
        torch.autograd.grad(f(values, offsets).square().sum(), values)[0] for f in (compiled(attention), attention)
    )
    assert torch.equal(ours, theirs)

"""key_weights and entropy of quire.torch's AuxRequest, and latent keys with their gradients."""

import pytest
import torch
from quire.torch import AuxRequest, create_block_mask, flex_attention


def causal(b, h, q_idx, kv_idx):
    return q_idx + 20 >= kv_idx


def test_against_the_definition():
    q, k, v = torch.randn(1, 4, 30, 16), torch.randn(1, 2, 60, 16), torch.randn(1, 2, 60, 16)
    mask = create_block_mask(causal, None, None, 30, 60)
    scores = q @ k.repeat_interleave(2, 1).transpose(2, 3) / 4
    hidden = torch.arange(30)[:, None] + 20 < torch.arange(60)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    request = AuxRequest(lse=True, key_weights=True, entropy=True, key_weights_queries=(-7, None))
    out, aux = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_aux=request)
    torch.testing.assert_close(aux.key_weights, weights[:, :, 23:].sum(2), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(aux.entropy, torch.special.entr(weights).sum(-1), atol=1e-4, rtol=1e-4)
    assert torch.equal(out, flex_attention(q, k, v, block_mask=mask, enable_gqa=True)) and aux.max_scores is None
    q.requires_grad_()
    out, again = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_aux=request)
    out.sum().backward()
    assert torch.equal(again.key_weights, aux.key_weights) and not again.entropy.requires_grad


def test_nested():
    parts = [torch.randn(n, 2, 16) for n in (6, 20)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    request = AuxRequest(key_weights=True, entropy=True)
    _, aux = flex_attention(x, x, x, return_aux=request)
    for i, part in enumerate(parts):
        dense = part.transpose(0, 1)[None]
        _, expected = flex_attention(dense, dense, dense, return_aux=request)
        assert torch.equal(aux.key_weights.unbind()[i], expected.key_weights[0])
        assert torch.equal(aux.entropy.unbind()[i], expected.entropy[0])


def test_torchs_own_request_gives_torchs_output():
    from torch.nn.attention import flex_attention as torch_flex

    x = torch.randn(1, 1, 3, 8)
    aux = flex_attention(x, x, x, return_aux=torch_flex.AuxRequest(lse=True))[1]
    assert type(aux) is torch_flex.AuxOutput and isinstance(AuxRequest(True), torch_flex.AuxRequest)


@pytest.mark.parametrize("dims", [(576, 512), (24, 16)])
def test_latent_keys(dims):
    results = []
    for copied in (False, True):
        torch.manual_seed(0)
        q, k = torch.randn(1, 16, 9, dims[0]).requires_grad_(), torch.randn(1, 1, 40, dims[0]).requires_grad_()
        value = k[..., : dims[1]]
        out = flex_attention(q, k, value.clone() if copied else value, enable_gqa=True)
        out.square().sum().backward()
        results.append((out, q.grad, k.grad))
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, atol=0, rtol=0)

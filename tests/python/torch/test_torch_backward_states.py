"""quire.torch.flex_attention_backward: gradients from (out, lse), of a whole call and of parts of its keys, as ring attention needs."""

import pytest
import torch
from quire.torch import AuxRequest, create_block_mask, flex_attention, flex_attention_backward, merge_states


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def soft_cap(score, b, h, q_idx, kv_idx):
    return 5.0 * torch.tanh(score / 5.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_of_autograd(dtype):
    q, k, v = (torch.randn(2, h, 70, 32, dtype=dtype, requires_grad=True) for h in (4, 2, 2))
    options = dict(score_mod=soft_cap, block_mask=create_block_mask(causal, None, None, 70, 70), enable_gqa=True)
    more = dict(dropout_p=0.2, seed=9)
    out, aux = flex_attention(q, k, v, **options, **more, return_aux=AuxRequest(lse=True))
    d_out, d_lse = torch.randn_like(out), torch.randn_like(aux.lse)
    expected = torch.autograd.grad((out, aux.lse), (q, k, v), (d_out, d_lse))
    found = flex_attention_backward(q, k, v, out, aux.lse, d_out, d_lse, **options, **more)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    only = flex_attention_backward(q, k, v, out, aux.lse, d_out, **options, **more, wanted=(False, True, False))
    assert only[0] is None and only[2] is None and only[1].shape == k.shape


def test_parts_of_the_keys_add_up():
    q, k, v = (torch.randn(1, 2, 40, 16, dtype=torch.float64, requires_grad=True) for _ in range(3))
    whole = flex_attention(q, k, v)
    d_out = torch.randn_like(whole)
    expected = torch.autograd.grad(whole, (q, k, v), d_out)
    parts = list(zip(k.detach().split([7, 33], 2), v.detach().split([7, 33], 2)))
    states = [flex_attention(q.detach(), *part, return_aux=AuxRequest(lse=True)) for part in parts]
    out, lse = merge_states(*((one, aux.lse) for one, aux in states))
    found = [flex_attention_backward(q, *part, out, lse, d_out) for part in parts]
    torch.testing.assert_close(found[0][0] + found[1][0], expected[0])
    for place in (1, 2):
        torch.testing.assert_close(torch.cat([one[place] for one in found], 2), expected[place])


def test_what_does_not_fit_is_refused():
    q = torch.randn(1, 2, 10, 16)
    lse = torch.zeros(1, 2, 10)
    with pytest.raises(ValueError, match=r"out must be floats of \(1, 2, 10, 16\)"):
        flex_attention_backward(q, q, q, q[..., :3], lse, q)
    with pytest.raises(ValueError, match="d_lse must be floats"):
        flex_attention_backward(q, q, q, q, lse, q, lse[0])
    with pytest.raises(ValueError, match="dropout needs the seed"):
        flex_attention_backward(q, q, q, q, lse, q, dropout_p=0.5)
    with pytest.raises(ValueError, match="wanted must be three bools"):
        flex_attention_backward(q, q, q, q, lse, q, wanted=(True,))

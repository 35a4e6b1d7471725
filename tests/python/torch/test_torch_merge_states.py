"""quire.torch.merge_states: attention over parts of the keys, put together; its gradients are those of the whole."""

import pytest
import quire
import torch
from quire.torch import AuxRequest, flex_attention, merge_states

CUTS = ((0, 11), (11, 12), (12, 50))


def tensors(dtype, grad=False):
    torch.manual_seed(5)
    return [torch.randn(2, 3, n, 16).to(dtype).requires_grad_(grad) for n in (7, 50, 50)]


def state(q, k, v, begin, end):
    out, aux = flex_attention(q, k[:, :, begin:end], v[:, :, begin:end], return_aux=AuxRequest(lse=True))
    return out, aux.lse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_parts_give_the_whole(dtype):
    q, k, v = tensors(dtype)
    whole = state(q, k, v, 0, 50)
    parts = [state(q, k, v, *cut) for cut in CUTS]
    # Of 16 bits, outs are rounded thrice: parts, merged and whole.
    atol = (
        1.5 * torch.finfo(dtype).eps * max(out.abs().max().item() for out, _ in parts) if dtype.itemsize == 2 else 1e-5
    )
    for out, lse in (merge_states(*parts), merge_states(parts)):
        assert out.dtype is dtype and lse.dtype is whole[1].dtype
        torch.testing.assert_close(out, whole[0], rtol=1e-6, atol=atol)
        torch.testing.assert_close(lse, whole[1])
    for ours, core in zip(merge_states(parts), quire.merge_states(parts)):
        assert torch.equal(ours, core)


def test_a_state_without_keys_changes_nothing():
    q, k, v = tensors(torch.float32, grad=True)
    whole = state(q, k, v, 0, 50)
    empty = (
        torch.full_like(whole[0], torch.nan).requires_grad_(),
        torch.full_like(whole[1], -torch.inf).requires_grad_(),
    )
    merged = merge_states(empty, whole)
    assert torch.equal(merged[0], whole[0]) and torch.equal(merged[1], whole[1])
    grads = torch.autograd.grad(merged[0].sum() + merged[1].sum(), (*empty, *whole))
    assert [bool((grad == value).all()) for grad, value in zip(grads, (0, 0, 1, 1))] == [True] * 4
    nothing = merge_states(empty, empty)
    assert not nothing[0].any() and bool((nothing[1] == -torch.inf).all())
    assert not any(grad.any() for grad in torch.autograd.grad(nothing[0].sum(), empty))


def test_gradients_are_those_of_finite_differences():
    torch.manual_seed(6)
    states = [
        torch.randn(2, 3, *more, dtype=torch.float64, requires_grad=True) for _ in range(3) for more in ((5,), ())
    ]
    assert torch.autograd.gradcheck(lambda *all: merge_states(list(zip(all[::2], all[1::2]))), states)


def test_gradients_reach_the_keys():
    q, k, v = tensors(torch.float64, grad=True)
    weights = torch.randn(2, 3, 7, 16, dtype=torch.float64)

    def grads(out, lse):
        return torch.autograd.grad((out * weights).sum() + (2 * lse).sum(), (q, k, v))

    parts = merge_states([state(q, k, v, *cut) for cut in CUTS])
    for ours, whole in zip(grads(*parts), grads(*state(q, k, v, 0, 50))):
        torch.testing.assert_close(ours, whole)


def test_what_does_not_fit_is_refused():
    out, lse = torch.zeros(2, 5), torch.zeros(2)
    with pytest.raises(ValueError, match=r"\[merge_states\] there must be at least one state; got none"):
        merge_states([])
    with pytest.raises(ValueError, match=r"\[merge_states\] lse must be \[2\], a number per row of out; got \[3\]"):
        merge_states((out, torch.zeros(3)), (out, lse))
    with pytest.raises(TypeError, match=r"\[merge_states\] states must have the same dtypes; state 1 has others"):
        merge_states((out, lse), (out.double(), lse))

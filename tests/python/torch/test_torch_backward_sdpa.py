"""Gradients of scaled_dot_product_attention over dense tensors, against torch's own."""

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.functional as F
from naive_attention import assert_close_enough
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint

SDPA = quire_torch.scaled_dot_product_attention


def tensors(q_heads=4, kv_heads=4, q_len=57, kv_len=83, dim=24, v_dim=40, dtype=torch.float32, lead=(2,)):
    shapes = (*lead, q_heads, q_len, dim), (*lead, kv_heads, kv_len, dim), (*lead, kv_heads, kv_len, v_dim)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def assert_like_torch(inputs, mask=None, **options):
    """Gradients of inputs and, if it is of floats, the mask: at most twice the error of torch's math in the same precision."""
    sources = [*inputs, mask] if mask is not None and mask.requires_grad else inputs
    d_out = torch.randn(SDPA(*inputs, mask, **options).shape)

    def run(attention, sources):
        *inputs, own_mask = sources if len(sources) == 4 else (*sources, mask)
        out = attention(*inputs, own_mask, **options)
        return torch.autograd.grad(out, sources, d_out.to(out.dtype))

    found = run(SDPA, sources)
    exact = [source.detach().double().requires_grad_() for source in sources]
    if mask is not None and mask.dtype.is_floating_point and not mask.requires_grad:
        mask = mask.double()
    with sdpa_kernel(SDPBackend.MATH):
        truth = run(F.scaled_dot_product_attention, exact)
        if mask is not None and mask.dtype.is_floating_point and not mask.requires_grad:
            mask = mask.to(inputs[0].dtype)
        peer = run(F.scaled_dot_product_attention, sources)
    assert_close_enough(found, truth, peer, d_out.numel() // d_out.shape[-1])
    assert all(one.dtype == source.dtype for one, source in zip(found, sources))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (7, 1)], ids=str)
def test_heads(heads, is_causal):
    assert_like_torch(tensors(*heads), is_causal=is_causal, enable_gqa=True)


@pytest.mark.parametrize(
    "shape", [(57, 83), (1, 83), (4, 57, 83), (4, 1, 83), (2, 1, 57, 83), (2, 4, 57, 83), (83,)], ids=str
)
def test_gradient_of_a_mask(shape):
    if len(shape) == 1:
        shape = (1, *shape)
    assert_like_torch(tensors(), torch.randn(shape, requires_grad=True))


def test_masks_without_gradient():
    visible = torch.rand(57, 83) > 0.4
    visible[:, 0] = True
    assert_like_torch(tensors(), visible)
    assert_like_torch(tensors(), torch.randn(57, 83))


def test_a_mask_alone():
    query, key, value = (tensor.detach() for tensor in tensors())
    mask = torch.randn(57, 83, requires_grad=True)
    SDPA(query, key, value, mask).square().sum().backward()
    other = mask.detach().clone().requires_grad_()
    F.scaled_dot_product_attention(query, key, value, other).square().sum().backward()
    torch.testing.assert_close(mask.grad, other.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("lead", [(), (1,), (2, 3)], ids=str)
def test_ranks(lead):
    assert_like_torch(tensors(lead=lead))


def test_broadcast_heads_and_batch():
    query, key, value = tensors()
    key, value = (tensor.detach()[:1, :1].clone().requires_grad_() for tensor in (key, value))
    found = torch.autograd.grad(SDPA(query, key, value).square().sum(), (query, key, value))
    out = F.scaled_dot_product_attention(query, *(t.expand(2, 4, -1, -1) for t in (key, value)))
    want = torch.autograd.grad(out.square().sum(), (query, key, value))
    for one, other in zip(found, want):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype):
    assert_like_torch(tensors(dtype=dtype), is_causal=True)


def test_bottom_right_and_rules():
    query, key, value = tensors(q_len=30, kv_len=50)
    for mask, visible in [
        (causal_lower_right(30, 50), torch.ones(30, 50).tril(20).bool()),
        (lambda b, h, i, j: (i + j) % 3 != 0, (torch.arange(30)[:, None] + torch.arange(50)) % 3 != 0),
    ]:
        found = torch.autograd.grad(SDPA(query, key, value, mask).square().sum(), (query, key, value))
        out = F.scaled_dot_product_attention(query, key, value, visible)
        want = torch.autograd.grad(out.square().sum(), (query, key, value))
        for one, other in zip(found, want):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_gradcheck():
    query, key, value = tensors(2, 1, 5, 6, 3, 4, torch.float64)
    mask = torch.randn(2, 1, 6, dtype=torch.float64, requires_grad=True)
    call = lambda q, k, v, m: SDPA(q, k, v, m, enable_gqa=True)  # noqa: E731
    assert torch.autograd.gradcheck(call, (query, key, value, mask))


@pytest.mark.parametrize("backend", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
def test_dropout_is_replayed(backend):
    query, key, value = tensors(2, 2, 9, 11, 8, 11)
    with torch.no_grad():
        value.copy_(torch.eye(11))  # the output is the weights that were used
    with sdpa_kernel(backend):
        weights = SDPA(query, key, value, dropout_p=0.4)
    assert 0.2 < (weights == 0).float().mean() < 0.6
    d_out = torch.randn_like(weights)
    _, d_key, d_value = torch.autograd.grad(weights, (query, key, value), d_out)
    torch.testing.assert_close(d_value, weights.detach().transpose(-1, -2) @ d_out, rtol=1e-4, atol=1e-5)
    kept = (weights.detach() != 0).double() / 0.6
    exact = [tensor.detach().double().requires_grad_() for tensor in (query, key, value)]
    out = torch.softmax(exact[0] @ exact[1].transpose(-1, -2) / 8**0.5, -1) * kept @ exact[2]
    torch.testing.assert_close(
        d_key, torch.autograd.grad(out, exact[1], d_out.double())[0].float(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_of_dropout(use_reentrant):
    inputs = tensors()
    torch.manual_seed(7)
    want = torch.autograd.grad(SDPA(*inputs, dropout_p=0.3).square().sum(), inputs)
    torch.manual_seed(7)
    call = lambda *all: SDPA(*all, dropout_p=0.3).square().sum()  # noqa: E731
    checkpoint(call, *inputs, use_reentrant=use_reentrant).backward()
    assert all(torch.equal(tensor.grad, one) for tensor, one in zip(inputs, want))


def test_func_grad_and_layout():
    query, key, value = (tensor.detach() for tensor in tensors(v_dim=24))
    mask = torch.randn(57, 83)
    loss = lambda query, mask: SDPA(query, key, value, mask).square().sum()  # noqa: E731
    found = torch.func.grad(loss, argnums=(0, 1))(query, mask)
    leaves = query.clone().requires_grad_(), mask.clone().requires_grad_()
    assert all(torch.equal(a, b) for a, b in zip(found, torch.autograd.grad(loss(*leaves), leaves)))
    turned = query.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    out = SDPA(turned, key, value)
    assert out.transpose(1, 2).is_contiguous()
    torch.testing.assert_close(torch.autograd.grad(out.sum(), turned)[0].shape, query.shape)


def test_fully_hidden_rows():
    query, key, value = tensors()
    visible = torch.rand(57, 83) > 0.5
    visible[13] = False
    SDPA(query, key, value, visible).square().sum().backward()
    assert not query.grad[:, :, 13].any()
    assert all(tensor.grad.isfinite().all() for tensor in (query, key, value))

"""Gradients of flex_attention and the machinery around them: torch.func, checkpoints, autocast, in-place edits, enable()."""

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from naive_attention import naive
from quire.torch import AuxRequest, create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

F64 = torch.float64


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


@pytest.fixture
def tensors():
    return [torch.randn(2, 3, 20, 8, dtype=F64).requires_grad_() for _ in range(3)]


@pytest.fixture
def mask():
    return create_block_mask(causal, None, None, 20, 20)


def loss_of(query, key, value, bias, mask):
    return flex_attention(query, key, value, lambda s, b, h, i, j: s + bias[h] * (i - j), mask).square().sum()


def bias_of():
    return torch.randn(3, dtype=F64).requires_grad_()


# ---- torch.func


def test_func_grad(tensors, mask):
    bias = bias_of()
    want = torch.autograd.grad(loss_of(*tensors, bias, mask), (*tensors, bias))
    plain = [tensor.detach() for tensor in (*tensors, bias)]
    found = torch.func.grad(lambda *all: loss_of(*all, mask), argnums=(0, 1, 2, 3))(*plain)
    assert all(torch.equal(a, b) for a, b in zip(found, want))
    found, value = torch.func.grad_and_value(lambda bias: loss_of(*plain[:3], bias, mask))(plain[3])
    assert torch.equal(found, want[3]) and torch.equal(value, loss_of(*plain, mask))
    out, vjp = torch.func.vjp(lambda query: flex_attention(query, *plain[1:3]), plain[0])
    assert vjp(torch.ones_like(out))[0].shape == plain[0].shape


def test_func_grad_of_what_a_mod_computes(tensors):
    query, key, value = (tensor.detach() for tensor in tensors)

    def loss(table):
        return flex_attention(query, key, value, lambda s, b, h, i, j: s + table.tanh()[j]).square().sum()

    table = torch.randn(20, dtype=F64)
    found = torch.func.grad(loss)(table)  # traced for the first time under the transform
    leaf = table.clone().requires_grad_()
    assert torch.equal(found, torch.autograd.grad(loss(leaf), leaf)[0]) and found.any()


def test_func_grad_of_a_module(tensors, mask):
    query, key, value = (tensor.detach() for tensor in tensors)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias, self.project = bias_of(), torch.nn.Linear(8, 8, dtype=F64)
            self.bias = torch.nn.Parameter(self.bias)

        def forward(self, query):
            return flex_attention(self.project(query), key, value, lambda s, b, h, i, j: s * self.bias[h], mask)

    layer = Layer()
    layer(query).square().sum().backward()
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    found = torch.func.grad(lambda p: torch.func.functional_call(layer, p, (query,)).square().sum())(parameters)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_forward_mode_is_refused(tensors):
    query, key, value = tensors
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward mode"):
        dual = torch.autograd.forward_ad.make_dual(query.detach(), torch.ones_like(query))
        flex_attention(dual, key, value)


# ---- twice


@pytest.mark.parametrize("call", ["flex", "sdpa"])
def test_double_backward_is_refused(call, tensors):
    attention = flex_attention if call == "flex" else quire_torch.scaled_dot_product_attention
    out = attention(*tensors)
    (first,) = torch.autograd.grad(out.square().sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="gradients of gradients are not supported"):
        first.sum().backward()


def test_gradient_penalty_is_refused_under_func(tensors):
    query, key, value = (tensor.detach() for tensor in tensors)
    inner = torch.func.grad(lambda query: flex_attention(query, key, value).square().sum())
    with pytest.raises(RuntimeError, match="gradients of gradients are not supported"):
        torch.func.grad(lambda query: inner(query).sum())(query)


def test_backward_twice_over_one_graph(tensors):
    out = flex_attention(*tensors)
    first = torch.autograd.grad(out.sum(), tensors, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(out.sum(), tensors)))
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(out.sum(), tensors)


# ---- edits between forward and backward


@pytest.mark.parametrize("edited", ["query", "key", "value", "out", "lse", "bias", "rule"])
def test_edits_are_noticed(edited, tensors):
    query, key, value = (tensor * 1 for tensor in tensors)
    bias, lengths = bias_of() * 1, torch.full((20,), 9)
    rule = create_block_mask(lambda b, h, i, j: j < lengths[i], None, None, 20, 20)
    out, aux = flex_attention(
        query, key, value, lambda s, b, h, i, j: s + bias[h], rule, return_aux=AuxRequest(lse=True)
    )
    loss = out.sum() + aux.lse.sum()
    with torch.no_grad():
        one = {"query": query, "key": key, "value": value, "out": out, "lse": aux.lse, "bias": bias, "rule": lengths}
        one[edited].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# ---- around


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant, tensors, mask):
    bias = bias_of()
    want = torch.autograd.grad(loss_of(*tensors, bias, mask), (*tensors, bias))
    checkpoint(loss_of, *tensors, bias, mask, use_reentrant=use_reentrant).backward()
    assert all(torch.equal(tensor.grad, one) for tensor, one in zip((*tensors, bias), want))


def test_saved_tensors_hooks(tensors, mask):
    bias = bias_of()
    want = torch.autograd.grad(loss_of(*tensors, bias, mask), (*tensors, bias))
    with torch.autograd.graph.save_on_cpu():
        loss = loss_of(*tensors, bias, mask)
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(loss, (*tensors, bias)), want))


def test_autocast():
    query, key, value = (torch.randn(1, 2, 40, 16, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = flex_attention(query, key, value, lambda s, b, h, i, j: s * bias[h])
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    assert all(tensor.grad.dtype == torch.float32 for tensor in (query, key, value, bias))
    exact = [tensor.detach().bfloat16().float().requires_grad_() for tensor in (query, key, value)]
    naive(*exact, lambda s, b, h, i, j: s * bias.detach()[h])[0].square().sum().backward()
    torch.testing.assert_close(query.grad, exact[0].grad, rtol=0.1, atol=0.1)


def test_nothing_is_recorded_without_need(tensors, mask):
    plain = [tensor.detach() for tensor in tensors]
    assert flex_attention(*plain, block_mask=mask).grad_fn is None
    with torch.no_grad():
        assert flex_attention(*tensors, block_mask=mask).grad_fn is None
    with torch.inference_mode():
        assert not flex_attention(*tensors, block_mask=mask).requires_grad
    assert flex_attention(*tensors, block_mask=mask).grad_fn is not None


def test_result_is_that_of_inference(tensors, mask):
    with torch.no_grad():
        want = flex_attention(*tensors, block_mask=mask)
    assert torch.equal(flex_attention(*tensors, block_mask=mask), want)


def test_hooks_and_accumulation(tensors):
    seen = []
    tensors[0].register_hook(lambda gradient: seen.append(gradient.shape))
    for _ in range(2):
        flex_attention(*tensors).sum().backward()
    (once,) = torch.autograd.grad(flex_attention(*tensors).sum(), tensors[0])
    torch.testing.assert_close(tensors[0].grad, 2 * once)
    assert len(seen) == 3


def test_torchs_own_names_train(tensors):
    def rule(b, h, i, j):
        return i >= j

    with quire_torch.enable():
        mask = torch_flex.create_block_mask(rule, None, None, 20, 20, device="cpu")
        out = torch_flex.flex_attention(*tensors, block_mask=mask)
    found = torch.autograd.grad(out.square().sum(), tensors)
    want = torch.autograd.grad(naive(*tensors, None, rule)[0].square().sum(), tensors)
    for one, other in zip(found, want):
        torch.testing.assert_close(one, other)
    with pytest.raises(NotImplementedError):
        torch_flex.flex_attention(*tensors)


def test_under_modes(tensors, mask):
    bias = bias_of()
    want = torch.autograd.grad(loss_of(*tensors, bias, mask), (*tensors, bias))
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        found = torch.autograd.grad(loss_of(*tensors, bias, mask), (*tensors, bias))
    assert all(torch.equal(a, b) for a, b in zip(found, want))

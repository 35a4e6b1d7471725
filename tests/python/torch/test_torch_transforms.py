"""torch.vmap and gradients of many at once (is_grads_batched, jacobian, jacrev) of both attentions, against torch's SDPA."""

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.functional as F

ATTENTIONS = {"flex": quire_torch.flex_attention, "sdpa": quire_torch.scaled_dot_product_attention}


@pytest.fixture(params=ATTENTIONS)
def attention(request):
    return ATTENTIONS[request.param]


def inputs(*lead):
    return tuple(torch.randn(*lead, 2, 3, length, 8, dtype=torch.float64, requires_grad=True) for length in (4, 5, 5))


def assert_all_close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_a_batch(attention):
    tensors = inputs()
    directions = torch.randn(6, 2, 3, 4, 8, dtype=torch.float64)
    found = torch.autograd.grad(attention(*tensors), tensors, directions, is_grads_batched=True)
    one_by_one = [torch.autograd.grad(attention(*tensors), tensors, one) for one in directions]
    for batched, alone in zip(found, zip(*one_by_one)):
        assert torch.equal(batched, torch.stack(alone))
    assert_all_close(
        found, torch.autograd.grad(F.scaled_dot_product_attention(*tensors), tensors, directions, is_grads_batched=True)
    )


def test_a_batch_without_entries(attention):
    assert torch.vmap(attention)(*inputs(0)).shape == (0, 2, 3, 4, 8)


@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobians(attention, vectorize):
    tensors = inputs()
    found = torch.autograd.functional.jacobian(attention, tensors, vectorize=vectorize)
    assert_all_close(found, torch.autograd.functional.jacobian(F.scaled_dot_product_attention, tensors, vectorize=True))
    assert_all_close(torch.func.jacrev(attention, argnums=(0, 1, 2))(*tensors), found)


def test_learned_biases_and_lse_in_a_batch():
    tensors = (*inputs(), torch.randn(4, 5, dtype=torch.float64, requires_grad=True))

    def scores_of(query, key, value, bias):
        rule = lambda score, b, h, q_idx, kv_idx: score * bias[q_idx, kv_idx]  # noqa: E731
        return quire_torch.flex_attention(query, key, value, rule, return_lse=True)

    assert torch.autograd.gradcheck(scores_of, tensors, check_batched_grad=True)
    masked = lambda *tensors: quire_torch.scaled_dot_product_attention(*tensors)  # noqa: E731
    assert torch.autograd.gradcheck(masked, tensors, check_batched_grad=True)


def test_vmap(attention):
    tensors = inputs(5)
    want = F.scaled_dot_product_attention(*tensors)
    torch.testing.assert_close(torch.vmap(attention)(*tensors), want)
    turned = torch.vmap(attention, in_dims=1, out_dims=1)(*(tensor.transpose(0, 1) for tensor in tensors))
    torch.testing.assert_close(turned.transpose(0, 1), want)
    shared = torch.vmap(attention, in_dims=(0, None, None))(tensors[0], tensors[1][0], tensors[2][0])
    torch.testing.assert_close(shared[3], attention(tensors[0][3], tensors[1][0], tensors[2][0]))


def test_vmap_and_gradients(attention):
    tensors = inputs(3)
    loss = lambda *tensors: attention(*tensors).square().sum()  # noqa: E731
    per_sample = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*tensors)
    whole = torch.autograd.grad(torch.vmap(attention)(*tensors).square().sum(), tensors)
    wanted = torch.autograd.grad(F.scaled_dot_product_attention(*tensors).square().sum(), tensors)
    assert_all_close(per_sample, wanted)
    assert_all_close(whole, wanted)


def test_vmap_over_masks():
    tensors = [tensor.detach() for tensor in inputs()]
    masks = torch.randn(3, 4, 5, dtype=torch.float64)
    found = torch.vmap(quire_torch.scaled_dot_product_attention, in_dims=(None, None, None, 0))(*tensors, masks)
    for one, mask in zip(found, masks):
        torch.testing.assert_close(one, F.scaled_dot_product_attention(*tensors, mask))


def test_vmap_over_what_a_mod_reads_is_refused():
    tensors = [tensor.detach() for tensor in inputs(3)]

    def biased(query, key, value, bias):
        return quire_torch.flex_attention(query, key, value, lambda score, b, h, q_idx, kv_idx: score + bias[kv_idx])

    with pytest.raises(NotImplementedError, match="not over tensors that a mod reads"):
        torch.vmap(biased)(*tensors, torch.randn(3, 5))


@pytest.mark.parametrize("where", ["jvp", "hessian", "jacfwd", "jacobian"])
def test_forward_mode_is_refused(attention, where):
    query, key, value = (tensor.detach() for tensor in inputs())
    call = lambda query: attention(query, key, value)  # noqa: E731
    runs = {
        "jvp": lambda: torch.func.jvp(call, (query,), (query,)),
        "hessian": lambda: torch.func.hessian(lambda query: call(query).sum())(query),
        "jacfwd": lambda: torch.func.jacfwd(call)(query),
        "jacobian": lambda: torch.autograd.functional.jacobian(call, query, vectorize=True, strategy="forward-mode"),
    }
    with pytest.raises(NotImplementedError, match="forward mode is not supported"):
        runs[where]()

"""Gradients over nested tensors: each sequence has the bits of that sequence alone, finite differences, holes."""

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.functional as F
from quire.torch import AuxRequest, create_nested_block_mask, flex_attention

LENGTHS = (30, 1, 0, 67)
SDPA = quire_torch.scaled_dot_product_attention


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def parts(heads, dim, lengths=LENGTHS, dtype=torch.float32):
    return [torch.randn(n, heads, dim, dtype=dtype).requires_grad_() for n in lengths]


def nested(sequences):
    """[B, H, j, D] of sequences [n, H, D], with gradients to them."""
    return torch.nested.as_nested_tensor(sequences, layout=torch.jagged).transpose(1, 2)


def values_of(tensor):
    return tensor.transpose(1, 2).values()


def alone(sequence):
    return sequence.transpose(0, 1).unsqueeze(0)


def test_flex_attention_is_each_sequence_alone():
    query, key, value = parts(4, 16), parts(2, 16), parts(2, 24)
    bias, per_sequence = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)

    def mod(score, b, h, i, j):
        return score * bias[h] + per_sequence[b] * 0.1 * (i - j)

    q, k, v = nested(query), nested(key), nested(value)
    mask = create_nested_block_mask(causal, None, None, q)
    out, aux = flex_attention(q, k, v, mod, mask, enable_gqa=True, return_aux=AuxRequest(lse=True))
    assert out.shape[:2] == (4, 4) and aux.lse.dim() == 3
    loss = values_of(out).square().sum() + aux.lse.transpose(1, 2).values().sin().sum()
    found = torch.autograd.grad(loss, (*query, *key, *value, bias, per_sequence))
    want = [torch.zeros_like(one) for one in found]
    for n, (a, b, c) in enumerate(zip(query, key, value)):
        if not len(a):
            continue
        rule = quire_torch.create_block_mask(causal, None, None, len(a), len(a))
        # b is 0 in a call of its own.
        own = lambda score, b, h, i, j: score * bias[h] + per_sequence[n] * 0.1 * (i - j)  # noqa: B023, E731
        one, one_aux = flex_attention(
            alone(a), alone(b), alone(c), own, rule, enable_gqa=True, return_aux=AuxRequest(lse=True)
        )
        loss = one.square().sum() + one_aux.lse.sin().sum()
        got = torch.autograd.grad(loss, (a, b, c, bias, per_sequence))
        for place, gradient in zip((n, 4 + n, 8 + n), got):
            assert torch.equal(found[place], gradient)
        want[12] += got[3]
        want[13] += got[4]
    torch.testing.assert_close(found[12], want[12], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[13], want[13], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradcheck(is_causal):
    lengths = (4, 0, 3)
    tensors = [*parts(2, 3, lengths, torch.float64), *parts(1, 3, lengths, torch.float64)]
    bias = torch.randn(2, dtype=torch.float64, requires_grad=True)

    def call(*tensors):
        *tensors, bias = tensors
        q, k = nested(tensors[:3]), nested(tensors[3:])
        mask = create_nested_block_mask(causal, None, None, q) if is_causal else None
        out, aux = flex_attention(
            q,
            k,
            k,
            lambda s, b, h, i, j: torch.tanh(s * bias[h]),
            mask,
            enable_gqa=True,
            return_aux=AuxRequest(lse=True),
        )
        other = SDPA(q, k, k, is_causal=is_causal, enable_gqa=True)
        return values_of(out), aux.lse.transpose(1, 2).values(), values_of(other)

    assert torch.autograd.gradcheck(call, (*tensors, bias))


def test_sdpa_is_torchs():
    query, key, value = parts(3, 16), parts(3, 16), parts(3, 16)
    sources = (*query, *key, *value)
    found = torch.autograd.grad(values_of(SDPA(nested(query), nested(key), nested(value))).square().sum(), sources)
    loss = sum(
        F.scaled_dot_product_attention(alone(a), alone(b), alone(c)).square().sum()
        for a, b, c in zip(query, key, value)
    )
    for one, other in zip(found, torch.autograd.grad(loss, sources), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_holes():
    padded = torch.randn(3, 20, 2, 8, requires_grad=True)
    starts, lengths = torch.tensor([0, 4, 2]), torch.tensor([20, 5, 9])
    holes = torch.nested.narrow(padded, 1, starts, lengths, layout=torch.jagged).transpose(1, 2)
    out = flex_attention(holes, holes, holes)
    sum(one.square().sum() for one in out.unbind()).backward()
    want = torch.zeros_like(padded)
    for n, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist())):
        one = padded.detach()[n, start : start + length].requires_grad_()
        flex_attention(alone(one), alone(one), alone(one)).square().sum().backward()
        want[n, start : start + length] = one.grad
    torch.testing.assert_close(padded.grad, want)


def test_dropout_and_three_axes():
    sequences = [torch.randn(n, 8).requires_grad_() for n in (5, 9)]
    x = torch.nested.as_nested_tensor(sequences, layout=torch.jagged)
    torch.manual_seed(0)
    out = SDPA(x, x, x, dropout_p=0.5)
    first = torch.autograd.grad(out.values().sum(), sequences)
    torch.manual_seed(0)
    again = torch.autograd.grad(SDPA(x, x, x, dropout_p=0.5).values().sum(), sequences)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(first[0], torch.autograd.grad(SDPA(x, x, x).values().sum(), sequences)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_bias_of_half_precision(dtype):
    """Of one sequence the bits of the dense call, whose backward pass gets the output before rounding; with holes, too."""
    values = torch.randn(3, 60, 2, 16, dtype=dtype)
    d_out = torch.randn(40, 2, 16, dtype=dtype)
    bias = torch.randn(40, dtype=dtype, requires_grad=True)
    add_bias = lambda score, b, h, q_idx, kv_idx: score + bias[q_idx]  # noqa: E731
    dense = [one[:40].transpose(0, 1)[None].requires_grad_() for one in values]
    expected = flex_attention(*dense, add_bias)
    want = torch.autograd.grad(expected, (*dense, bias), d_out.transpose(0, 1)[None])
    leaves = [one.clone().requires_grad_() for one in values]
    offsets, lengths = torch.tensor([0, 60]), torch.tensor([40])
    jagged = [torch.nested.nested_tensor_from_jagged(leaf, offsets, lengths).transpose(1, 2) for leaf in leaves]
    out = flex_attention(*jagged, add_bias).transpose(1, 2).values()
    found = torch.autograd.grad(out, (*leaves, bias), torch.cat([d_out, torch.zeros_like(d_out[:20])]))
    assert torch.equal(out[:40].transpose(0, 1)[None], expected) and out.dtype == dtype and not out[40:].any()
    for one, other in zip(found[:3], want[:3]):
        assert torch.equal(one[:40].transpose(0, 1)[None], other) and not one[40:].any()
    assert torch.equal(found[3], want[3])


def test_ragged_batch_axis():
    sequences = [torch.randn(n, 2, 6, 8).requires_grad_() for n in (3, 2)]
    x = torch.nested.as_nested_tensor(sequences, layout=torch.jagged)
    found = torch.autograd.grad(SDPA(x, x, x).values().square().sum(), sequences)
    loss = sum(F.scaled_dot_product_attention(one, one, one).square().sum() for one in sequences)
    for one, other in zip(found, torch.autograd.grad(loss, sequences)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_enable_trains_nested_attention():
    query = parts(3, 16)
    with quire_torch.enable():
        x = nested(query)
        out = F.scaled_dot_product_attention(x, x, x, is_causal=True)  # refused by torch
    found = torch.autograd.grad(values_of(out).square().sum(), query)
    loss = sum(
        F.scaled_dot_product_attention(alone(one), alone(one), alone(one), is_causal=True).square().sum()
        for one in query
    )
    for one, other in zip(found, torch.autograd.grad(loss, query)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_nested_leaf():
    leaf = torch.nested.nested_tensor([torch.randn(n, 2, 8) for n in (3, 5)], layout=torch.jagged, requires_grad=True)
    x = leaf.transpose(1, 2)
    flex_attention(x, x, x).transpose(1, 2).values().sum().backward()
    assert leaf.grad.shape == leaf.shape


@pytest.mark.parametrize("attention", [flex_attention, SDPA])
def test_torch_func_is_refused(attention):
    x = torch.nested.nested_tensor_from_jagged(torch.randn(8, 2, 8), torch.tensor([0, 3, 8])).transpose(1, 2)
    with pytest.raises(NotImplementedError, match="nested tensors are not supported under torch.func"):
        torch.func.grad(lambda factor: factor * attention(x, x, x).values().sum())(torch.ones(()))

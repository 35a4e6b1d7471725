"""Dropout of flex_attention by value: each weight, lse, gradients against torch, and scaled_dot_product_attention's bits."""

import pytest
import torch
from quire.torch import AuxRequest, create_block_mask, flex_attention, scaled_dot_product_attention

P = 0.25
SIZES = (2, 4, 37, 45)


def causal(b, h, q_idx, kv_idx):
    return q_idx + 8 >= kv_idx


def inputs(dtype=torch.float32, dim=16):
    generator = torch.Generator().manual_seed(1)
    batch, heads, q_len, kv_len = SIZES
    shapes = ((batch, heads, q_len, dim), (batch, 2, kv_len, dim), (batch, 2, kv_len, dim))
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def mods(dtype=torch.float32):
    bias = torch.linspace(-1, 1, SIZES[1] * SIZES[3], dtype=dtype).reshape(SIZES[1], SIZES[3])
    mask = create_block_mask(causal, None, None, *SIZES[2:], BLOCK_SIZE=16)
    return bias, mask


def capped(bias):
    return lambda score, b, h, q_idx, kv_idx: 3.0 * torch.tanh(score / 3.0) + bias[h, kv_idx]


def weights_of(query, key, **options):
    """Values that are unit vectors make the output the weights."""
    unit = torch.eye(key.shape[2], dtype=key.dtype).expand(*key.shape[:3], -1)
    return flex_attention(query, key, unit, enable_gqa=True, **options)


@pytest.mark.parametrize("masked", [False, True])
def test_each_weight_is_dropped_or_scaled(masked):
    query, key, _ = inputs()
    bias, mask = mods()
    options = dict(score_mod=capped(bias), block_mask=mask if masked else None)
    weights = weights_of(query, key, **options)
    dropped = weights_of(query, key, dropout_p=P, seed=7, **options)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / (1 - P), atol=1e-6, rtol=1e-5)
    assert abs(1 - kept[weights != 0].float().mean() - P) < 0.03
    assert torch.equal(dropped, weights_of(query, key, dropout_p=P, seed=7, **options))
    assert not torch.equal(dropped, weights_of(query, key, dropout_p=P, seed=8, **options))
    assert not weights_of(query, key, dropout_p=1.0, seed=7, **options).any()


def test_without_mods_it_is_that_of_scaled_dot_product_attention():
    query, key, value = inputs()
    torch.manual_seed(5)
    plain = flex_attention(query, key, value, enable_gqa=True, dropout_p=P)
    torch.manual_seed(5)
    assert torch.equal(plain, scaled_dot_product_attention(query, key, value, dropout_p=P, enable_gqa=True))


def test_lse_is_that_of_all_weights():
    query, key, value = inputs()
    bias, mask = mods()
    aux = [
        flex_attention(
            query, key, value, capped(bias), mask, enable_gqa=True, dropout_p=p, return_aux=AuxRequest(lse=True)
        )[1]
        for p in (0.0, P)
    ]
    assert torch.equal(aux[0].lse, aux[1].lse)


def naive(query, key, value, bias, keep):
    """In torch, with the weights of `keep`."""
    key, value = (tensor.repeat_interleave(2, 1) for tensor in (key, value))
    score = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    score = 3.0 * torch.tanh(score / 3.0) + bias[:, None, :]
    visible = torch.arange(SIZES[2])[:, None] + 8 >= torch.arange(SIZES[3])
    weights = torch.softmax(score.masked_fill(~visible, -float("inf")), -1)
    return (weights * keep / (1 - P)) @ value


def test_gradients_replay_it():
    tensors = [tensor.requires_grad_() for tensor in inputs(torch.float64)]
    bias, mask = mods(torch.float64)
    bias.requires_grad_()
    with torch.no_grad():
        keep = weights_of(*tensors[:2], score_mod=capped(bias), block_mask=mask, dropout_p=P, seed=11) != 0
    out = flex_attention(*tensors, capped(bias), mask, enable_gqa=True, dropout_p=P, seed=11)
    exact = naive(*tensors, bias, keep)
    torch.testing.assert_close(out, exact)
    d_out = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = torch.autograd.grad(out, [*tensors, bias], d_out)
    for got, expected in zip(found, torch.autograd.grad(exact, [*tensors, bias], d_out), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)


def test_nested_it_is_that_of_scaled_dot_product_attention():
    generator = torch.Generator().manual_seed(1)
    parts = [[torch.randn(n, 4, 16, generator=generator) for n in (30, 1, 12)] for _ in range(3)]

    def nested():
        made = [torch.nested.nested_tensor(part, layout=torch.jagged, requires_grad=True) for part in parts]
        return made, [tensor.transpose(1, 2) for tensor in made]

    results = []
    for function in (flex_attention, scaled_dot_product_attention):
        leaves, tensors = nested()
        torch.manual_seed(9)
        out = function(*tensors, dropout_p=P)
        out.values().square().sum().backward()
        results.append([out.values(), *(leaf.grad.values() for leaf in leaves)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)

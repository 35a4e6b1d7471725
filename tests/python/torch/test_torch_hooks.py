"""Sinks, weights by a formula and rotation on read over tensors: against torch's own operations, gradcheck, compiled graphs, nested
tensors."""

import pytest
import torch
from quire.torch import AuxRequest, Rope, create_block_mask, flex_attention


def inputs(dtype=torch.float64, length=12, heads=4, requires_grad=True):
    torch.manual_seed(0)
    shapes = [(2, heads, length, 8), (2, heads // 2, length, 8), (2, heads // 2, length, 6)]
    tensors = [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]
    return [tensor.requires_grad_(requires_grad) for tensor in tensors]


def plain(query, key, value, weigh, scale=8**-0.5):
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    return weigh(query @ key.mT * scale) @ value


def rotated(x, theta=10000.0):
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2], dtype=x.dtype)[:, None] * theta ** (-torch.arange(half, dtype=x.dtype) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def with_sinks(sinks):
    def weigh(scores):
        column = sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, column], -1).softmax(-1)[..., :-1]

    return weigh


def test_sinks_are_a_column_without_values():
    query, key, value = inputs()
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    got = flex_attention(query, key, value, enable_gqa=True, sinks=sinks)
    want = plain(query, key, value, with_sinks(sinks))
    torch.testing.assert_close(got, want)
    wanted = [query, key, value, sinks]
    d_out = torch.randn_like(got)
    for one, other in zip(torch.autograd.grad(got, wanted, d_out), torch.autograd.grad(want, wanted, d_out)):
        torch.testing.assert_close(one, other)


HOOKS = {
    "sinks": lambda x: dict(sinks=x),
    "sinks in lse": lambda x: dict(sinks=x, lse_with_sinks=True),
    "sigmoid": lambda x: dict(weight_mod=lambda score, b, h, q, kv: torch.sigmoid(score + x[h])),
    "softplus, sum": lambda x: dict(
        weight_mod=lambda score, b, h, q, kv: torch.nn.functional.softplus(score * x[h]), normalize="sum"
    ),
    "rope": lambda x: dict(rope=Rope(), score_mod=lambda score, b, h, q, kv: score * x[h]),
    "rope, sinks": lambda x: dict(rope=Rope(dims=4, interleaved=True), sinks=x),
}


@pytest.mark.parametrize("name", HOOKS)
def test_gradcheck(name):
    tensors = [*inputs(), torch.randn(4, dtype=torch.float64, requires_grad=True)]
    mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 12, 12)

    def call(query, key, value, x):
        aux = AuxRequest(lse=True)
        out, found = flex_attention(
            query, key, value, block_mask=mask, enable_gqa=True, return_aux=aux, **HOOKS[name](x)
        )
        return out, found.lse

    assert torch.autograd.gradcheck(call, tensors)


def test_weights_are_the_formula():
    query, key, value = inputs()
    got = flex_attention(
        query,
        key,
        value,
        lambda score, b, h, q, kv: score * 2,
        enable_gqa=True,
        weight_mod=lambda score, b, h, q, kv: torch.sigmoid(score) + q,
    )
    rows = torch.arange(12, dtype=torch.float64)[:, None]
    torch.testing.assert_close(got, plain(query, key, value, lambda s: torch.sigmoid(2 * s) + rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rope_is_rotating_first(dtype):
    query, key, value = inputs(dtype, 300, requires_grad=False)
    got = flex_attention(query, key, value, enable_gqa=True, rope=Rope(theta=500.0))
    wide = (x.double() for x in (query, key, value))
    query, key, value = wide
    want = plain(rotated(query, 500.0), rotated(key, 500.0), value, lambda s: s.softmax(-1))
    unit = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(got.double(), want, atol=unit, rtol=unit)


@pytest.mark.parametrize(
    "name", [name if name in ("sinks", "sigmoid") else pytest.param(name, marks=pytest.mark.slow) for name in HOOKS]
)
def test_compiled_is_eager(name):
    torch._dynamo.reset()
    tensors = [*inputs(torch.float32), torch.randn(4, requires_grad=True)]

    def call(query, key, value, x):
        return flex_attention(query, key, value, enable_gqa=True, **HOOKS[name](x))

    want = call(*tensors)
    got = torch.compile(call, fullgraph=True, backend="aot_eager")(*tensors)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    d_out = torch.randn_like(want)
    for one, other in zip(torch.autograd.grad(got, tensors, d_out), torch.autograd.grad(want, tensors, d_out)):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", HOOKS)
def test_nested_is_each_alone(name):
    x = torch.randn(4, requires_grad=True)
    parts = [torch.randn(n, 4, 8, requires_grad=True) for n in (9, 30)]
    nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    got = flex_attention(nested, nested, nested, **HOOKS[name](x)).unbind()
    alone = [flex_attention(*[p.transpose(0, 1).unsqueeze(0)] * 3, **HOOKS[name](x))[0] for p in parts]
    for one, other in zip(got, alone):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    d = torch.autograd.grad(sum(one.square().sum() for one in got), [*parts, x])
    want = torch.autograd.grad(sum(one.square().sum() for one in alone), [*parts, x])
    for one, other in zip(d, want):
        torch.testing.assert_close(one, other)


def test_errors_name_what_is_wrong():
    query, key, value = inputs(requires_grad=False)
    table = torch.ones(12, 4, requires_grad=True)
    for kind, text, hooks in (
        (TypeError, "sinks must be a tensor", dict(sinks=[1.0] * 4)),
        (ValueError, "sinks must be one number per query head, \\[4\\]; got \\[3\\]", dict(sinks=torch.zeros(3))),
        (ValueError, "normalize must be None or 'sum'; got 'mean'", dict(weight_mod="score", normalize="mean")),
        (ValueError, "normalize is for weight_mod", dict(normalize="sum")),
        (ValueError, "the tables of a Rope get no gradient", dict(rope=Rope(cos=table, sin=table))),
        (TypeError, "rope must be a Rope", dict(rope=1e4)),
    ):
        with pytest.raises(kind, match=text):
            flex_attention(query, key, value, enable_gqa=True, **hooks)

"""Sinks, weights by a formula and rotation on read over tensors: against torch's own operations, gradcheck, compiled graphs, nested
tensors."""

import pytest
import torch
from quire.torch import (
    AuxRequest,
    Rope,
    create_block_mask,
    dequantize,
    flex_attention,
    quantize,
    scaled_dot_product_attention,
    varlen_attn,
)


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


SDPA_HOOKS = {name: hook for name, hook in HOOKS.items() if name not in ("sinks in lse", "rope")} | {
    "rope": lambda x: dict(rope=Rope()),
    "key_indices": lambda x: dict(key_indices=torch.arange(12, dtype=torch.int32).reshape(1, 12, 1).expand(2, 12, 1)),
}


@pytest.mark.parametrize("name", SDPA_HOOKS)
def test_sdpa_has_them(name):
    *tensors, x = *inputs(), torch.randn(4, dtype=torch.float64, requires_grad=True)
    hooks = SDPA_HOOKS[name](x)
    mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 12, 12)
    want = flex_attention(*tensors, block_mask=mask, enable_gqa=True, **hooks)
    got = scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True, **hooks)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    wanted = [*tensors, x] if want.grad_fn is not None and name not in ("rope", "key_indices") else tensors
    d_out = torch.randn_like(want)
    for one, other in zip(torch.autograd.grad(got, wanted, d_out), torch.autograd.grad(want, wanted, d_out)):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(2, 4, 12, 12), (12, 12), (2, 1, 1, 12), (4, 12, 1), (1,)])
@pytest.mark.parametrize("is_bool", [False, True])
def test_sdpa_with_a_mask_and_sinks(shape, is_bool):
    query, key, value = inputs()
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(shape) > 0.3 if is_bool else torch.randn(shape, dtype=torch.float64, requires_grad=True)
    got = scaled_dot_product_attention(query, key, value, mask, enable_gqa=True, sinks=sinks)
    weigh = with_sinks(sinks)
    if is_bool:
        want = plain(query, key, value, lambda s: weigh(s.masked_fill(~mask, -torch.inf)))
    else:
        want = plain(query, key, value, lambda s: weigh(s + mask))
    torch.testing.assert_close(got, want)
    wanted = [query, sinks] if is_bool else [query, sinks, mask]
    for one, other in zip(torch.autograd.grad(got.sum(), wanted), torch.autograd.grad(want.sum(), wanted)):
        torch.testing.assert_close(one, other)


def test_sdpa_of_other_ranks_and_seeds():
    query, key, value = inputs(torch.float32, requires_grad=False)
    sinks = torch.randn(4)
    want = scaled_dot_product_attention(query, key, value, enable_gqa=True, sinks=sinks)
    five = [x.unsqueeze(1) for x in (query, key, value)]
    got = scaled_dot_product_attention(*five, enable_gqa=True, sinks=sinks)
    torch.testing.assert_close(got.squeeze(1), want, rtol=0, atol=0)
    alone = scaled_dot_product_attention(query[0], key[0], value[0], enable_gqa=True, sinks=sinks)
    torch.testing.assert_close(alone, want[0], rtol=0, atol=0)
    options = dict(dropout_p=0.5, enable_gqa=True)
    first, again = (scaled_dot_product_attention(query, key, value, seed=3, **options) for _ in range(2))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    torch.testing.assert_close(first, flex_attention(query, key, value, seed=3, **options), rtol=0, atol=0)


def test_sdpa_compiled_and_nested():
    torch._dynamo.reset()
    query, key, value = inputs(torch.float32, requires_grad=False)
    sinks = torch.randn(4)

    def call(query, key, value, sinks):
        return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True, sinks=sinks)

    want = call(query, key, value, sinks)
    got = torch.compile(call, fullgraph=True, backend="aot_eager")(query, key, value, sinks)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    parts = [torch.randn(n, 4, 8) for n in (9, 30)]
    nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    for one, part in zip(call(nested, nested, nested, sinks).unbind(), parts):
        alone = call(*[part.transpose(0, 1).unsqueeze(0)] * 3, sinks)[0]
        torch.testing.assert_close(one, alone, rtol=0, atol=0)


def test_sdpa_names_what_it_refuses():
    query, key, value = inputs(torch.float32, requires_grad=False)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        with pytest.raises(RuntimeError, match="need the backend FLASH_ATTENTION"):
            scaled_dot_product_attention(query, key, value, enable_gqa=True, sinks=torch.zeros(4))
    with pytest.raises(RuntimeError, match="attn_mask must broadcast to"):
        mask = torch.zeros(5, 12)
        scaled_dot_product_attention(query, key, value, mask, enable_gqa=True, sinks=torch.zeros(4))
    with pytest.raises(RuntimeError, match="Explicit attn_mask should not be set when is_causal=True"):
        mask = torch.zeros(12, 12)
        scaled_dot_product_attention(query, key, value, mask, 0.0, True, enable_gqa=True, sinks=torch.zeros(4))
    four, two = (
        torch.nested.as_nested_tensor([torch.randn(5, n, 8)], layout=torch.jagged).transpose(1, 2) for n in (4, 2)
    )
    for tensors in ((query, key, value), (four, two, two)):
        with pytest.raises(
            RuntimeError, match="the same number of heads, or 1, or with enable_gqa a multiple; got 4 and 2"
        ):
            scaled_dot_product_attention(*tensors, sinks=torch.zeros(4))


@pytest.mark.parametrize("name", SDPA_HOOKS)
def test_over_quantised_keys_they_are_over_what_these_decode_to(name):
    torch.manual_seed(1)
    query = torch.randn(2, 4, 12, 32, requires_grad=True)
    key, value = torch.randn(2, 2, 12, 32), torch.randn(2, 2, 12, 32)
    coded = quantize(key, "int8"), quantize(value, "int8")
    hooks = SDPA_HOOKS[name](torch.randn(4))
    got = flex_attention(query, *coded, enable_gqa=True, **hooks)
    want = flex_attention(query, *map(dequantize, coded), enable_gqa=True, **hooks)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    d_out = torch.randn_like(got)
    one, other = (torch.autograd.grad(out, query, d_out)[0] for out in (got, want))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_key_weights_over_quantised_keys():
    torch.manual_seed(1)
    query, key, value = torch.randn(2, 4, 12, 32), torch.randn(2, 2, 12, 32), torch.randn(2, 2, 12, 32)
    coded = quantize(key, "int8"), quantize(value, "int8")
    request = AuxRequest(key_weights=True, entropy=True)
    _, got = flex_attention(query, *coded, enable_gqa=True, return_aux=request)
    _, want = flex_attention(query, *map(dequantize, coded), enable_gqa=True, return_aux=request)
    torch.testing.assert_close(got.key_weights, want.key_weights, rtol=0, atol=0)
    torch.testing.assert_close(got.entropy, want.entropy, rtol=0, atol=0)
    with pytest.raises(NotImplementedError, match="the query alone has a gradient"):
        flex_attention(query, *coded, enable_gqa=True, sinks=torch.zeros(4, requires_grad=True))


@pytest.mark.parametrize("name", SDPA_HOOKS)
def test_packed_sequences_are_each_alone(name):
    torch.manual_seed(2)
    cu_seq = torch.tensor([0, 12, 24])
    x = torch.randn(4, requires_grad=True)
    query, key, value = inputs(torch.float32)
    packed = [one.transpose(1, 2).flatten(0, 1) for one in (query, key, value)]
    hooks = SDPA_HOOKS[name](x)
    want = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True, **hooks)
    if "key_indices" in hooks:
        hooks["key_indices"] = hooks["key_indices"].flatten(0, 1)
    got = varlen_attn(*packed, cu_seq, cu_seq, 12, 12, window_size=(-1, 0), enable_gqa=True, **hooks)
    torch.testing.assert_close(got.unflatten(0, (2, 12)).transpose(1, 2), want, rtol=0, atol=0)
    one, other = (torch.autograd.grad(out.square().sum(), query)[0] for out in (got, want))
    torch.testing.assert_close(one, other)

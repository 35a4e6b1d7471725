"""Gradients of flex_attention over dense tensors: against f64, finite differences and torch's autograd."""

import pytest
import torch
from naive_attention import assert_close_enough, gradients, naive
from quire.torch import AuxRequest, create_block_mask, flex_attention, scaled_dot_product_attention

F64 = torch.float64


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window_and_sink(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & ((q_idx - kv_idx < 20) | (kv_idx < 3)) & (q_idx != 5)  # row 5 sees nothing


def leaves(*shapes, dtype=torch.float32):
    return [torch.randn(shape, dtype=F64).to(dtype).requires_grad_() for shape in shapes]


def inputs(batch=2, q_heads=4, kv_heads=2, q_len=113, kv_len=203, dim=32, v_dim=24, dtype=torch.float32):
    keys = (batch, kv_heads, kv_len)
    return leaves((batch, q_heads, q_len, dim), (*keys, dim), (*keys, v_dim), dtype=dtype)


# Mods over tensors that want gradients: name -> (shapes, mod from tensors). 4 heads, at most 240 positions.
KIND = torch.randint(0, 5, (240, 240), generator=torch.Generator().manual_seed(1))
MODS = {
    "per head": ([(4,)], lambda bias: lambda s, b, h, i, j: s + bias[h]),
    "per head factor": ([(4,)], lambda w: lambda s, b, h, i, j: s * w[h] + w[h] * (j - i) * 0.01),
    "relative": ([(480,)], lambda table: lambda s, b, h, i, j: s + table[i - j + 240]),
    "relative per head": ([(4, 33)], lambda table: lambda s, b, h, i, j: s + table[h, (i - j).clamp(-16, 16) + 16]),
    "positions": ([(240, 240)], lambda pos: lambda s, b, h, i, j: s + pos[i, j]),
    "gathered": ([(5,)], lambda w: lambda s, b, h, i, j: s + w[KIND[i, j]]),
    "rows and columns": ([(240,), (240,)], lambda r, c: lambda s, b, h, i, j: torch.tanh(s * r[i]) + c[j] * r[i]),
    "softcap": ([()], lambda cap: lambda s, b, h, i, j: torch.tanh(s / cap.exp()) * cap.exp()),
    "twice": ([(240,)], lambda t: lambda s, b, h, i, j: s + t[i] * t[j] + torch.where(i > j, t[h], 0.0)),
    "computed": ([(240,)], lambda t: lambda s, b, h, i, j: s + t.cumsum(0)[j] * 0.1),
}
MASKS = {"all": None, "causal": causal, "odd": window_and_sink}


def block_mask(rule, q_len, kv_len):
    return None if rule is None else create_block_mask(rule, None, None, q_len, kv_len, BLOCK_SIZE=16)


def both(query, key, value, mod, rule):
    """Quire's (out, lse)."""
    mask = block_mask(rule, query.shape[2], key.shape[2])
    out, aux = flex_attention(query, key, value, mod, mask, enable_gqa=True, return_aux=AuxRequest(lse=True))
    return out, aux.lse


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", MODS)
def test_gradcheck(name, mask):
    query, key, value = inputs(1, 4, 2, 9, 7, 5, 3, dtype=F64)
    shapes, make = MODS[name]
    shapes = [tuple(min(n, 16) if n > 33 else n for n in shape) for shape in shapes]
    table = [torch.randn(shape, dtype=F64).requires_grad_() for shape in shapes]
    if name == "relative":
        make = lambda table: lambda s, b, h, i, j: s + table[i - j + 7]  # noqa: E731

    def call(query, key, value, *table):
        out, lse = both(query, key, value, make(*table), MASKS[mask])
        return out, lse.masked_fill(lse == -torch.inf, 0)

    assert torch.autograd.gradcheck(call, (query, key, value, *table))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", MODS)
def test_against_f64(name, mask):
    query, key, value = inputs()
    shapes, make = MODS[name]
    table = leaves(*shapes)
    d_out, d_lse = torch.randn(2, 4, 113, 24), torch.randn(2, 4, 113)
    if mask == "odd":
        d_lse[:, :, 5] = 0  # the lse of a row without keys is -inf, whatever the inputs are
    tensors = (query, key, value, *table)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    truth = gradients(lambda: naive(*exact[:3], make(*exact[3:]), MASKS[mask]), exact, d_out, d_lse)
    other = gradients(lambda: naive(*tensors[:3], make(*table), MASKS[mask]), tensors, d_out, d_lse)
    found = gradients(lambda: both(query, key, value, make(*table), MASKS[mask]), tensors, d_out, d_lse)
    assert_close_enough(found, truth, other, 2 * 4 * 113)


@pytest.mark.parametrize("heads", [(7, 7), (8, 4), (7, 1)], ids=str)
@pytest.mark.parametrize("lengths", [(1, 1), (1, 257), (799, 3), (64, 64), (65, 129)], ids=str)
def test_shapes(heads, lengths):
    tensors = inputs(2, *heads, *lengths, 17, 40)
    d_out = torch.randn(2, heads[0], lengths[0], 40)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    truth = gradients(lambda: naive(*exact), exact, d_out)
    other = gradients(lambda: naive(*tensors), tensors, d_out)
    found = gradients(lambda: both(*tensors, None, None), tensors, d_out)
    # The rows of a batch and the 40 channels of out * d_out, whose sum is subtracted.
    assert_close_enough(found, truth, other, 2 * heads[0] * lengths[0] + 40)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    tensors = inputs(dtype=dtype)
    (bias,) = leaves((4,), dtype=dtype)
    d_out = torch.randn(2, 4, 113, 24).to(dtype)

    def make(bias):
        return lambda s, b, h, i, j: s * bias[h]

    exact = [tensor.detach().double().requires_grad_() for tensor in (*tensors, bias)]
    truth = gradients(lambda: naive(*exact[:3], make(exact[3]), causal), exact, d_out)
    other = gradients(lambda: naive(*tensors, make(bias), causal), (*tensors, bias), d_out)
    found = gradients(lambda: both(*tensors, make(bias), causal), (*tensors, bias), d_out)
    assert all(one.dtype == dtype for one in found)
    assert_close_enough(found, truth, other, 2 * 4 * 113)


def test_mixed_dtypes():
    query, key, value = inputs()
    key, value = key.detach().double().requires_grad_(), value.detach().bfloat16().requires_grad_()
    out, aux = flex_attention(query, key, value, enable_gqa=True, return_aux=AuxRequest(lse=True))
    assert (out.dtype, aux.lse.dtype) == (torch.float32, torch.float32)
    found = torch.autograd.grad((out.sum(), aux.lse.sum()), (query, key, value))
    assert [one.dtype for one in found] == [torch.float32, F64, torch.bfloat16]
    exact = [tensor.detach().double().requires_grad_() for tensor in (query, key, value)]
    truth = torch.autograd.grad([one.sum() for one in naive(*exact)], exact)
    torch.testing.assert_close(found[1], truth[1], rtol=1e-5, atol=1e-5)


# ---- what is asked for


def test_captured_tensors_alone():
    query, key, value = (tensor.detach() for tensor in inputs())
    shapes, make = MODS["rows and columns"]
    table = leaves(*shapes)
    wanted = torch.randn(2, 4, 113, 24)
    truth = gradients(lambda: naive(query, key, value, make(*table), causal), table, wanted)
    found = gradients(lambda: both(query, key, value, make(*table), causal), table, wanted)
    for one, other in zip(found, truth):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("one", range(3))
def test_one_of_three(one):
    tensors = [tensor.detach() for tensor in inputs()]
    everything = [tensor.clone().requires_grad_() for tensor in tensors]
    all_of_them = torch.autograd.grad(both(*everything, None, causal)[0].square().sum(), everything)
    tensors[one].requires_grad_()
    out, _ = both(*tensors, None, causal)
    out.square().sum().backward()
    assert torch.equal(tensors[one].grad, all_of_them[one])
    assert all(tensor.grad is None for i, tensor in enumerate(tensors) if i != one)


def test_lse_alone():
    query, key, value = inputs()
    out, lse = both(query, key, value, None, causal)
    lse.sin().sum().backward()
    exact = [tensor.detach().double().requires_grad_() for tensor in (query, key, value)]
    naive(*exact, None, causal)[1].sin().sum().backward()
    torch.testing.assert_close(query.grad, exact[0].grad.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(key.grad, exact[1].grad.float(), rtol=1e-4, atol=1e-5)
    assert not value.grad.any()


def test_max_scores_has_no_gradient():
    query, key, value = inputs()
    request = AuxRequest(lse=True, max_scores=True)
    out, aux = flex_attention(query, key, value, enable_gqa=True, return_aux=request)
    assert out.requires_grad and aux.lse.requires_grad and not aux.max_scores.requires_grad
    out, aux = flex_attention(query, key, value, enable_gqa=True, return_aux=AuxRequest(max_scores=True))
    assert aux.lse is None and not aux.max_scores.requires_grad
    out, lse = flex_attention(query, key, value, enable_gqa=True, return_lse=True)
    assert lse.requires_grad


def test_rows_without_keys():
    query, key, value = inputs(q_len=40, kv_len=40)
    with torch.no_grad():
        key[:, :, 39], value[:, :, 39] = torch.nan, torch.inf  # nobody sees it
    mask = create_block_mask(lambda b, h, i, j: (i > j) & (i % 7 != 3), None, None, 40, 40)
    out = flex_attention(query, key, value, block_mask=mask, enable_gqa=True)
    out.square().sum().backward()
    hidden = [i for i in range(40) if i == 0 or i % 7 == 3]
    assert not query.grad[:, :, hidden].any() and query.grad[:, :, 1].isfinite().all()
    assert not key.grad[:, :, 39].any() and not value.grad[:, :, 39].any()
    assert all(tensor.grad.isfinite().all() for tensor in (query, key, value))


def test_keys_shared_by_the_batch():
    query, key, value = inputs(3)
    key, value = (tensor.detach()[:1].clone().requires_grad_() for tensor in (key, value))
    mask = create_block_mask(lambda b, h, i, j: i + 5 * b >= j, 3, None, 113, 203)
    tensors = (query, key, value)

    def call():
        return flex_attention(query, key, value, None, mask, enable_gqa=True), None

    d_out = torch.randn(3, 4, 113, 24)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    truth = gradients(lambda: naive(*exact, None, lambda b, h, i, j: i + 5 * b >= j), exact, d_out)
    other = gradients(lambda: naive(*tensors, None, lambda b, h, i, j: i + 5 * b >= j), tensors, d_out)
    assert_close_enough(gradients(call, tensors, d_out), truth, other, 3 * 4 * 113)


def test_strides():
    query, key, value = inputs(kv_heads=4)
    want = torch.autograd.grad(both(query, key, value, None, causal)[0].square().sum(), (query, key, value))
    turned = [t.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for t in (query, key, value)]
    out, _ = both(*turned, None, causal)
    d_out = (2 * out.detach()).transpose(-1, -2).contiguous().transpose(-1, -2)
    found = torch.autograd.grad(out, turned, d_out)
    assert all(torch.equal(one, other) for one, other in zip(found, want))
    assert all(one.stride() == tensor.stride() for one, tensor in zip(found, turned))
    # Expanded tensors, inputs and gradients.
    one_head = query.detach()[:, :1].requires_grad_()
    flex_attention(one_head.expand(-1, 4, -1, -1), key, value).sum().backward()
    assert one_head.grad.shape == one_head.shape


def test_a_module_as_mod():
    class Bias(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Parameter(torch.randn(4, 64))

        def forward(self, score, b, h, q_idx, kv_idx):
            return score + self.embedding[h, (q_idx - kv_idx).clamp(0, 63)]

    query, key, value = inputs()
    module = Bias()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    losses = []
    for _ in range(3):
        loss = both(query, key, value, module, causal)[0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert module.embedding.grad.abs().sum() > 0
    assert losses[2] < losses[0]


@pytest.mark.parametrize("make", ["score", "mask"])
def test_bits_do_not_depend_on_threads(make, threads):
    tensors = inputs(1, 1, 1, 700, 900)
    shapes, mods = MODS["relative per head"]
    table = leaves(*shapes)
    mod = mods(*table) if make == "score" else None
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            out, lse = both(*tensors, mod, causal)
            sources = (*tensors, *table) if make == "score" else tensors
            results.append(torch.autograd.grad(out.square().sum() + lse.sum(), sources))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


# ---- biases that all scores of a row share have the gradient 0


def torchs_gradient_of_a_bias_per_query(query, key, value, bias, d_out):
    """As torch's flex_attention computes it: what a row has too much is taken from an output in half precision."""
    scores = query.float() @ key.float().mT / query.size(-1) ** 0.5 + bias.float()[:, None]
    weights = scores.softmax(-1)
    out = weights.to(value.dtype) @ value
    d_weights = d_out.float() @ value.float().mT
    d_scores = weights * (d_weights - (out.float() * d_out.float()).sum(-1, keepdim=True))
    return d_scores.sum((0, 1, 3)).to(bias.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [37, 277])
def test_a_bias_per_query_has_less_noise_than_torchs(dtype, length):
    tensors = [torch.randn(2, 4, length, 16, dtype=dtype) for _ in range(3)]
    d_out = torch.randn(2, 4, length, 16, dtype=dtype)
    bias = torch.randn(length, dtype=dtype, requires_grad=True)
    noise = lambda gradient: gradient.double().square().mean().sqrt().item()  # noqa: E731
    allowed = 0.8 * noise(torchs_gradient_of_a_bias_per_query(*tensors, bias.detach(), d_out))
    flex = flex_attention(*tensors, lambda score, b, h, q_idx, kv_idx: score + bias[q_idx])
    sdpa = scaled_dot_product_attention(*tensors, bias.view(-1, 1))
    plain = scaled_dot_product_attention(*tensors, bias.detach().view(-1, 1))
    assert torch.equal(flex, plain) and torch.equal(sdpa, plain) and flex.dtype == dtype
    for out in (flex, sdpa):
        assert noise(torch.autograd.grad(out, bias, d_out)[0]) <= allowed

"""Training steps under torch.compile: forward and backward in one graph each, with every backend."""

import pytest
import quire.torch as quire_torch
import torch
from quire.torch import AuxRequest, create_block_mask, flex_attention

MASK = create_block_mask(lambda b, h, i, j: (i >= j) | (j == 3), None, None, 37, 41)


def inputs():
    shapes = (2, 4, 37, 8), (2, 2, 41, 8), (2, 2, 41, 6), (4,), (80,)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def with_lse(query, key, value, bias, table):
    def mod(score, b, h, i, j):
        return torch.tanh(score + bias[h]) * 1.5 + table[i - j + 40]

    out, aux = flex_attention(query, key, value, mod, MASK, enable_gqa=True, return_aux=AuxRequest(lse=True))
    return out.square().sum() + aux.lse.sin().sum()


def with_computed_tensors(query, key, value, bias, table):
    def mod(score, b, h, i, j):
        return score + table.exp()[j] * bias.tanh()[h] * 0.1

    return flex_attention(query * 2, key, value, mod, MASK, enable_gqa=True).square().sum()


def with_sdpa(query, key, value, bias, table):
    mask = table[:41] * 1
    out = quire_torch.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
    return (out * bias.view(4, 1, 1)).square().sum()


def assert_step_is_the_same(step, backend, exactly, **options):
    tensors = inputs()
    want = torch.autograd.grad(step(*tensors), tensors)
    found = torch.autograd.grad(torch.compile(step, fullgraph=True, backend=backend, **options)(*tensors), tensors)
    for one, other in zip(found, want, strict=True):
        if exactly:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("step", [with_lse, with_computed_tensors, with_sdpa])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_step(step, backend):
    assert_step_is_the_same(step, backend, exactly=True)


@pytest.mark.slow
def test_inductor():
    """In CI inductor trains in test_torch_compile_training.py."""
    assert_step_is_the_same(with_lse, "inductor", exactly=False)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_biases_of_half_precision(dtype, backend):
    """The backward pass gets the output as it was before rounding, in a graph as outside; the bits are the same."""
    tensors = [torch.randn(2, 2, 37, 16, dtype=dtype, requires_grad=True) for _ in range(3)]
    bias = torch.randn(37, dtype=dtype, requires_grad=True)
    d_out = torch.randn(2, 2, 37, 16, dtype=dtype)

    def flex(query, key, value, bias):
        return flex_attention(query, key, value, lambda score, b, h, i, j: score + bias[i])

    def sdpa(query, key, value, bias):
        return quire_torch.scaled_dot_product_attention(query, key, value, bias.view(-1, 1))

    for attend in (flex, sdpa):
        ours = torch.compile(attend, fullgraph=True, backend=backend)(*tensors, bias)
        out = attend(*tensors, bias)
        assert torch.equal(ours, out) and ours.dtype == dtype
        found, want = (torch.autograd.grad(one, (*tensors, bias), d_out) for one in (ours, out))
        assert all(torch.equal(one, other) for one, other in zip(found, want, strict=True))


def test_dynamic_lengths():
    counts = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counts, dynamic=True)
    def step(query, bias):
        return flex_attention(query, query, query, lambda s, b, h, i, j: s * bias[h]).square().sum()

    bias = torch.randn(2, requires_grad=True)
    for length in (20, 33, 51):
        query = torch.randn(1, 2, length, 8, requires_grad=True)
        found = torch.autograd.grad(step(query, bias), (query, bias))
        plain = flex_attention(query, query, query, lambda s, b, h, i, j: s * bias[h]).square().sum()
        for one, other in zip(found, torch.autograd.grad(plain, (query, bias)), strict=True):
            torch.testing.assert_close(one, other)
    assert counts.frame_count == 1


def test_dropout_is_replayed():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(query, key, value):
        return quire_torch.scaled_dot_product_attention(query, key, value, dropout_p=0.3).square().sum()

    query, key, value, *_ = inputs()
    key, value = (t.detach().repeat_interleave(2, 1).requires_grad_() for t in (key, value))
    torch.manual_seed(3)
    found = torch.autograd.grad(step(query, key, value), (query, key, value))
    torch.manual_seed(3)
    out = quire_torch.scaled_dot_product_attention(query, key, value, dropout_p=0.3)
    want = torch.autograd.grad(out.square().sum(), (query, key, value))
    assert all(torch.equal(one, other) for one, other in zip(found, want, strict=True))


def test_a_model_trains():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.project, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)
            self.bias = torch.nn.Parameter(torch.zeros(2, 64))

        def forward(self, x, mask):
            query, key, value = self.project(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
            bias = self.bias
            attended = flex_attention(query, key, value, lambda s, b, h, i, j: s + bias[h, i - j], mask)
            return self.out(attended.transpose(1, 2).flatten(2))

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 50, 50)
    x, target = torch.randn(2, 50, 16), torch.randn(2, 50, 16)
    torch.manual_seed(1)
    layer = Layer()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    losses = []
    for _ in range(8):
        loss = (compiled(x, mask) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and layer.bias.grad.any()


def test_operators_called_by_hand_need_lse():
    query = torch.randn(1, 1, 4, 8, requires_grad=True)
    out = torch.ops.quire.flex_attention(
        query, query, query, "", [], [], "", [], [], [], [0, 0], [1, 1], None, False, False
    )
    with pytest.raises(RuntimeError, match="without lse=True"):
        out[0].sum().backward()
    out = torch.ops.quire.scaled_dot_product_attention(query, query, query, None, 0.0, False, None, False, False)
    with pytest.raises(RuntimeError, match="without lse=True"):
        out[0].sum().backward()


def test_torchs_own_check_of_operators():
    query = torch.randn(1, 2, 9, 8, requires_grad=True)
    weight = torch.randn(2, requires_grad=True)
    flex = (query, query, query, "score * w[h]", ["w"], [weight], "", [], [], [], [0, 0], [1, 1], None, True, False)
    sdpa = (query, query, query, None, 0.0, True, None, False, True)
    # Different ones: gradients of half precision are not added in the same order everywhere.
    halves = [torch.randn(1, 2, 9, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    bias = torch.randn(1, 2, 9, 1, dtype=torch.bfloat16, requires_grad=True)
    wide_flex = (*halves, *flex[3:], True)
    wide_sdpa = (*halves, bias, 0.0, False, None, False, True, "top_left", True)
    calls = (("flex_attention", flex), ("flex_attention", wide_flex))
    calls += (("scaled_dot_product_attention", sdpa), ("scaled_dot_product_attention", wide_sdpa))
    for operator, arguments in calls:
        results = torch.library.opcheck(getattr(torch.ops.quire, operator).default, arguments)
        assert set(results.values()) == {"SUCCESS"}


def test_torchs_names_train_compiled():
    import torch.nn.attention.flex_attention as torch_flex

    query = torch.randn(1, 2, 40, 16, requires_grad=True)
    bias = torch.randn(2, requires_grad=True)

    def step(query):
        return torch_flex.flex_attention(query, query, query, lambda s, b, h, i, j: s * bias[h]).square().sum()

    with quire_torch.enable():
        want = torch.autograd.grad(step(query), (query, bias))
        found = torch.autograd.grad(torch.compile(step, fullgraph=True, backend="aot_eager")(query), (query, bias))
    assert all(torch.equal(one, other) for one, other in zip(found, want, strict=True))

"""quire.torch.flex_attention with dropout: seeds from torch's generator, gradients that replay them, nested tensors, graphs."""

import pytest
import quire
import torch
from quire.torch import create_block_mask, create_nested_block_mask, flex_attention
from torch.nn.attention.flex_attention import AuxRequest


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def softcap(score, b, h, q_idx, kv_idx):
    return 5 * torch.tanh(score / 5)


MASK = create_block_mask(causal, None, None, 30, 30)


def inputs(dtype=torch.float64, grad=False):
    torch.manual_seed(1)
    return [torch.randn(2, 2, 30, 8, dtype=dtype).requires_grad_(grad) for _ in range(3)]


def test_the_bits_are_those_of_arrays():
    q, k, v = inputs(torch.float32)
    out = flex_attention(q, k, v, softcap, MASK, dropout_p=0.4, seed=2**64 - 3)
    mask = quire.create_block_mask("q_idx >= kv_idx", None, None, 30, 30)
    want = quire.flex_attention(
        q.numpy(), k.numpy(), v.numpy(), "5 * tanh(score / 5)", mask, dropout_p=0.4, seed=2**64 - 3
    )
    assert torch.equal(out, torch.from_numpy(want))


def test_a_seed_is_drawn_from_the_generator():
    q, k, v = inputs()
    torch.manual_seed(3)
    first, second = (flex_attention(q, k, v, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(first, flex_attention(q, k, v, dropout_p=0.5))
    assert not torch.equal(first, second)
    state = torch.get_rng_state()
    flex_attention(q, k, v)
    flex_attention(q, k, v, dropout_p=0.5, seed=1)
    assert torch.equal(state, torch.get_rng_state())


def test_gradients():
    q, k, v = inputs(grad=True)
    bias = torch.randn(30, dtype=torch.float64, requires_grad=True)

    def run(q, k, v, bias):
        out, aux = flex_attention(
            q,
            k,
            v,
            lambda score, b, h, q_idx, kv_idx: score + bias[kv_idx],
            MASK,
            dropout_p=0.3,
            seed=9,
            return_aux=AuxRequest(lse=True),
        )
        return out, aux.lse

    assert torch.autograd.gradcheck(run, (q[:1, :, :30], k[:1], v[:1], bias), fast_mode=True)


def test_nested():
    lengths = (7, 1, 22)
    q, k, v = (
        torch.nested.nested_tensor(
            [torch.randn(n, 2, 8) for n in lengths], layout=torch.jagged, requires_grad=True
        ).transpose(1, 2)
        for _ in range(3)
    )
    mask = create_nested_block_mask(causal, None, None, q)
    out = flex_attention(q, k, v, softcap, mask, dropout_p=0.5, seed=4)
    whole = flex_attention(q, k, v, softcap, mask)
    assert not torch.equal(out.values(), whole.values())
    jagged = [quire.Jagged(one._values.detach().transpose(0, 1).numpy(), one._offsets.numpy()) for one in (q, k, v)]
    options = dict(score_mod="5 * tanh(score / 5)", mask_mod="q_idx >= kv_idx", dropout_p=0.5, seed=4)
    want, vjp = quire.flex_attention_vjp(*jagged, **options)
    assert torch.equal(out.values().transpose(0, 1), torch.from_numpy(want.values))
    d_out = torch.randn_like(out.values())
    (d_k,) = torch.autograd.grad(out.values(), k, d_out)
    want = vjp(d_out.transpose(0, 1).contiguous().numpy()).key.values
    assert torch.equal(d_k._values.transpose(0, 1), torch.from_numpy(want))


@pytest.mark.parametrize("seed", [None, 5])
def test_in_a_graph(seed):
    q, k, v = inputs(grad=True)

    def run(q, k, v):
        return flex_attention(q, k, v, softcap, MASK, dropout_p=0.5, seed=seed)

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    out = compiled(q, k, v)
    again = compiled(q, k, v)
    assert torch.equal(out, again) == (seed is not None)
    if seed is not None:
        want = run(q, k, v)
        assert torch.equal(out, want)
        for got, d in zip(torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(want.sum(), (q, k, v))):
            assert torch.equal(got, d)


def test_a_graph_replays_what_it_drew():
    q, k, _ = inputs(grad=True)
    v = torch.eye(30, dtype=torch.float64).expand(2, 2, 30, 30).clone().requires_grad_()  # outputs are weights
    torch._dynamo.reset()
    run = torch.compile(lambda q, k, v: flex_attention(q, k, v, softcap, MASK, dropout_p=0.5), backend="aot_eager")
    for _ in range(2):
        out = run(q, k, v)
        (d_v,) = torch.autograd.grad(out.sum(), v)
        torch.testing.assert_close(d_v[..., 0], out.detach().sum(-2))


def test_mistakes():
    q, k, v = inputs()
    with pytest.raises(ValueError, match=r"\[flex_attention\] dropout_p must be in 0..1; got 2"):
        flex_attention(q, k, v, dropout_p=2)
    with pytest.raises(ValueError, match=r"\[flex_attention\] the seed must have 64 bits"):
        flex_attention(q, k, v, dropout_p=0.5, seed=-1)
    with pytest.raises(TypeError, match=r"\[flex_attention\] dropout_p must be a number"):
        flex_attention(q, k, v, dropout_p="half")

"""Ten steps of compiled training, with masks that nobody holds when the backward pass runs: equal to training without.

One step tells little: a mask that is gone may still be in memory at the first, and what is compiled again is compiled later.
"""

import gc

import pytest
import torch
from quire.torch import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

LENGTH = 70
STEPS = 10


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def mask_of(documents):
    def same_document(b, h, q_idx, kv_idx):
        return (documents[b, q_idx] == documents[b, kv_idx]) & (q_idx >= kv_idx)

    length = documents.shape[1]
    return create_block_mask(same_document, documents.shape[0], None, length, length, device="cpu", BLOCK_SIZE=16)


class Net(torch.nn.Module):
    """Two layers of attention. `where` a mask is made: "inside" forward, or by the caller."""

    def __init__(self, attend=flex_attention, where="outside", use_reentrant=None):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 48) for _ in range(2))
        self.attend, self.where, self.use_reentrant = attend, where, use_reentrant

    def layer(self, linear, x, mask):
        batch, length, _ = x.shape
        q, k, v = linear(x).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        return x + self.attend(q, k, v, block_mask=mask).transpose(1, 2).reshape(batch, length, 16)

    def forward(self, x, documents, mask=None):
        if self.where == "inside":
            mask = mask_of(documents)
        for linear in self.layers:
            if self.use_reentrant is None:
                x = self.layer(linear, x, mask)
            else:
                x = checkpoint(self.layer, linear, x, mask, use_reentrant=self.use_reentrant)
        return x


def train(net, call, style):
    """The losses. `style`: who holds the mask while the backward pass runs: nobody, in each of three ways."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses, mask = [], None
    for step in range(STEPS):
        x = torch.randn(2, LENGTH, 16, generator=generator, requires_grad=True)
        documents = torch.stack([torch.arange(LENGTH) // (9 + 3 * step), torch.arange(LENGTH) // (30 - step)])
        if style == "inside":
            out = call(x, documents)
        elif style == "temporary":
            out = call(x, documents, mask_of(documents))
        else:
            mask = mask_of(documents)
            out = call(x, documents, mask)
            mask = mask_of(documents * 0)  # the next batch is prepared before this one's backward pass
        if step in (0, 1, 5):
            gc.collect()
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check(style, backend, use_reentrant=None):
    where = "inside" if style == "inside" else "outside"
    net = Net(where=where, use_reentrant=use_reentrant)
    compiled = train(net, torch.compile(net, backend=backend, fullgraph=use_reentrant is not True), style)
    net = Net(where=where, use_reentrant=use_reentrant)
    assert compiled == pytest.approx(train(net, net, style), rel=1e-5)


@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), "aot_eager"])
@pytest.mark.parametrize("style", ["inside", "temporary", "rebound"])
def test_masks_that_are_gone(style, backend):
    check(style, backend)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # other documents are not compiled again


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_checkpointing(backend):
    """The other styles are slow."""
    check("temporary", backend, use_reentrant=False)


def test_compiled_by_itself():
    """flex = torch.compile(flex_attention), as most projects have it, around it eager code."""
    net = Net(attend=torch.compile(flex_attention, backend="aot_eager", fullgraph=True))
    compiled = train(net, net, "temporary")
    net = Net()
    assert compiled == pytest.approx(train(net, net, "temporary"), rel=1e-5)


def test_inductor():
    net = Net(attend=torch.compile(flex_attention, fullgraph=True))
    compiled = train(net, net, "rebound")
    net = Net()
    assert compiled == pytest.approx(train(net, net, "rebound"), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("use_reentrant", [None, False, True])
@pytest.mark.parametrize("style", ["inside", "temporary", "rebound"])
def test_inductor_of_the_whole_net(style, use_reentrant):
    check(style, "inductor", use_reentrant)


@pytest.mark.slow
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("style", ["inside", "temporary", "rebound"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_checkpointing_in_every_style(style, backend, use_reentrant):
    check(style, backend, use_reentrant)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("touched", [False, True])
def test_index_tensors_edited_before_the_backward_pass(backend, touched):
    """The blocks of the forward pass count, or torch's error; never others."""
    x = torch.randn(1, 2, LENGTH, 16)
    documents = torch.arange(LENGTH)[None] // 20
    expected, query = x.clone().requires_grad_(), x.clone().requires_grad_()
    flex_attention(expected, expected, expected, block_mask=mask_of(documents)).sum().backward()
    mask = mask_of(documents)
    if touched:  # graphs then take the index tensors themselves
        assert mask.kv_num_blocks.shape == (1, 1, 5)
    call = torch.compile(lambda x, mask: flex_attention(x, x, x, block_mask=mask), backend=backend, fullgraph=True)
    out = call(query, mask)
    mask.kv_num_blocks.zero_()
    mask.full_kv_num_blocks.zero_()
    if touched:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
    else:
        out.sum().backward()
        assert torch.equal(query.grad, expected.grad)

"""key_indices and top_k_keys of quire.torch: eager, gradients, nested tensors, graphs."""

import pytest
import torch
from quire.torch import create_block_mask, flex_attention, top_k_keys


def causal(b, h, q_idx, kv_idx):
    return q_idx + 30 >= kv_idx


def lists_and_mask(batch, q_len, keys, most):
    lists = torch.rand(batch, q_len, keys).topk(most).indices.int()
    lists[torch.rand(lists.shape) < 0.2] = -1
    shown = torch.zeros(batch, q_len, keys + 1, dtype=torch.bool)
    shown.scatter_(-1, torch.where(lists < 0, keys, lists).long(), True)

    def rule(b, h, q_idx, kv_idx):
        return shown[b, q_idx, kv_idx] & causal(b, h, q_idx, kv_idx)

    return lists, create_block_mask(rule, batch, None, q_len, keys)


def inputs(*sizes, **options):
    torch.manual_seed(3)
    return [torch.randn(*size, **options) for size in sizes]


def test_result_and_gradients_are_those_of_the_mask():
    tensors = inputs((2, 4, 50, 16), (2, 2, 90, 16), (2, 2, 90, 24))
    lists, mask = lists_and_mask(2, 50, 90, 12)
    results = []
    for options in (
        dict(block_mask=create_block_mask(causal, None, None, 50, 90), key_indices=lists),
        dict(block_mask=mask),
    ):
        leaves = [one.clone().requires_grad_() for one in tensors]
        out = flex_attention(*leaves, enable_gqa=True, **options)
        out.square().sum().backward()
        results.append([out, *(one.grad for one in leaves)])
    for one, other in zip(*results):
        assert torch.equal(one, other)


def test_gradcheck():
    q, k, v = inputs((1, 2, 5, 4), (1, 2, 7, 4), (1, 2, 7, 3), dtype=torch.float64)
    lists = torch.rand(1, 5, 7).topk(4).indices
    leaves = [one.requires_grad_() for one in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *x: flex_attention(*x, key_indices=lists), leaves)


def test_nested():
    parts = [torch.randn(n, 2, 16) for n in (6, 20)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    lists = [torch.rand(n, n).topk(5).indices.int() for n in (6, 20)]
    nested = torch.nested.nested_tensor(lists, layout=torch.jagged)
    for given in (nested, torch.cat(lists)):
        out = flex_attention(x, x, x, key_indices=given)
        for one, part, of in zip(out.unbind(), parts, lists):
            dense = part.transpose(0, 1)[None]
            assert torch.equal(one, flex_attention(dense, dense, dense, key_indices=of[None])[0])


def test_compiled():
    q, k, v = inputs((1, 2, 40, 16), (1, 2, 60, 16), (1, 2, 60, 16))
    lists, _ = lists_and_mask(1, 40, 60, 9)
    compiled = torch.compile(
        lambda q, lists: flex_attention(q, k, v, key_indices=lists), backend="aot_eager", fullgraph=True
    )
    leaves = [q.clone().requires_grad_() for _ in range(2)]
    out, expected = compiled(leaves[0], lists), flex_attention(leaves[1], k, v, key_indices=lists)
    out.sum().backward(), expected.sum().backward()
    assert torch.equal(out, expected) and torch.equal(leaves[0].grad, leaves[1].grad)


def test_wrong_lists_are_named():
    x = torch.randn(1, 1, 3, 8)
    with pytest.raises(TypeError, match="key_indices must be int32 or int64; got torch.float32"):
        flex_attention(x, x, x, key_indices=torch.zeros(1, 3, 2))
    with pytest.raises(ValueError, match="list key 0 twice"):
        flex_attention(x, x, x, key_indices=torch.zeros(1, 3, 2, dtype=torch.int32))


def test_top_k_keys():
    q, k = inputs((2, 30, 4, 16), (2, 80, 16))
    weights = torch.rand(2, 30, 4)
    sums = (torch.einsum("bqhd,bkd->bqhk", q, k).relu() * weights[..., None]).sum(2)
    expected = sums.topk(10).indices.sort().values.int()
    assert torch.equal(top_k_keys(q, k, weights, 10), expected)
    found = top_k_keys(q.requires_grad_(), k, weights, 10, causal)
    assert not found.requires_grad and ((found <= torch.arange(30)[:, None] + 30).all())
    mask = create_block_mask(causal, None, None, 30, 80)
    assert torch.equal(top_k_keys(q, k, weights, 10, mask), found)
    text = torch.compile(lambda q: top_k_keys(q, k, weights, 10, "q_idx + 20 >= kv_idx", q_begin=10), backend="eager")
    assert torch.equal(text(q.detach()), found)

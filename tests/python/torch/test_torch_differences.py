"""Small differences from torch on purpose (docs/differences.md) that no other file is about."""

import pytest
import quire.torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from quire.torch import TraceError, create_block_mask, create_mask, flex_attention, scaled_dot_product_attention

X = torch.randn(1, 2, 20, 8, generator=torch.Generator().manual_seed(3))


def test_rules_that_give_numbers():
    nonzero = create_mask(lambda b, h, q_idx, kv_idx: q_idx != kv_idx, None, None, 5, 7)
    for rule in (
        lambda b, h, q, kv: q - kv,
        lambda b, h, q, kv: (q - kv) * 0.5,
        lambda b, h, q, kv: (q != kv).to(torch.uint8),
    ):
        with pytest.raises(AssertionError):
            torch_flex.create_block_mask(rule, None, None, 5, 7, "cpu")
        found = create_block_mask(rule, None, None, 5, 7, BLOCK_SIZE=1).to_dense().bool()
        assert torch.equal(found, nonzero)
        assert create_mask(rule, None, None, 5, 7).dtype == torch.bool


def test_mods_that_give_python_numbers():
    with pytest.raises(ValueError):
        torch_flex.create_block_mask(lambda b, h, q, kv: True, None, None, 5, 7, "cpu")
    assert create_mask(lambda b, h, q, kv: True, None, None, 5, 7).all()
    torch.testing.assert_close(flex_attention(X, X, X, lambda s, b, h, q, kv: 0.0)[0, 0, 0], X[0, 0].mean(0))


def test_mods_that_give_something_else():
    for result in (None, (1, 2), "score"):
        with pytest.raises(Exception):
            torch_flex.flex_attention(X, X, X, lambda s, b, h, q, kv: result)
        with pytest.raises(TraceError, match="a mod must return a tensor or a number; got"):
            flex_attention(X, X, X, lambda s, b, h, q, kv: result)


@pytest.mark.parametrize(
    ("dim", "v_dim", "text"), [(1025, 8, "of query and key must be in 0..1024"), (8, 0, "of value must be in 1..1024")]
)
def test_head_dims(dim, v_dim, text):
    query, value = torch.randn(1, 1, 3, dim), torch.randn(1, 1, 3, v_dim)
    assert torch_flex.flex_attention(query, query, value).shape == (1, 1, 3, v_dim)
    with pytest.raises(ValueError, match=text):
        flex_attention(query, query, value)
    assert scaled_dot_product_attention(query, query, value).shape == (1, 1, 3, v_dim)
    assert flex_attention(X.new_ones(1, 1, 3, 1024), X.new_ones(1, 1, 3, 1024), X.new_ones(1, 1, 3, 1)).shape == (
        1,
        1,
        3,
        1,
    )


def test_no_heads():
    empty = X[:, :0]
    with pytest.raises(ZeroDivisionError):
        torch_flex.flex_attention(empty, empty, empty)
    assert flex_attention(empty, empty, empty).shape == (1, 0, 20, 8)


def test_numbers_of_a_mod_are_of_the_type_of_the_score():
    query = X.double()
    mods = [lambda s, b, h, q, kv: s + 0.1 * (kv - q), lambda s, b, h, q, kv: s + (0.1 * (kv - q).double())]
    exact = torch_flex.flex_attention(query, query, query, mods[1])
    rounded = torch_flex.flex_attention(query, query, query, mods[0])
    assert (rounded - exact).abs().max() > 1e-10  # an int tensor times a number is f32 in torch
    for mod in mods:
        torch.testing.assert_close(flex_attention(query, query, query, mod), exact, rtol=0, atol=1e-13)


def test_four_indices_of_a_mask():
    masks = [m.create_block_mask(m.noop_mask, 2, 2, 20, 20, "cpu") for m in (torch_flex, quire.torch)]
    assert masks[0][0, 0, 0, 0].shape == (1, 1, 20, 20)
    with pytest.raises(IndexError, match="at most 3 indices; got 4"):
        masks[1][0, 0, 0, 0]


def test_sizes_that_are_wrong():
    causal = lambda b, h, q, kv: q >= kv  # noqa: E731
    for size, kind in ((0, ZeroDivisionError), (-1, RuntimeError)):
        with pytest.raises(kind):
            torch_flex.create_block_mask(causal, None, None, 20, 20, "cpu", BLOCK_SIZE=size)
        with pytest.raises(ValueError, match=f"block_size.q must be in 1..1099511627776; got {size}"):
            create_block_mask(causal, None, None, 20, 20, BLOCK_SIZE=size)
    with pytest.raises(RuntimeError):
        torch_flex.create_block_mask(causal, None, None, -5, 5, "cpu")
    with pytest.raises(ValueError, match="q_len must be in 0..1099511627776; got -5"):
        create_block_mask(causal, None, None, -5, 5)


def test_tensors_without_memory():
    x = X.to("meta")
    assert torch.nn.functional.scaled_dot_product_attention(x, x, x).is_meta
    with pytest.raises(ValueError, match="Quire computes on the CPU; got tensors on meta"):
        scaled_dot_product_attention(x, x, x)


def test_a_mask_is_a_pytree():
    masks = [m.create_block_mask(m.noop_mask, None, None, 20, 20, "cpu") for m in (torch_flex, quire.torch)]
    leaves = [torch.utils._pytree.tree_leaves(mask) for mask in masks]
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves[1]) and len(leaves[1]) == 8
    assert leaves[0] == [masks[0]] or len(leaves[0]) == 8

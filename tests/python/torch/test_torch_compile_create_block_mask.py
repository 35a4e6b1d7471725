"""torch.compile(create_block_mask), by itself and inside larger graphs: one operator, the mask of eager code."""

import pytest
import quire.torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from peer import causal
from quire.torch import BlockMask, create_block_mask, flex_attention, scaled_dot_product_attention
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])
LISTS = (
    *("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"),
    *("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"),
)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def compiled(function, backend="aot_eager", **options):
    return torch.compile(function, backend=backend, fullgraph=True, **options)


def assert_same_mask(mask, expected):
    assert type(mask) is type(expected) is BlockMask
    assert (mask.shape, mask.BLOCK_SIZE, mask.seq_lengths) == (
        expected.shape,
        expected.BLOCK_SIZE,
        expected.seq_lengths,
    )
    assert str(mask) == str(expected) and mask.sparsity() == pytest.approx(expected.sparsity(), nan_ok=True)
    for name in LISTS:
        one, other = getattr(mask, name), getattr(expected, name)
        assert (one is None and other is None) or torch.equal(one, other), name


@BACKENDS
def test_by_itself(backend):
    doc = torch.arange(100) // 30

    def rule(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (doc[q_idx] == doc[kv_idx])

    run = compiled(create_block_mask, backend)
    mask = run(rule, 2, None, 100, 100, "cpu", 16)
    expected = create_block_mask(rule, 2, None, 100, 100, "cpu", 16)
    assert_same_mask(mask, expected)
    query = torch.randn(2, 2, 100, 16)
    assert mask.mask_mod is rule
    assert torch.equal(
        flex_attention(query, query, query, block_mask=mask), flex_attention(query, query, query, block_mask=expected)
    )
    doc.copy_(torch.arange(100) // 7)  # captured by the graph as a tensor: read when it runs
    assert_same_mask(run(rule, 2, None, 100, 100, "cpu", 16), create_block_mask(rule, 2, None, 100, 100, "cpu", 16))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_sizes_and_options():
    run = compiled(create_block_mask)
    for sizes, options in [
        ((None, 3, 100, 77), {"BLOCK_SIZE": (16, 32), "separate_full_blocks": False}),
        ((1, 1, 1, 300), {}),
        ((2, 2, 0, 5), {"BLOCK_SIZE": 8}),
    ]:
        assert_same_mask(run(causal, *sizes, **options), create_block_mask(causal, *sizes, **options))
    assert_same_mask(
        run("q_idx >= kv_idx", None, None, 50, 50), create_block_mask("q_idx >= kv_idx", None, None, 50, 50)
    )
    with pytest.raises(Exception, match="a mod is a function over tensors or a text"):
        run(quire.MaskMod("q_idx >= kv_idx"), None, None, 50, 50)
    with pytest.raises(Exception, match="block_size must be"):
        run(causal, None, None, 50, 50, BLOCK_SIZE=0)


def test_behind_torchs_name():
    with quire.torch.enable():
        run = compiled(torch_flex.create_block_mask)
        mask = run(causal, 2, None, 100, 103, device="cpu", BLOCK_SIZE=(16, 32))
        assert_same_mask(
            mask, torch_flex.create_block_mask(causal, 2, None, 100, 103, device="cpu", BLOCK_SIZE=(16, 32))
        )


@pytest.mark.slow
def test_orders_of_writing():
    """What torch's kernels for GPUs ask for: torch computes it."""
    sizes = (causal, None, None, 64, 64, "cpu", 16, False, True, True)
    found, expected = compiled(create_block_mask)(*sizes), create_block_mask(*sizes)
    assert torch.equal(found.dq_write_order, expected.dq_write_order)


@BACKENDS
def test_inside_a_larger_graph(backend):
    def function(query, doc):
        rule = lambda b, h, q, kv: (q >= kv) & (doc[q] == doc[kv])  # noqa: E731
        mask = create_block_mask(rule, None, None, query.size(2), query.size(2), BLOCK_SIZE=16)
        out = flex_attention(query * 2, query, query, block_mask=mask)
        return out * mask.kv_num_blocks.sum(), mask.to_dense(), mask

    run = compiled(function, backend, dynamic=True)
    for length in (100, 130, 77):
        query, doc = torch.randn(1, 2, length, 16), torch.arange(length) // 30
        found, expected = run(query, doc), function(query, doc)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        assert_same_mask(found[2], expected[2])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_one_operator_whatever_the_length():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled(create_block_mask, backend)(causal, None, None, 1 << 16, 1 << 16)
    names = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert [name for name in names if "empty" not in name] == ["quire_create_block_mask"]


@BACKENDS
def test_no_mask(backend):
    """Torch's stand-in for it, made inside or outside."""
    query = torch.randn(1, 2, 100, 16)
    expected = flex_attention(query, query, query)
    mask = torch_flex._create_empty_block_mask(query, query)
    assert torch.equal(
        compiled(lambda x, mask: flex_attention(x, x, x, block_mask=mask), backend)(query, mask), expected
    )
    inside = lambda x: flex_attention(x, x, x, block_mask=torch_flex._create_empty_block_mask(x, x))  # noqa: E731
    assert torch.equal(compiled(inside, backend)(query), expected)


@BACKENDS
def test_nested_compile_region(backend):
    query, mask = torch.randn(1, 2, 100, 16), create_block_mask(causal, None, None, 100, 100, BLOCK_SIZE=16)

    @torch.compiler.nested_compile_region
    def layer(x, mask):
        return flex_attention(x, x, x, block_mask=mask)

    found = compiled(lambda x, mask: layer(layer(x, mask), mask), backend)(query, mask)
    once = flex_attention(query, query, query, block_mask=mask)
    assert torch.equal(found, flex_attention(once, once, once, block_mask=mask))


@BACKENDS
@pytest.mark.parametrize("make", [causal_lower_right, causal_upper_left])
def test_causal_biases(backend, make):
    bias, key = make(40, 100), torch.randn(1, 2, 100, 16)

    def function(query, bias):
        return scaled_dot_product_attention(query, key, key, attn_mask=bias)

    one, other = (
        torch.randn(1, 2, 40, 16, generator=torch.Generator().manual_seed(0)).requires_grad_() for _ in range(2)
    )
    found, expected = compiled(function, backend)(one, bias), function(other, bias)
    assert torch.equal(found, expected)
    found.sum().backward()
    expected.sum().backward()
    assert torch.equal(one.grad, other.grad)
    with pytest.raises(Exception, match="was made for 40 queries and 100 keys; got 30 and 100"):
        compiled(function, backend)(one[:, :, :30], bias)


@pytest.mark.slow
def test_inductor():
    test_by_itself("inductor")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    test_inside_a_larger_graph("inductor")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    test_nested_compile_region("inductor")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    test_causal_biases("inductor", causal_lower_right)


def test_inductor_by_itself():
    mask = compiled(create_block_mask, "inductor")(causal, None, None, 300, 300, "cpu", 16)
    assert_same_mask(mask, create_block_mask(causal, None, None, 300, 300, "cpu", 16))

"""torch.compile(fullgraph=True) over functions that call quire.torch: same bits as without."""

import pathlib
import sys

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from peer import causal
from quire.torch import AuxRequest, BlockMask, create_block_mask, flex_attention

SLOPES = torch.tensor([0.5, 0.25])
BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def query():
    return torch.randn(2, 2, 150, 16)


def compiled(function, backend="aot_eager", **options):
    return torch.compile(function, backend=backend, fullgraph=True, **options)


def assert_same(function, *arguments, backend="aot_eager", **options):
    """Compiled and called directly: equal bits."""
    result, expected = compiled(function, backend, **options)(*arguments), function(*arguments)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def frames():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@BACKENDS
def test_mods_and_masks(query, backend):
    doc = torch.arange(150) // 40
    mask = create_block_mask(lambda b, h, q, kv: (doc[q] == doc[kv]) & (q >= kv), None, None, 150, 150, BLOCK_SIZE=32)

    def function(query, mask):
        def score_mod(score, b, h, q_idx, kv_idx):
            return score + SLOPES[h] * (kv_idx - q_idx)

        out, aux = flex_attention(
            query * 2, query, query, score_mod, mask, return_aux=AuxRequest(lse=True, max_scores=True)
        )
        return out + 1, aux.lse, aux.max_scores, flex_attention(query, query, query)

    assert_same(function, query, mask, backend=backend)
    theirs = torch_flex.create_block_mask(mask.mask_mod, None, None, 150, 150, device="cpu", BLOCK_SIZE=32)
    assert_same(function, query, theirs, backend=backend)
    assert not mask._lists  # a mask of ours goes into the graph without its tensors


@BACKENDS
def test_captured_numbers_and_computed_tensors(query, backend):
    def function(query, number, table):
        return flex_attention(query, query, query, lambda s, b, h, q, kv: s * number + table.exp()[h] + table[q % 2])

    run = compiled(function, backend)
    for number in (2, 3, 4, 5):
        for table in (SLOPES, SLOPES * 2):
            assert torch.equal(run(query, number, table), function(query, number, table))
    assert_same(lambda query: flex_attention(query, query, query, scale=0.5), query, backend=backend)


def test_new_values_are_seen_without_tracing_again(query):
    doc, bias = torch.arange(150) // 40, torch.randn(150)
    mask = create_block_mask(lambda b, h, q, kv: doc[q] == doc[kv], None, None, 150, 150, BLOCK_SIZE=32)

    def function(query, mask, bias):
        return flex_attention(query, query, query, lambda s, b, h, q, kv: s + bias[kv], mask)

    run = compiled(function)
    assert torch.equal(run(query, mask, bias), function(query, mask, bias))
    before = frames()
    bias.mul_(2)
    doc.copy_(torch.arange(150) // 45)
    assert torch.equal(run(query, mask, bias), function(query, mask, bias))
    other = create_block_mask(mask.mask_mod, None, None, 150, 150, BLOCK_SIZE=32)
    assert torch.equal(run(query, other, -bias), function(query, other, -bias))
    assert frames() == before


def test_torch_masks_are_converted_once(query, monkeypatch):
    from quire.torch import graph_blocks

    converted = []
    convert = graph_blocks.convert
    monkeypatch.setattr(graph_blocks, "convert", lambda *given: converted.append(1) or convert(*given))
    mask = torch_flex.create_block_mask(causal, None, None, 150, 150, device="cpu", BLOCK_SIZE=32)
    run = compiled(lambda query, mask: flex_attention(query, query, query, block_mask=mask))
    run(query, mask)
    run(query, mask)
    assert len(converted) == 1
    mask.kv_num_blocks[0, 0, 0] = 0
    run(query, mask)
    assert len(converted) == 2


@BACKENDS
def test_texts(query, backend):
    mask = create_block_mask("q_idx >= kv_idx", None, None, 150, 150)
    assert_same(lambda query: flex_attention(query, query, query, "score * 0.5", mask), query, backend=backend)


def test_edits_of_a_mask_are_seen(query):
    mask = create_block_mask(causal, None, None, 150, 150, BLOCK_SIZE=32)

    def function(query, mask):
        return flex_attention(query, query, query, block_mask=mask)

    run = compiled(function)
    assert torch.equal(run(query, mask), function(query, mask))
    mask.full_kv_num_blocks.zero_()
    edited = function(query, mask)
    assert torch.equal(run(query, mask), edited)
    mask.full_kv_num_blocks = mask.full_kv_num_blocks + 1
    mask.full_kv_num_blocks[0, 0, [0, 4]] = 0  # the last row is cut off and has no full blocks
    assert torch.equal(run(query, mask), function(query, mask))
    assert not torch.equal(run(query, mask), edited)
    mask.mask_mod = lambda b, h, q, kv: q > kv + 2
    assert torch.equal(run(query, mask), function(query, mask))


@BACKENDS
def test_a_mask_made_inside(query, backend):
    def function(query):
        mask = create_block_mask(causal, None, None, 150, 150, BLOCK_SIZE=64)
        return flex_attention(query, query, query, block_mask=mask)

    assert_same(function, query, backend=backend)


def test_a_decode_step_inside(query):
    whole = create_block_mask(causal, None, None, 150, 150, BLOCK_SIZE=32)

    def step(query, mask, position):
        rule = mask.mask_mod
        mask = mask[:, :, (position // 32).reshape(1)]
        mask.mask_mod = lambda b, h, q, kv: rule(b, h, q + position, kv)
        mask.seq_lengths = (1, 150)
        return flex_attention(query[:, :, :1], query, query, block_mask=mask)

    run = compiled(step)
    for position in (3, 64, 149):
        at = torch.tensor(position)
        result = run(query, create_block_mask(causal, None, None, 150, 150, BLOCK_SIZE=32), at)
        assert torch.equal(result, step(query, whole, at))


@BACKENDS
def test_edits_inside(query, backend):
    """What compiled code does to index tensors counts for the attention behind it."""

    def edits(query, mask):
        mask.full_kv_num_blocks.zero_()
        return flex_attention(query, query, query, block_mask=mask)

    def assigns(query, mask):
        mask.full_kv_num_blocks = mask.full_kv_num_blocks * 0
        return flex_attention(query, query, query, block_mask=mask)

    for function in (edits, assigns):
        make = lambda: create_block_mask(causal, None, None, 150, 150, BLOCK_SIZE=32)  # noqa: E731
        expected, mask = function(query, make()), make()
        assert torch.equal(compiled(function, backend)(query, mask), expected)
        assert torch.equal(flex_attention(query, query, query, block_mask=mask), expected)


def test_index_tensors_read_inside(query):
    def function(mask):
        return mask.kv_num_blocks + mask.full_kv_num_blocks, mask.q_indices * 2, mask.shape

    mask = create_block_mask(causal, None, None, 150, 140, BLOCK_SIZE=32)
    expected = function(create_block_mask(causal, None, None, 150, 140, BLOCK_SIZE=32))
    result = compiled(function)(mask)
    assert torch.equal(result[0], expected[0]) and torch.equal(result[1], expected[1]) and result[2] == expected[2]


def test_lengths_may_vary():
    def function(query, key):
        return flex_attention(query, key, key, lambda s, b, h, q, kv: s + SLOPES[h] * (kv - q))

    run = compiled(function, dynamic=True)
    before = frames()
    for q_len, kv_len in [(150, 120), (100, 90), (77, 150)]:
        query, key = torch.randn(2, 2, q_len, 16), torch.randn(2, 2, kv_len, 16)
        assert torch.equal(run(query, key), function(query, key))
    assert frames() == before + 1


@pytest.mark.parametrize("module", ["quire", "torch"])
def test_masks_of_other_lengths_are_not_compiled_again(module):
    create = create_block_mask if module == "quire" else torch_flex.create_block_mask

    def function(query, mask):
        return flex_attention(query, query, query, lambda s, b, h, q, kv: s + (kv - q), mask)

    run = compiled(function, dynamic=True)
    before = frames()
    for length in (150, 180, 300):
        query, mask = (
            torch.randn(1, 2, length, 16),
            create(causal, None, None, length, length, device="cpu", BLOCK_SIZE=32),
        )
        assert torch.equal(run(query, mask), function(query, mask))
    assert frames() == before + 1


@BACKENDS
def test_autocast(query, backend):
    def function(query):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return flex_attention(query, query, query, lambda s, b, h, q, kv: s * 2)

    assert compiled(function, backend)(query).dtype == torch.bfloat16
    assert_same(function, query, backend=backend)
    with torch.autocast("cpu", dtype=torch.float16):
        assert_same(lambda query: flex_attention(query, query, query), query, backend=backend)


def test_layouts_and_groups():
    query, key = torch.randn(2, 30, 4, 16).transpose(1, 2), torch.randn(2, 2, 40, 16)

    def function(query, key):
        return flex_attention(query, key, key, enable_gqa=True)

    assert_same(function, query, key)
    assert compiled(function)(query, key).stride() == function(query, key).stride()


def test_inference_mode(query):
    with torch.inference_mode():
        mask = create_block_mask(causal, None, None, 150, 150)
        assert_same(lambda query: flex_attention(query, query, query, block_mask=mask), query)


def test_errors_inside(query):
    def wrong_heads(query):
        return flex_attention(query, query[:, :1], query[:, :1])

    with pytest.raises(Exception, match="enable_gqa must be set"):
        compiled(wrong_heads)(query)
    mask = create_block_mask(causal, None, None, 100, 100)
    with pytest.raises(ValueError, match="block_mask was created for 100 queries and 100 keys; got 150 and 150"):
        compiled(lambda query: flex_attention(query, query, query, block_mask=mask))(query)


def test_gradients_are_recorded_where_they_are_asked_for(query):
    bias = torch.zeros(150, requires_grad=True)
    run = compiled(lambda query: flex_attention(query, query, query, lambda s, b, h, q, kv: s + bias[kv]))
    assert not run(query).requires_grad
    with torch.enable_grad():
        run(query).sum().backward()
    assert bias.grad is not None


class Layer(torch.nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(dim, 3 * dim)
        self.out = torch.nn.Linear(dim, dim)
        self.slopes = torch.nn.Buffer(torch.rand(heads))

    def forward(self, x, mask):
        batch, length, dim = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        out = flex_attention(*qkv.unbind(0), lambda s, b, h, q, kv: s + self.slopes[h] * (kv - q), mask)
        return x + self.out(out.transpose(1, 2).reshape(batch, length, dim))


def model():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Layer(32, 2) for _ in range(3))

        def forward(self, x, mask):
            for layer in self.layers:
                x = layer(x, mask)
            return x

    return Model()


def test_a_model_of_several_layers():
    x, mask = torch.randn(2, 150, 32), create_block_mask(causal, None, None, 150, 150)
    module = model()
    torch.testing.assert_close(compiled(module)(x, mask), module(x, mask))


def test_inductor(query):
    """No arithmetic beside attention: the C++ compiler of inductor has nothing to do, so this is quick."""
    mask = create_block_mask(causal, None, None, 150, 150)

    def function(query, mask):
        return flex_attention(query, query, query, lambda s, b, h, q, kv: s + SLOPES[h] * (kv - q), mask)

    assert_same(function, query, mask, backend="inductor")
    assert type(mask) is BlockMask


@pytest.mark.slow
def test_inductor_of_a_model():
    x, mask = torch.randn(2, 150, 32), create_block_mask(causal, None, None, 150, 150)
    module = model()
    torch.testing.assert_close(compiled(module, "inductor")(x, mask), module(x, mask))
    run = compiled(lambda x, n: module(x * n, mask), "inductor", dynamic=True)
    for n in (2, 3):
        torch.testing.assert_close(run(x, n), module(x * n, mask))


def user_mods():
    sys.path.insert(0, str(pathlib.Path(__file__).parent / "trace"))
    from user_mods import USER_MODS

    return USER_MODS


@pytest.mark.slow
@pytest.mark.parametrize("case", user_mods(), ids=lambda case: case[0])
def test_mods_as_users_write_them(case):
    _, kind, factory = case
    query = torch.randn(2, 4, 96, 16)
    mod = factory(2, 4, 96, 96)
    if kind == "score":
        assert_same(lambda query: flex_attention(query, query, query, mod), query)
        return
    mask = create_block_mask(mod, 2, 4, 96, 96, BLOCK_SIZE=32)
    assert_same(lambda query: flex_attention(query, query, query, block_mask=mask), query)

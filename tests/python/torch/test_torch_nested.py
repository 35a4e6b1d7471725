"""Nested tensors of the layout torch.jagged: SDPA against torch's own where torch runs, flex_attention, enable()."""

import pytest
import quire
import quire.torch as quire_torch
import torch
import torch.nn.attention.flex_attention as torch_flex
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from peer import assert_as_exact_as_torch, causal
from torch.nested._internal import sdpa as torch_sdpa
from torch.nested._internal.nested_tensor import NestedTensor
from torch.nn.attention import SDPBackend, sdpa_kernel

SDPA = quire_torch.scaled_dot_product_attention
LENGTHS = [3, 40, 1, 17]


def nested(lengths=LENGTHS, heads=2, dim=16, dtype=torch.float32):
    """[B, j, H, D]"""
    return torch.nested.nested_tensor([torch.randn(n, heads, dim) for n in lengths], layout=torch.jagged, dtype=dtype)


def inputs(q_lengths=LENGTHS, kv_lengths=LENGTHS, heads=(2, 2), dims=(16, 16), dtype=torch.float32):
    """[B, H, j, D] each; key and value with the same offsets."""
    q = nested(q_lengths, heads[0], dims[0], dtype)
    k = nested(kv_lengths, heads[1], dims[0], dtype)
    v = torch.nested.nested_tensor_from_jagged(torch.randn(k._values.size(0), heads[1], dims[1]).to(dtype), k.offsets())
    return tuple(t.transpose(1, 2) for t in (q, k, v))


def alone(tensor, i):
    """Sequence i as [1, H, length, D]."""
    begin = int(tensor._offsets[i])
    end = int(tensor._offsets[i + 1]) if tensor._lengths is None else begin + int(tensor._lengths[i])
    return tensor._values[:, begin:end][None]


def assert_each_alone(out, q, k, v, **options):
    assert out.size(0) == q.size(0)
    for i in range(q.size(0)):
        assert torch.equal(alone(out, i), SDPA(*(alone(t, i) for t in (q, k, v)), **options)), i


# ---- as torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("dims", [(16, 16), (16, 24)])
def test_as_torchs_own(dtype, dims):
    q, k, v = inputs([3, 40, 0, 17, 5], [5, 1, 60, 9, 0], dims=dims, dtype=dtype)
    out, peer = SDPA(q, k, v, scale=0.3), F.scaled_dot_product_attention(q, k, v, scale=0.3)
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), scale=0.3)
    assert_as_exact_as_torch(out._values, exact._values, peer._values, v._values)


def test_results_have_torchs_structure():
    q, k, v = inputs(dims=(16, 24))
    out, peer = SDPA(q, k, v), F.scaled_dot_product_attention(q, k, v)
    assert type(out) is NestedTensor and out.layout is torch.jagged
    assert out.shape == peer.shape == (*q.shape[:3], 24)
    assert out._ragged_idx == peer._ragged_idx == 2
    assert out._values.shape == peer._values.shape and out._values.stride() == peer._values.stride()
    assert out.offsets() is q.offsets() and out.lengths() is None
    assert out.transpose(1, 2).is_contiguous()
    rows = out.transpose(1, 2).flatten(2)  # what models do next
    assert rows.shape == (4, q.shape[2], 48)
    assert torch.equal((out + peer)._values, out._values + peer._values)  # the same ragged size


def test_a_ragged_second_batch_axis():
    q = nested(heads=5)  # [B, j, 5, 16]: sequences of 5, ragged on axis 1
    out, peer = SDPA(q, q, q), F.scaled_dot_product_attention(q, q, q)
    assert out.shape == peer.shape and out._ragged_idx == 1
    assert_as_exact_as_torch(out._values, SDPA(*[q._values.double()] * 3), peer._values, q._values)
    assert torch.equal(SDPA(q, q, q, is_causal=True)._values, SDPA(*[q._values] * 3, is_causal=True))


def test_sequences_without_heads():
    q = torch.nested.nested_tensor([torch.randn(n, 8) for n in LENGTHS], layout=torch.jagged)
    out = SDPA(q, q, q, is_causal=True)
    assert out.shape == q.shape
    for a, b in zip(out.unbind(), q.unbind()):
        assert torch.equal(a, SDPA(b, b, b, is_causal=True))


# ---- what torch refuses


def test_causal_grouped_heads_and_lengths_of_0():
    q, k, v = inputs([3, 0, 50, 7], [4, 6, 0, 7], heads=(4, 2), dims=(16, 8))
    out = SDPA(q, k, v, is_causal=True, enable_gqa=True)
    assert_each_alone(out, q, k, v, is_causal=True, enable_gqa=True)
    assert not alone(out, 2).any()


def test_nothing_but_empty_sequences():
    q, k, v = inputs([0, 0], [0, 0])
    assert SDPA(q, k, v).shape == q.shape
    assert quire_torch.flex_attention(q, k, v).shape == q.shape


def test_heads_of_size_1_are_broadcast():
    q, k, v = inputs(heads=(4, 1))
    assert_each_alone(SDPA(q, k, v), q, k, v)


def test_holes_and_other_strides():
    def holed(heads):
        packed = torch.randn(30, heads, 16)
        return torch.nested.nested_tensor_from_jagged(packed, offsets, lengths=lengths).transpose(1, 2)

    offsets, lengths = torch.tensor([0, 10, 12, 30]), torch.tensor([4, 2, 18])
    q = holed(2)
    out = SDPA(q, q, q, is_causal=True)
    assert_each_alone(out, q, q, q, is_causal=True)
    assert out.lengths() is lengths and out.shape == q.shape
    assert not out._values[:, 4:10].any()

    apart = torch.randn(2, 30, 32)[:, :, ::2]  # [H, total, D], no stride of 1
    other = NestedTensor(apart, offsets=offsets, _ragged_idx=2)
    assert_each_alone(SDPA(other, other, other), other, other, other)

    slices = torch.nested.narrow(
        torch.randn(3, 10, 2, 16), 1, torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5]), layout=torch.jagged
    ).transpose(1, 2)
    assert_each_alone(SDPA(slices, slices, slices), slices, slices, slices)


def test_mask_mods():
    q, k, v = inputs()
    first = torch.tensor([0, 5, 0, 2])

    def late(b, h, q_idx, kv_idx):
        return kv_idx >= first[b]

    out = SDPA(q, k, v, late)
    for i, start in enumerate(first.tolist()):
        parts = [alone(t, i) for t in (q, k, v)]
        torch.testing.assert_close(alone(out, i), SDPA(parts[0], *(t[:, :, start:] for t in parts[1:])))


@settings(max_examples=25)
@given(st.data())
def test_nested_is_each_sequence_alone(data):
    n = data.draw(st.integers(1, 6))
    lengths = st.lists(st.integers(0, 70), min_size=n, max_size=n)
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    heads = data.draw(st.sampled_from([(1, 1), (4, 2), (3, 3)]))
    q, k, v = inputs(data.draw(lengths), data.draw(lengths), heads, (8, 12), dtype)
    options = {"is_causal": data.draw(st.booleans()), "enable_gqa": True}
    assert_each_alone(SDPA(q, k, v, **options), q, k, v, **options)


# ---- modes


def test_dropout_draws_once():
    q, k, v = inputs()
    torch.manual_seed(3)
    first, second = SDPA(q, k, v, dropout_p=0.5), SDPA(q, k, v, dropout_p=0.5)
    torch.manual_seed(3)
    again = SDPA(q, k, v, dropout_p=0.5)
    assert torch.equal(first._values, again._values) and not torch.equal(first._values, second._values)
    assert not SDPA(q, k, v, dropout_p=1.0)._values.any()


def test_autocast_grad_and_inference_mode():
    q, k, v = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        out, peer = SDPA(q, k, v), F.scaled_dot_product_attention(q, k, v)
    assert out.dtype == peer.dtype == torch.bfloat16
    with torch.inference_mode():
        assert torch.equal(SDPA(q, k, v)._values, SDPA(q, k, v)._values)
    leaf = nested().requires_grad_()
    assert SDPA(*[leaf.transpose(1, 2)] * 3).requires_grad
    with torch.no_grad():
        out = SDPA(*[leaf.transpose(1, 2)] * 3)
        assert out.shape == leaf.transpose(1, 2).shape and not out.requires_grad


def test_backends():
    q, k, v = inputs()
    with sdpa_kernel(SDPBackend.MATH):
        torch.testing.assert_close(SDPA(q, k, v)._values, F.scaled_dot_product_attention(q, k, v)._values)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert_each_alone(SDPA(q, k, v), q, k, v)
    assert quire_torch.why_not(SDPBackend.FLASH_ATTENTION, q, k, v) == []
    assert quire_torch.why_not(SDPBackend.FLASH_ATTENTION, q.double(), k.double(), v.double(), "q_idx >= kv_idx") == []


# ---- errors, of torch's types

Q, K, V = inputs()
DENSE = torch.randn(4, 2, 6, 16)
WRONG = {
    "dense beside nested": (Q, DENSE, DENSE),
    "dtype": (Q, K.double(), V),
    "ragged axis": (Q, K.transpose(1, 2), V.transpose(1, 2)),
    "mask": (Q, K, V, torch.ones(3, 3)),
    "lengths of keys and values": (Q, K, nested([3, 41, 1, 17]).transpose(1, 2)),
    "sequences": (Q, *[nested([3, 4]).transpose(1, 2)] * 2),
    "dim": (Q, *[nested(dim=8).transpose(1, 2)] * 2),
    "dropout": (Q, K, V, None, 1.5),
}


@pytest.mark.parametrize("name", WRONG)
def test_exception_types(name):
    with pytest.raises(Exception) as theirs:
        F.scaled_dot_product_attention(*WRONG[name])
    with pytest.raises(theirs.type):
        SDPA(*WRONG[name])


def test_offsets_that_are_wrong_name_the_sequence():
    values = torch.randn(10, 2, 8)
    for offsets, lengths, text in (
        ([0, 6, 4, 10], None, "sequence 1"),
        ([0, 4, 11], None, "sequence 1"),
        ([0, 4, 10], [5, 1], "sequence 0"),
    ):
        lengths = None if lengths is None else torch.tensor(lengths)
        bad = NestedTensor(values, offsets=torch.tensor(offsets), lengths=lengths).transpose(1, 2)
        with pytest.raises(RuntimeError, match=text):
            SDPA(bad, bad, bad)
        with pytest.raises(ValueError, match=text):
            quire_torch.flex_attention(bad, bad, bad)


# ---- flex_attention


def test_flex_attention():
    q, k, v = inputs(kv_lengths=[5, 50, 0, 20], heads=(4, 2), dims=(16, 24))
    bias = torch.randn(4)

    def score(s, b, h, q_idx, kv_idx):
        return s + bias[b] * (q_idx - kv_idx)

    mask = quire_torch.create_nested_block_mask(causal, None, None, q, k, BLOCK_SIZE=16)
    request = quire_torch.AuxRequest(lse=True, max_scores=True)
    out, aux = quire_torch.flex_attention(q, k, v, score, mask, enable_gqa=True, return_aux=request)
    assert out.shape == (*q.shape[:3], 24)
    assert aux.lse.shape == aux.max_scores.shape == q.shape[:3] and aux.lse.dtype == torch.float32
    for i in range(4):
        parts = [alone(t, i) for t in (q, k, v)]
        one = quire_torch.create_block_mask(causal, None, None, parts[0].size(2), parts[1].size(2))
        mod = quire.ScoreMod(f"score + bias[{i}] * (q_idx - kv_idx)", {"bias": bias})
        want, want_aux = quire_torch.flex_attention(*parts, mod, one, enable_gqa=True, return_aux=request)
        assert torch.equal(alone(out, i), want)
        for got, wanted in zip(aux, want_aux):
            begin, end = q._offsets[i : i + 2].tolist()
            assert torch.equal(got._values[None, :, begin:end], wanted)


def test_nested_block_masks_follow_what_they_capture():
    q, k, v = inputs()
    limit = torch.tensor([1, 3, 1, 5])

    def first_keys(b, h, q_idx, kv_idx):
        return kv_idx < limit[b]

    mask = quire_torch.create_nested_block_mask(first_keys, 4, None, q)
    assert len(mask) == 4 and mask[1].shape == (1, 1, 40, 40) and "4 sequences" in repr(mask)
    assert mask.current() is mask.current()
    before = quire_torch.flex_attention(q, k, v, block_mask=mask)
    assert torch.equal(before._values, SDPA(q, k, v, first_keys)._values)
    limit += 1
    after = quire_torch.flex_attention(q, k, v, block_mask=mask)
    assert not torch.equal(before._values, after._values)
    assert torch.equal(after._values, SDPA(q, k, v, first_keys)._values)
    mask.mask_mod = causal
    out = quire_torch.flex_attention(q, k, v, block_mask=mask)
    assert torch.equal(out._values, SDPA(q, k, v, is_causal=True)._values)


def test_flex_attention_errors():
    q, k, v = inputs()
    with pytest.raises(ValueError, match="all be nested"):
        quire_torch.flex_attention(q, DENSE, DENSE)
    with pytest.raises(ValueError, match="ragged on axis 2"):
        quire_torch.flex_attention(*[nested()] * 3)
    with pytest.raises(TypeError, match="create_nested_block_mask"):
        quire_torch.flex_attention(q, k, v, block_mask=quire_torch.create_block_mask(causal, None, None, 40, 40))
    with pytest.raises(ValueError, match="B must be"):
        quire_torch.create_nested_block_mask(causal, 3, None, q)
    with pytest.raises(ValueError, match="q_nt"):
        quire_torch.create_nested_block_mask(causal, None, None, DENSE)


# ---- enable()


def test_enable_covers_nested_sdpa():
    q, k, v = inputs()
    code = torch_sdpa.jagged_scaled_dot_product_attention.__code__
    with quire_torch.enable():
        assert torch.equal(F.scaled_dot_product_attention(q, k, v)._values, SDPA(q, k, v)._values)
        assert torch.equal(
            F.scaled_dot_product_attention(q, k, v, is_causal=True)._values, SDPA(q, k, v, is_causal=True)._values
        )
        assert torch.equal(torch_flex.flex_attention(q, k, v)._values, quire_torch.flex_attention(q, k, v)._values)
        leaf = nested().requires_grad_()
        F.scaled_dot_product_attention(*[leaf.transpose(1, 2)] * 3).values().sum().backward()
        assert leaf.grad is not None
    assert torch_sdpa.jagged_scaled_dot_product_attention.__code__ is code
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["flex_attention", "scaled_dot_product_attention"])
def test_compiled_callers(name, backend):
    """Inside of a graph and where graphs may break."""
    torch._dynamo.reset()

    def call(x, mask):
        if name == "flex_attention":
            return quire_torch.flex_attention(x * 2, x, x, block_mask=mask) + 1
        return SDPA(x * 2, x, x, is_causal=True) + 1

    parts = [torch.randn(n, 2, 8) for n in (5, 9)]
    results = []
    for function in (call, torch.compile(call, backend=backend)):
        leaf = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
        x = leaf.transpose(1, 2)
        out = function(x, quire_torch.create_nested_block_mask(causal, None, None, x))
        out.values().sum().backward()
        results.append((out.values().detach(), leaf.grad.values()))
    assert all(map(torch.equal, *results))
    torch._dynamo.reset()
    whole = torch.compile(call, backend=backend, fullgraph=True)(x, None)
    assert torch.equal(whole.values(), call(x, None).values())

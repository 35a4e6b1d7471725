"""Beside what else torch can be doing: autocast, inference, default devices, modes, tensors without memory, threads."""

import threading

import pytest
import quire.torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from peer import causal
from quire.torch import AuxRequest, create_block_mask, create_mask, flex_attention, scaled_dot_product_attention
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

SLOPES = torch.tensor([0.5, 0.25])


def alibi(score, b, h, q_idx, kv_idx):
    return score + SLOPES[h] * (kv_idx - q_idx)


@pytest.fixture
def query():
    return torch.randn(2, 2, 100, 16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(query, dtype):
    with torch.autocast("cpu", dtype=dtype):
        result = flex_attention(query, query, query, alibi)
        theirs = torch_flex.flex_attention(query, query, query, alibi)
        doubles = flex_attention(query.double(), query.double(), query.double())
    low = query.to(dtype)
    assert torch.equal(result, flex_attention(low, low, low, alibi))
    assert result.dtype == theirs.dtype == dtype
    assert doubles.dtype == torch.float64
    with torch.autocast("cpu", dtype=dtype, enabled=False):
        assert flex_attention(query, query, query).dtype == torch.float32


def test_inference_mode(query):
    expected = flex_attention(query, query, query, alibi, create_block_mask(causal, None, None, 100, 100))
    with torch.inference_mode():
        inside = query.clone()
        slopes = SLOPES.clone()
        mask = create_block_mask(causal, None, None, 100, 100)
        result = flex_attention(inside, inside, inside, lambda s, b, h, q, kv: s + slopes[h] * (kv - q), mask)
        assert torch.equal(result, expected)
        slopes.mul_(2)
        assert not torch.equal(
            flex_attention(inside, inside, inside, lambda s, b, h, q, kv: s + slopes[h] * (kv - q), mask), expected
        )


def test_the_default_device_and_dtype_do_not_matter(query):
    expected = flex_attention(query, query, query, alibi, create_block_mask(causal, None, None, 100, 100))
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        mask = create_block_mask(causal, None, None, 100, 100)
        result, aux = flex_attention(query, query, query, alibi, mask, return_aux=AuxRequest(True, True))
        assert mask.kv_indices.device.type == create_mask(causal, 1, 1, 4, 4).device.type == "cpu"
        assert aux.lse.device.type == aux.max_scores.device.type == "cpu"
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert torch.equal(result, expected)


def test_devices_of_masks():
    assert create_block_mask(causal, None, None, 64, 64, device="cpu").kv_indices.device.type == "cpu"
    assert create_block_mask(causal, None, None, 64, 64, device="meta").kv_indices.device.type == "meta"
    assert create_mask(causal, None, None, 64, 64, device=torch.device("meta")).device.type == "meta"


def test_fake_tensors(query):
    mask = create_block_mask(causal, None, None, 100, 100)
    query = query.transpose(1, 2).contiguous().transpose(1, 2)
    real, real_aux = flex_attention(query, query, query, alibi, mask, return_aux=AuxRequest(lse=True))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(query)
        out, aux = flex_attention(fake, fake, fake, alibi, mask, return_aux=AuxRequest(lse=True))
    outside = flex_attention(fake, fake, fake)
    assert outside.shape == real.shape
    assert out.shape == real.shape and out.stride() == real.stride() and out.dtype == real.dtype
    assert aux.lse.shape == real_aux.lse.shape and aux.max_scores is None


def test_under_a_mode(query):
    mask = create_block_mask(causal, None, None, 100, 100)
    expected = flex_attention(query, query, query, alibi, mask)
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            seen.append(str(function))
            return function(*arguments, **(options or {}))

    with Mode():
        assert torch.equal(flex_attention(query, query, query, alibi, mask), expected)
    assert "quire.flex_attention.default" in seen
    leaf = query.clone().requires_grad_()
    with Mode():
        flex_attention(leaf, query, query).sum().backward()
    assert "quire.flex_attention_backward.default" in seen
    assert torch.equal(leaf.grad, torch.autograd.grad(flex_attention(leaf, query, query).sum(), leaf)[0])
    with FlopCounterMode(display=False):
        assert torch.equal(
            flex_attention(query, query, query, "score + 0"), flex_attention(query, query, query, "score + 0")
        )


def test_subclasses_and_parameters(query):
    class Named(torch.Tensor):
        pass

    expected = flex_attention(query, query, query)
    named = query.as_subclass(Named)
    assert torch.equal(flex_attention(named, named, named), expected)
    parameter = torch.nn.Parameter(query, requires_grad=False)
    assert torch.equal(flex_attention(parameter, parameter, parameter), expected)


def test_many_threads_share_a_mask(query):
    doc = torch.arange(100) // 30
    masks = [create_block_mask(causal, None, None, 100, 100, BLOCK_SIZE=16) for _ in range(2)]
    masks.append(
        torch_flex.create_block_mask(lambda b, h, q, kv: doc[q] == doc[kv], None, None, 100, 100, device="cpu")
    )
    queries = [torch.randn(2, 2, 100, 16) for _ in range(4)]
    expected = [[flex_attention(q, q, q, alibi, mask) for mask in masks] for q in queries]
    wrong = []

    def work(i):
        for _ in range(50):
            for mask, result in zip(masks, expected[i]):
                if not torch.equal(flex_attention(queries[i], queries[i], queries[i], alibi, mask), result):
                    wrong.append(i)
                assert mask.kv_indices.shape[0] == 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_negated_views(query):
    negated = query._neg_view()  # the sign is not in memory
    assert negated.is_neg() and negated.is_contiguous()
    assert torch.equal(flex_attention(negated, query, query, alibi), flex_attention(-query, query, query, alibi))
    assert torch.equal(flex_attention(query, negated, negated), flex_attention(query, -query, -query))
    slopes = SLOPES._neg_view()
    expected = flex_attention(query, query, query, lambda s, b, h, q, kv: s - SLOPES[h] * kv)
    assert torch.equal(flex_attention(query, query, query, lambda s, b, h, q, kv: s + slopes[h] * kv), expected)


@pytest.mark.filterwarnings("ignore")
def test_jit_trace(query):
    for module in (torch_flex, quire.torch):
        with pytest.raises(RuntimeError):
            torch.jit.trace(lambda x: module.flex_attention(x, x, x), (query,), check_trace=False)
    causal_sdpa = lambda x: scaled_dot_product_attention(x, x, x, is_causal=True)  # noqa: E731
    traced = torch.jit.trace(causal_sdpa, (query,), check_trace=False)
    assert torch.equal(traced(2 * query), causal_sdpa(2 * query))

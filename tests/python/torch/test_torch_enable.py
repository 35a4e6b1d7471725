"""enable() puts Quire behind torch's names, disable() takes it out exactly."""

import threading

import pytest
import quire.torch as quire_torch
import torch
import torch.nn.attention.flex_attention as torch_flex
from peer import causal
from torch.nn.attention.experimental._paged_attention import PagedAttention as TorchPagedAttention
from torch.nn.attention.flex_attention import create_block_mask as imported_before
from torch.nn.attention.flex_attention import flex_attention as flex_imported_before

CODE = torch_flex.flex_attention.__code__, torch_flex.create_block_mask.__code__


def is_enabled():
    now = torch_flex.flex_attention.__code__, torch_flex.create_block_mask.__code__
    assert (now[0] is CODE[0]) == (now[1] is CODE[1])
    return now[0] is not CODE[0]


@pytest.fixture(autouse=True)
def off_again():
    yield
    quire_torch.disable()
    assert not is_enabled()


def test_names_imported_before_use_quire():
    query = torch.randn(1, 2, 64, 16)
    assert type(imported_before(causal, None, None, 64, 64, device="cpu")) is torch_flex.BlockMask
    theirs = flex_imported_before(query, query, query)
    quire_torch.enable()
    mask = imported_before(causal, None, None, 64, 64, device="cpu")
    assert type(mask) is quire_torch.BlockMask
    assert type(imported_before(causal, None, None, 64, 64)) is quire_torch.BlockMask
    ours = flex_imported_before(query, query, query)
    assert torch.equal(ours, quire_torch.flex_attention(query, query, query))
    out, aux = flex_imported_before(query, query, query, return_aux=torch_flex.AuxRequest(max_scores=True))
    assert aux.max_scores is not None  # torch refuses that on a CPU
    quire_torch.disable()
    assert torch.equal(flex_imported_before(query, query, query), theirs)
    assert type(imported_before(causal, None, None, 64, 64, device="cpu")) is torch_flex.BlockMask


def test_disable_restores_exactly():
    functions = (torch_flex.flex_attention, torch_flex.create_block_mask)
    before = [(f, f.__code__, f.__defaults__, f.__kwdefaults__, f.__globals__) for f in functions]
    quire_torch.enable()
    quire_torch.enable()
    assert is_enabled()
    quire_torch.disable()
    after = [(f, f.__code__, f.__defaults__, f.__kwdefaults__, f.__globals__) for f in functions]
    assert all(a is b for one, two in zip(before, after) for a, b in zip(one, two))
    quire_torch.disable()


def test_as_a_block():
    with quire_torch.enable():
        assert is_enabled()
        with quire_torch.enable():
            assert is_enabled()
        assert is_enabled()
    assert not is_enabled()
    quire_torch.enable()
    with quire_torch.enable():
        pass
    assert is_enabled()  # what enable() switched on, disable() switches off
    quire_torch.disable()
    with pytest.raises(KeyError), quire_torch.enable():
        raise KeyError
    assert not is_enabled()


def test_blocks_of_two_threads_overlap():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with quire_torch.enable():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with quire_torch.enable():
        thread.start()
        entered.wait()
    assert is_enabled()  # the other thread is still inside
    leave.set()
    thread.join()
    assert not is_enabled()


def test_tensors_that_are_not_on_the_cpu_go_to_torch():
    query = torch.randn(1, 2, 64, 16, device="meta")
    with quire_torch.enable():
        with pytest.raises(ValueError, match="FlexAttention is only supported on CUDA"):
            torch_flex.flex_attention(query, query, query)
        mask = torch_flex.create_block_mask(causal, None, None, 64, 64, device="meta")
    assert type(mask) is torch_flex.BlockMask


def test_masks_of_either_kind_serve_both():
    query = torch.randn(1, 2, 200, 16)
    theirs = torch_flex.create_block_mask(causal, None, None, 200, 200, device="cpu")
    with quire_torch.enable():
        ours = torch_flex.create_block_mask(causal, None, None, 200, 200, device="cpu")
        a = torch_flex.flex_attention(query, query, query, block_mask=theirs)
        b = torch_flex.flex_attention(query, query, query, block_mask=ours)
    assert torch.equal(a, b)
    c = torch_flex.flex_attention(query, query, query, block_mask=ours)
    assert torch.allclose(a, c, atol=1e-5)
    assert not torch.equal(a, c)  # that was torch


def test_compiled_callers_switch():
    torch._dynamo.reset()
    query = torch.randn(1, 2, 48, 16)
    calls = []

    def backend(graph, inputs):
        calls.append("quire" if any("quire" in str(node.target) for node in graph.graph.nodes) else "torch")
        return graph

    def caller(query):
        return flex_imported_before(query * 2, query, query, lambda s, b, h, q, kv: s * 0.5)

    compiled = torch.compile(caller, backend=backend, fullgraph=True)
    direct = torch.compile(flex_imported_before, backend=backend, fullgraph=True)
    compiled(query), direct(query, query, query)
    with quire_torch.enable():
        expected = quire_torch.flex_attention(query * 2, query, query, lambda s, b, h, q, kv: s * 0.5)
        assert torch.equal(compiled(query), expected)
        direct(query, query, query)
    compiled(query), direct(query, query, query)
    assert calls == ["torch", "torch", "quire", "quire"]
    with quire_torch.enable():
        assert torch.equal(compiled(query), expected)
    assert calls == ["torch", "torch", "quire", "quire"]  # nothing is traced a second time


def test_cuda_is_the_cpu_where_that_was_asked_for(monkeypatch):
    from quire.torch import cuda_to_cpu

    monkeypatch.setattr(cuda_to_cpu, "_has_warned", False)

    with quire_torch.enable(cuda_to_cpu=True):
        with pytest.warns(UserWarning, match="device='cuda' is the CPU here") as warned:
            mask = torch_flex.create_block_mask(causal, None, None, 200, 200, device="cuda")
            mask = mask.to("cuda")
            quire_torch.create_block_mask(causal, None, None, 200, 200, "cuda:1")
            quire_torch.create_mask(causal, None, None, 20, 20, torch.device("cuda"))
            quire_torch.PagedAttention(4, 16, 2, device="cuda")
            assert torch_flex.create_mask(causal, None, None, 20, 20, device="cuda").is_cpu
            lists = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)
            assert torch_flex.BlockMask.from_kv_blocks(*lists).to("cuda").kv_indices.is_cpu
            assert TorchPagedAttention(4, 16, 2).page_table.is_cpu  # its default device is cuda
        assert len(warned) == 1 and mask.kv_num_blocks.device.type == "cpu"
        with quire_torch.enable():
            assert cuda_to_cpu.is_on
    assert not cuda_to_cpu.is_on
    for call in (quire_torch.create_block_mask, torch_flex.create_mask):
        with pytest.raises((AssertionError, RuntimeError)):
            call(causal, None, None, 200, 200, "cuda")
    with pytest.raises((AssertionError, RuntimeError)):
        TorchPagedAttention(4, 16, 2)
    quire_torch.enable(cuda_to_cpu=True)
    assert cuda_to_cpu.is_on
    quire_torch.disable()
    assert not cuda_to_cpu.is_on
    with pytest.raises(TypeError, match="cuda_to_cpu must be a bool"):
        quire_torch.enable(cuda_to_cpu="yes")

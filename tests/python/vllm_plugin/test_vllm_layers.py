"""A layer as vLLM calls it: builder, cache update and forward, with every odd argument that a model may pass; what is refused by name."""

import pytest
import torch

pytest.importorskip("vllm")

import quire
import quire.vllm
from engine_step import Requests, a_layer, metadata, reference
from quire.vllm.backend import QuireAttentionBackend, refuse_unknown
from quire.vllm.layer_mods import LayerMods
from quire.vllm.rule import LayerRule
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.attention.chunked_local_attention import create_chunked_local_attention_backend
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec

HEADS, KV_HEADS = 6, 2
ALLOWED = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(autouse=True)
def config():
    with set_current_vllm_config(VllmConfig()) as made:
        yield made


def impl(dim=64, scale=0.125, backend=QuireAttentionBackend, **more):
    return backend.get_impl_cls()(HEADS, dim, scale, KV_HEADS, **more)


def common(requests, counts, causal=True):
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32)
    lengths = torch.tensor(requests.lengths, dtype=torch.int32)
    slots = [requests.slots(i, n - count, n) for i, (n, count) in enumerate(zip(requests.lengths, counts))]
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        num_reqs=len(counts),
        num_actual_tokens=int(starts[-1]),
        max_query_len=max(counts),
        max_seq_len=max(requests.lengths),
        block_table_tensor=requests.table,
        slot_mapping=torch.cat(slots),
        causal=causal,
        seq_lens_cpu_upper_bound=lengths,
    )


def run(layer_impl, requests, counts, backend=QuireAttentionBackend, spec=None, causal=True):
    """(q, out) of a step in which the last `counts` tokens of the requests are new."""
    dtype = requests.k[0].dtype
    block, dim = requests.block, requests.dim
    spec = spec or FullAttentionSpec(block_size=block, num_kv_heads=KV_HEADS, head_size=dim, dtype=dtype)
    builder = backend.get_builder_cls()(spec, [], VllmConfig(), torch.device("cpu"))
    step_common = common(requests, counts, causal)
    step = builder.build(0, step_common)
    q = torch.randn(sum(counts), HEADS, dim).to(dtype)
    k, v = (torch.cat([rows[n - c :] for rows, n, c in zip(all_rows, requests.lengths, counts)])
            for all_rows in (requests.k, requests.v))  # fmt: skip
    out = torch.full((*q.shape[:2], requests.v_dim), float("nan"), dtype=dtype)
    with torch.no_grad():
        layer_impl.do_kv_cache_update(a_layer(), k, v, requests.cache, step_common.slot_mapping)
        layer_impl.forward(a_layer(), q, k, v, requests.cache, step, out)
    return q, out


def expect(requests, counts, q, out, **rule):
    first = 0
    for i, count in enumerate(counts):
        rows = slice(first, first + count)
        k, v = requests.read(i)
        expected = reference(q[rows], k, v, q_begin=requests.lengths[i] - count, **{"scale": 0.125, **rule})
        assert (out[rows].double() - expected).abs().max() < ALLOWED[q.dtype], i
        first += count


COUNTS = [1, 33, 1, 10, 200]
LENGTHS = [1, 33, 700, 64, 260]


@pytest.mark.parametrize("dim, block", [(17, 1), (72, 7), (100, 48), (300, 16), (1, 32)])
def test_odd_sizes_with_a_window_and_a_softcap(dim, block):
    requests = Requests(LENGTHS, dim=dim, block=block)
    one = impl(dim, sliding_window=37, logits_soft_cap=3.0)
    q, out = run(one, requests, COUNTS)
    expect(requests, COUNTS, q, out, window=37, softcap=3.0)


@pytest.mark.parametrize("sink_dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sinks_in_f16(sink_dtype):
    requests = Requests(LENGTHS, dtype=torch.float16)
    sinks = torch.randn(HEADS).to(sink_dtype)
    q, out = run(impl(sinks=sinks, sliding_window=128), requests, COUNTS)
    expect(requests, COUNTS, q, out, sinks=sinks, window=128)


@pytest.mark.parametrize("kind", [AttentionType.ENCODER_ONLY, AttentionType.ENCODER])
def test_encoders_with_a_softcap(kind):
    """Of which CPU_ATTN says that outputs may be off."""
    requests = Requests([5, 130, 1, 64])
    one = impl(attn_type=kind, logits_soft_cap=2.0, sliding_window=20)
    q, out = run(one, requests, requests.lengths, causal=False)
    expect(requests, requests.lengths, q, out, softcap=2.0, window=20, causal=False)


def test_chunks_of_a_prefill_with_a_window():
    """Token by token, in chunks and at once: the same bits."""
    requests = Requests([600])
    one = impl(sliding_window=100)
    torch.manual_seed(1)
    q, whole = run(one, requests, [600])
    for chunk in (1, 64, 250):
        for begin in range(0, 600, chunk):
            end = min(begin + chunk, 600)
            step = metadata(requests, [0], [end - begin], ends=[end])
            out = torch.empty(end - begin, HEADS, 64)
            one.forward(a_layer(), q[begin:end], None, None, requests.cache, step, out)
            assert torch.equal(out, whole[begin:end])


def test_layers_that_see_a_request_in_chunks(monkeypatch):
    """Llama 4's local layers: vLLM cuts requests into pieces of 64 tokens, each with a part of the block table."""
    backend = create_chunked_local_attention_backend(QuireAttentionBackend, 64)
    requests = Requests(LENGTHS, block=32)
    spec = ChunkedLocalAttentionSpec(
        block_size=32, num_kv_heads=KV_HEADS, head_size=64, dtype=torch.float32, attention_chunk_size=64
    )
    q, out = run(impl(), requests, COUNTS, backend, spec)
    expect(requests, COUNTS, q, out, visible=lambda place, key: place // 64 == key // 64)
    monkeypatch.setattr("vllm.distributed.parallel_state.get_tensor_model_parallel_rank", lambda: 0)
    quire.vllm.set_mods(mask_mod="kv_idx >= 0")
    try:
        with pytest.raises(
            NotImplementedError, match="set_mods has no effect on .* layers that see a request in pieces"
        ):
            run(impl(), requests, COUNTS, backend, spec)
    finally:
        quire.vllm.clear_mods()


def test_mods_of_ones_own_are_refused_where_positions_are_not_known():
    requests = Requests([30, 5])
    rule = LayerRule(0.125, mods=LayerMods(mask_mod=quire.MaskMod("kv_idx > 3")))
    step = metadata(requests, [0, 1], [4, 1], causal=False, is_cross=True)
    with pytest.raises(NotImplementedError, match="set_mods has no effect on cross attention"):
        step.over_pages(rule, torch.randn(5, HEADS, 64), requests.pages(), 1)


def test_what_a_model_may_say_for_none():
    requests = Requests(LENGTHS)
    q, out = run(impl(sliding_window=-1, chunk_lookback=-1, sinks=None, logits_soft_cap=0.0), requests, COUNTS)
    expect(requests, COUNTS, q, out)


def test_refused_by_name():
    with pytest.raises(NotImplementedError, match="a layer with chunk_lookback, q_norm is not supported; QUIRE_VLLM=0"):
        impl(chunk_lookback=1, q_norm=torch.ones(3))
    with pytest.raises(ValueError, match=r"sinks must be one per head, \(6,\); got \(5,\)"):
        impl(sinks=torch.zeros(5))
    with pytest.raises(
        NotImplementedError, match="kv_cache_dtype 'int8_per_token_head' is not supported; there are auto"
    ):
        impl(kv_cache_dtype="int8_per_token_head")
    step = common(Requests([3]), [1])
    for name, value, what in (
        ("mm_req_doc_ranges", {0: [(0, 2)]}, "ranges of multimodal tokens"),
        ("rswa_prefix_lens", torch.tensor([3]), "reference sliding windows"),
        ("dcp_local_seq_lens", torch.tensor([2]), "decode context parallelism"),
    ):
        with pytest.raises(NotImplementedError, match=what):
            refuse_unknown(step.replace(**{name: value}))
    refuse_unknown(step)
    out, scale = torch.empty(1, HEADS, 64), torch.tensor(1.0)
    with pytest.raises(NotImplementedError, match="an output in codes"):
        impl().forward(a_layer(), out, None, None, Requests([3]).cache, None, out, output_scale=scale)
    with pytest.raises(ValueError, match=r"the cache must be \[blocks, kv_heads, block_size, 256\]"):
        impl().do_kv_cache_update(
            a_layer(), out, out, torch.empty(2, KV_HEADS, 16, 256).transpose(1, 2), torch.tensor([0])
        )

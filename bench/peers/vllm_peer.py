"""vLLM's attention operators for CPUs, as its backend calls them: keys in pages, queries of all sequences one after the other.

In the environment of scripts/vllm-venv."""

import itertools

import torch
import vllm  # noqa: F401
from vllm import _custom_ops as operators
from vllm.v1.attention.backends import cpu_attn

from peers.amx import allow_amx
from peers.unsupported import Unsupported

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PAGE = 32


def version():
    return vllm.__version__


def prepare(case, threads):
    allow_amx()
    torch.set_num_threads(threads)
    if case.format:
        raise Unsupported("no attention over these codes")
    if not case.is_causal:
        raise Unsupported("full attention goes another way there")
    page = case.page_size or PAGE
    table, count, slots = _pages(case, page)
    dtype = DTYPES[case.dtype]
    isa = cpu_attn._get_attn_isa(dtype, page, case.dim)
    lengths = torch.tensor(case.kv_lengths, dtype=torch.int32)
    starts = torch.tensor(case.offsets(case.q_lengths), dtype=torch.int32)
    plan = operators.cpu_attn_get_scheduler_metadata(
        num_reqs=len(lengths),
        num_heads=case.q_heads,
        num_kv_heads=case.kv_heads,
        head_dim=case.dim,
        seq_lens=lengths,
        dtype=dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa=isa,
        enable_kv_split=True,
    )
    inputs = []
    for turn in range(case.turns):
        q, k, v = (torch.from_numpy(one).to(dtype) for one in case.arrays(turn))
        pools = [torch.zeros(count, case.kv_heads, page, case.dim, dtype=dtype) for _ in "kv"]
        operators.cpu_attn_reshape_and_cache(k, v, *pools, slots, isa)
        inputs.append((q, *pools))
    out, turns = torch.empty_like(inputs[0][0]), itertools.cycle(inputs)

    @torch.inference_mode()
    def call(arguments=None):
        q, k, v = arguments or next(turns)
        operators.cpu_attention_with_kv_cache(
            query=q,
            key_cache=k,
            value_cache=v,
            output=out,
            query_start_loc=starts,
            seq_lens=lengths,
            scale=case.dim**-0.5,
            causal=True,
            alibi_slopes=None,
            sliding_window=-1,
            block_table=table,
            softcap=0.0,
            scheduler_metadata=plan,
            s_aux=None,
        )
        return out

    return call, lambda: call(inputs[0]).float().numpy()


def _pages(case, page):
    """Page table, pages in all, and the place of each key; in order where the case says nothing of pages."""
    if case.page_size:
        table, count = case.pages()
        return torch.from_numpy(table), count, torch.from_numpy(case.slots())
    counts = [-(-length // page) for length in case.kv_lengths]
    table = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    first, slots = 0, []
    for row, (n, length) in enumerate(zip(counts, case.kv_lengths)):
        table[row, :n] = torch.arange(first, first + n)
        slots.append(torch.arange(length) + first * page)
        first += n
    return table, first, torch.cat(slots)

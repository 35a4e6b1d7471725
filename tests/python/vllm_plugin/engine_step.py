"""A step as vLLM's engine hands it to a backend: requests in blocks of a cache of vLLM's layout, in random order, garbage elsewhere."""

from types import SimpleNamespace

import torch
from quire.vllm import pages as quire_pages
from quire.vllm.metadata import QuireMetadata


class Requests:
    """Keys and values [tokens, kv_heads, dim] of each request, as numbers and in a cache [blocks, kv_heads, block, dim + v_dim]."""

    def __init__(self, lengths, kv_heads=2, dim=64, v_dim=None, block=32, dtype=torch.float32, format=None, seed=0):
        generator = torch.Generator().manual_seed(seed)
        v_dim = dim if v_dim is None else v_dim
        self.lengths, self.block, self.format, self.dim, self.v_dim = list(lengths), block, format, dim, v_dim

        def normal(*shape):
            return torch.randn(shape, generator=generator).to(dtype)

        self.k = [normal(n, kv_heads, dim) for n in lengths]
        self.v = [normal(n, kv_heads, v_dim) for n in lengths]
        self.k_scale, self.v_scale = torch.tensor(0.01), torch.tensor(0.02)
        wanted = [(n + block - 1) // block for n in lengths]
        blocks = torch.randperm(sum(wanted) + 3, generator=generator)
        self.table = torch.full((len(wanted), max(wanted) + 1), 10**6, dtype=torch.int32)
        cache_dtype = dtype if format is None else torch.uint8
        self.cache = torch.empty(len(blocks), kv_heads, block, dim + v_dim, dtype=cache_dtype)
        self.cache.fill_(float("nan") if format is None else 0x7F)
        first = 0
        for i, n in enumerate(wanted):
            self.table[i, :n] = blocks[first : first + n].to(torch.int32)
            first += n
        for i in range(len(lengths)):
            self.write(i, 0, lengths[i])

    def slots(self, i, begin, end):
        at = torch.arange(begin, end)
        return self.table[i, at // self.block].long() * self.block + at % self.block

    def write(self, i, begin, end):
        both = self.k[i][begin:end], self.v[i][begin:end]
        scales = self.k_scale, self.v_scale
        into = quire_pages.split(self.cache, self.dim, self.v_dim)
        quire_pages.write(both, self.slots(i, begin, end), into, self.format, scales, 1)

    def pages(self):
        k, v = quire_pages.split(self.cache, self.dim, self.v_dim)
        return quire_pages.pages_of(k, v, self.format, self.k_scale, self.v_scale)

    def read(self, i):
        """The numbers that the cache holds of a request."""
        if self.format is None:
            return self.k[i], self.v[i]
        kind = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}[self.format]
        return tuple(
            quire_pages.encode(rows, self.format, scale).view(kind).float() * scale
            for rows, scale in ((self.k[i], self.k_scale), (self.v[i], self.v_scale))
        )


def metadata(requests, which, counts, ends=None, causal=True, is_cross=False):
    """Of the last `counts` tokens of the requests `which`, as far as `ends` (their lengths)."""
    ends = [requests.lengths[i] for i in which] if ends is None else ends
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32)
    return QuireMetadata(
        num_actual_tokens=int(starts[-1]),
        query_start_loc=starts,
        seq_lens=torch.tensor(ends, dtype=torch.int32),
        block_table=requests.table[list(which)],
        slot_mapping=torch.empty(0, dtype=torch.int64),
        causal=causal,
        is_cross=is_cross,
    )


def attend(requests, rule, q, step, threads=1, sinks=None):
    """The layer's output [tokens, heads, v_dim]."""
    pages = requests.pages()
    out = torch.full((*q.shape[:2], requests.v_dim), float("nan"), dtype=q.dtype)
    step.over_pages(rule, q, pages, threads).run(q, pages.k, pages.v, out, sinks)
    return out


def reference(q, k, v, *, scale, q_begin, window=None, causal=True, softcap=0.0, alibi=None, sinks=None, visible=None):
    """[n, heads, v_dim] in f64, by plain formulas. q [n, heads, dim], k and v of one request."""
    group = q.shape[1] // k.shape[1]
    k, v = (one.double().repeat_interleave(group, 1) for one in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    place, key = q_begin + torch.arange(q.shape[0])[:, None], torch.arange(k.shape[0])[None]
    if alibi is not None:
        scores = scores - torch.tensor(alibi).double()[:, None, None] * (place - key).abs()
    seen = (key <= place) if causal else torch.ones_like(key <= place)
    if window:
        seen = seen & ((place - key).abs() < window)
    if visible is not None:
        seen = seen & visible(place, key)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, q.shape[0], 1)], -1)
    weights = scores.softmax(-1).nan_to_num(0.0)[..., : k.shape[0]]
    return torch.einsum("hqk,khd->qhd", weights, v)


def a_layer(**more):
    """What a backend reads of vLLM's attention layer."""
    one = torch.tensor(1.0)
    return SimpleNamespace(layer_name="model.layers.0.self_attn.attn", _k_scale=one, _v_scale=one, **more)

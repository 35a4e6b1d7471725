"""Quire itself, over NumPy arrays."""

import itertools

import ml_dtypes
import numpy as np
import quire

DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}


def version():
    return quire.__version__


def prepare(case, threads):
    quire.set_num_threads(threads)
    if case.page_size:
        return _paged(case)
    if len(set(case.q_lengths)) > 1:
        return _jagged(case)
    return _dense(case)


def _contiguous(array, case):
    return np.ascontiguousarray(array.astype(DTYPES[case.dtype]))


def _dense(case):
    q_len, kv_len = case.q_lengths[0], case.kv_lengths[0]
    mask = None
    if case.is_causal and not case.is_decode:
        mask = quire.create_block_mask(f"q_idx + {kv_len - q_len} >= kv_idx", None, None, q_len, kv_len)
    inputs = []
    for turn in range(case.turns):
        q, k, v = (_contiguous(one, case) for one in case.dense(turn))
        if case.format:
            k, v = (quire.quantize(one, case.format) for one in (k, v))
        inputs.append((q, k, v))
    turns = itertools.cycle(inputs)

    def call(arguments=None):
        return quire.flex_attention(*(arguments or next(turns)), block_mask=mask, enable_gqa=True)

    return call, lambda: _tokens(call(inputs[0]), case)


def _tokens(out, case):
    return out.astype(np.float32).transpose(0, 2, 1, 3).reshape(-1, case.q_heads, case.dim)


def _jagged(case):
    q, k, v = (one.astype(DTYPES[case.dtype]) for one in case.arrays())
    q_offsets, kv_offsets = case.offsets(case.q_lengths), case.offsets(case.kv_lengths)
    batch = [quire.Jagged(q, q_offsets), quire.Jagged(k, kv_offsets), quire.Jagged(v, kv_offsets)]

    def call():
        return quire.scaled_dot_product_attention(*batch, is_causal=case.is_causal, enable_gqa=True)

    return call, lambda: call().values.astype(np.float32)


def _paged(case):
    """A step over a KVCache: its plan is made once, for all of a model's layers, which is how engines use it."""
    layers = case.turns
    formats = {"k_format": case.format, "v_format": case.format} if case.format else {}
    cache = quire.KVCache(
        layers=layers,
        kv_heads=case.kv_heads,
        head_dim=case.dim,
        dtype=case.dtype,
        page_size=case.page_size,
        n_pages=case.pages()[1],
        **formats,
    )
    sequences, counts = [cache.create() for _ in case.kv_lengths], list(case.kv_lengths)
    cache.append(sequences, counts=counts)
    queries = []
    for layer in range(layers):
        q, k, v = (one.astype(DTYPES[case.dtype]) for one in case.arrays(layer))
        queries.append(q)
        cache.write(layer, sequences, counts, k, v)
    names = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
    plan = quire.AttendPlan(cache, sequences, case.q_heads, names[case.dtype], counts=list(case.q_lengths))
    turns, out = itertools.cycle(range(layers)), np.empty_like(queries[0])

    def call(layer=None):
        layer = next(turns) if layer is None else layer
        return plan.run(layer, queries[layer], out=out)

    return call, lambda: call(0).astype(np.float32)

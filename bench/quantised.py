"""Attention over quantised keys and values beside the same call over bf16 and f32, in one process and interleaved; medians.

    python bench/quantised.py [decode[=KV_HEADS]|paged[=PAGE_SIZE]|prefill|quality|queries|write] ...

decode: 32 query heads over 8 key heads (32 and 4: groups of 1 and 8), D = 128, 8,192 keys, keys and values far beyond L3. Two threads,
or what QUIRE_NUM_THREADS says. Ratios are of times: above 1 the quantised call is faster.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
import quire

FORMATS = quire.KVFormat.names()
DIM, KEYS = 128, 8192
REPEATS = 7


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def bf16(x: np.ndarray) -> quire.View:
    """A copy in bf16: the upper halves of f32, rounded."""
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16)


def medians(calls: dict[str, object], repeats: int = REPEATS) -> dict[str, float]:
    """Seconds of each call; all of them once per round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(all_[1:]) for name, all_ in times.items()}


def plan_call(q, k, v, **options):
    plan = quire.AttentionPlan(q, k, v, enable_gqa=True, **options)
    out = np.empty((*q.shape[:3], DIM), q.dtype)
    return lambda: plan.run(q, k, v, out=out)


def repeated(x: np.ndarray, batch: int) -> np.ndarray:
    """Batch entries of their own, with the same numbers."""
    return np.repeat(x, batch, axis=0)


def coded(x: np.ndarray, name: str, batch: int) -> quire.QuantizedTensor:
    one = quire.quantize(x, name)
    scales = one.scales
    if scales is not None and scales.ndim > 2:
        scales = repeated(scales, batch)
    return quire.QuantizedTensor(repeated(one.codes, batch), scales, one.format)


def decode(kv_heads: int = 8, q_heads: int = 32, formats: list[str] = FORMATS, batch: int = 16) -> None:
    batch = batch * 8 // kv_heads
    x = numbers((1, kv_heads, KEYS, DIM))
    q32 = numbers((batch, q_heads, 1, DIM), 1)
    q16 = bf16(q32)
    wide = repeated(bf16(x), batch), repeated(bf16(x), batch)  # keys and values lie apart, as in life
    base = {"f32 wide": plan_call(q32, *wide), "bf16 wide": plan_call(q16, *wide)}
    print(
        f"decode {q_heads}/{kv_heads} heads, D {DIM}, {batch} x {KEYS} keys: time over bf16 keys / time, by type of queries"
    )
    for name in formats:
        kv = coded(x, name, batch), coded(x, name, batch)
        found = medians(base | {"f32": plan_call(q32, *kv), "bf16": plan_call(q16, *kv)})
        ratios = {kind: found[f"{kind} wide"] / found[kind] for kind in ("f32", "bf16")}
        gigabytes = 2 * kv[0].nbytes / found["bf16"] / 1e9
        print(
            f"  {name:13} f32 {ratios['f32']:.2f}   bf16 {ratios['bf16']:.2f}"
            f"   ({found['bf16'] * 1e3:.1f} ms, {gigabytes:.1f} GB/s)",
            flush=True,
        )
        del kv


def paged(page_size: int, batch: int = 24) -> None:
    """A step of `attend` over pages in any order beside the dense call; and over pages of bf16."""
    x = numbers((KEYS, 8, DIM))
    q = numbers((batch, 32, DIM), 1)
    print(f"attend 32/8 heads, D {DIM}, {batch} x {KEYS} keys, pages of {page_size}: dense / paged, bf16 paged / paged")

    def attend_call(**formats):
        pages = batch * (KEYS // page_size)
        cache = quire.KVCache(1, 8, DIM, page_size=page_size, n_pages=pages, **formats)
        sequences = [cache.create() for _ in range(batch)]
        for begin in range(0, KEYS, page_size):  # sequences take turns, so that none has pages side by side
            cache.append(sequences, [page_size] * batch)
            rows = np.broadcast_to(x[begin : begin + page_size], (batch, page_size, 8, DIM)).reshape(-1, 8, DIM)
            cache.write(0, sequences, [page_size] * batch, rows, rows)
        out = np.empty_like(q)
        plan = quire.AttendPlan(cache, sequences, 32)
        return lambda: plan.run(0, q, out=out)

    base = attend_call(dtype="bfloat16")
    for name in ("int8", "q8_0", "int4", "fp8_e4m3"):
        kv = [coded(np.moveaxis(x, 1, 0)[None], name, batch) for _ in range(2)]
        calls = {
            "dense": plan_call(q[:, :, None], *kv),
            "bf16": base,
            name: attend_call(k_format=name, v_format=name),
        }
        found = medians(calls, 5)
        print(f"  {name:13} {found['dense'] / found[name]:.2f}   {found['bf16'] / found[name]:.2f}", flush=True)
        del kv, calls


def write() -> None:
    """A step of 256 tokens, one of each sequence, into a cache: time over that of the copy of bf16 into one of bf16."""
    batch, layers, tokens = 256, 2, 48
    x = bf16(numbers((batch, 8, DIM)))
    print(f"write {batch} tokens of 8 heads, D {DIM}, {layers} layers: time / time of bf16")

    def write_call(**formats):
        cache = quire.KVCache(layers, 8, DIM, page_size=16, n_pages=batch * 3, **formats)
        sequences = [cache.create() for _ in range(batch)]
        counts = [1] * batch

        def step():
            if cache.length(sequences[0]) == tokens:
                for sequence in sequences:
                    cache.truncate(sequence, 0)
            cache.append(sequences, counts)
            for layer in range(layers):
                cache.write(layer, sequences, counts, x, x)

        for _ in range(tokens):  # all memory has been touched then
            step()
        return step

    calls = {"bf16": write_call(dtype="bfloat16")}
    calls |= {name: write_call(k_format=name, v_format=name) for name in FORMATS if name != "int8_channel"}
    found = medians(calls, 40)
    for name in calls:
        print(
            f"  {name:13} {found[name] / found['bf16']:.2f}   {found[name] / layers * 1e6:.0f} us a layer", flush=True
        )


def prefill() -> None:
    length = 2048
    x = numbers((1, 8, length, DIM))
    print(f"prefill S {length}, 8 heads, D {DIM}, causal: time over plain keys / time")
    mask = quire.create_block_mask("q_idx >= kv_idx", None, None, length, length)
    q32, q16 = numbers((1, 8, length, DIM), 1), bf16(numbers((1, 8, length, DIM), 1))
    for name in FORMATS:
        kv = quire.quantize(x, name)
        found = medians(
            {
                "f32": plan_call(q32, x, x, block_mask=mask),
                "codes": plan_call(q32, kv, kv, block_mask=mask),
                "bf16": plan_call(q16, bf16(x), bf16(x), block_mask=mask),
                "codes16": plan_call(q16, kv, kv, block_mask=mask),
            },
            5,
        )
        print(
            f"  {name:13} f32 {found['f32'] / found['codes']:.2f}   bf16 {found['bf16'] / found['codes16']:.2f}",
            flush=True,
        )


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """In f64."""
    scores = np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k.astype(np.float64)) / np.sqrt(q.shape[3])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdims=True), v.astype(np.float64))


def quality() -> None:
    """Error of outputs, relative to their size, over that of bf16 keys and values."""
    length = 1024
    q = numbers((1, 8, 64, DIM), 1)
    for title, factor in (("normal", 1.0), ("heavy-tailed: 4 channels x 20", 20.0)):
        k, v = numbers((1, 8, length, DIM), 2), numbers((1, 8, length, DIM), 3)
        k[..., [3, 17, 64, 101]] *= factor
        v[..., [5, 40, 90, 127]] *= factor
        exact = attention(q, k, v)
        size = np.sqrt((exact**2).mean())

        def error(out: np.ndarray, exact: np.ndarray = exact, size: float = size) -> float:
            return float(np.sqrt(((out - exact) ** 2).mean()) / size)

        base = error(quire.flex_attention(q, bf16(k), bf16(v)))
        print(f"{title}: bf16 {base:.2e}; over that of bf16:")
        for name in FORMATS:
            for rotated in (False, True):
                k_coded, v_coded = (quire.quantize(x, name, rotated) for x in (k, v))
                found = error(quire.flex_attention(q, k_coded, v_coded))
                print(f"  {name + ('+hadamard' if rotated else ''):22} {found:.2e}  {found / base:.2f}")


def queries() -> None:
    """Error of calls with queries of 16 bits over codes that are multiplied as integers, against f64 over the same numbers, over that of
    rounding the outputs."""
    import ml_dtypes

    def error(name: str, dtype: type, length: int, dim: int, scale: float) -> float:
        k, v = (quire.quantize(numbers((1, 2, length, dim), seed), name) for seed in (2, 3))
        q = (scale * numbers((1, 2, 64, dim), 1)).astype(dtype)
        exact = attention(q, quire.dequantize(k), quire.dequantize(v))
        found = np.asarray(quire.flex_attention(q, k, v)).astype(np.float64)
        rounded = exact.astype(np.float32).astype(dtype).astype(np.float64)
        return float(np.sqrt(((found - exact) ** 2).mean() / ((rounded - exact) ** 2).mean()))

    print("queries of 16 bits over codes: error / error of rounding the exact outputs")
    shapes = ((128, 64, 1.0), (1024, 128, 1.0), (8192, 128, 1.0), (1024, 128, 4.0), (1024, 128, 0.2), (1024, 256, 1.0))
    for shape in shapes:
        length, dim, scale = shape
        bf16s = "  ".join(f"{name} {error(name, ml_dtypes.bfloat16, *shape):.2f}" for name in FORMATS)
        print(
            f"  {length:5} keys, D {dim:3}, queries x {scale:<4} f16: int8 {error('int8', np.float16, *shape):.2f}"
            f"   bf16: {bf16s}",
            flush=True,
        )


def main() -> None:
    wanted = sys.argv[1:] or ["decode", "prefill", "quality"]
    print(quire.info() if callable(quire.info) else "", flush=True)
    for name in wanted:
        what, _, argument = name.partition("=")
        if what == "decode":
            heads = int(argument or 8)
            decode(heads, 32)
        elif what == "paged":
            paged(int(argument or 16))
        else:
            {"prefill": prefill, "quality": quality, "queries": queries, "write": write}[what]()


if __name__ == "__main__":
    main()

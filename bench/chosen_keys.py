"""Chosen keys, weights of keys and latent keys against the same call without them, interleaved in one process.

    python bench/chosen_keys.py [--rows WORDS] [--rounds 7]

Every row names two calls; the result is the median of the ratios of their times over the rounds, and the median time of the
first. Rows: `decode` 2,048 chosen of 65,536 keys against all of them; `prefill` 4,096 queries with 512 chosen keys each against a
block mask of as many pairs, keys chosen at random and clustered, where all but every 16th query keeps nine keys of ten of the query
before; `top_k` the rate of top_k_keys in its products, to be compared with the peak that `quire info` gives, and
its scratch, once; `weights` what key_weights cost;
`latent` values that are a view of the keys against a copy of them, and over pages; bf16 needs the package ml_dtypes. Needs NumPy and the
package quire.
"""

import argparse
import resource
import statistics
import time

import numpy
import quire

RANDOM = numpy.random.default_rng(0)


def aligned(array):
    """A copy that begins at a line of the cache, as tensors of PyTorch do; NumPy's begin 16 bytes after a page."""
    memory = numpy.empty(array.nbytes + 64, numpy.uint8)
    begin = -memory.ctypes.data % 64
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def normal(*shape, dtype=numpy.float32):
    return aligned(RANDOM.standard_normal(shape, numpy.float32).astype(dtype))


def ratio(first, second, rounds):
    """Median of the times of `second` divided by those of `first`, and the median of `first`'s, in seconds."""
    first(), second()
    ratios, times = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        first()
        middle = time.perf_counter()
        second()
        end = time.perf_counter()
        ratios.append((end - middle) / (middle - begin))
        times.append(middle - begin)
    return statistics.median(ratios), statistics.median(times)


def lists_of(queries, keys, count):
    made = numpy.empty((1, queries, count), numpy.int32)
    for row in made[0]:
        row[:] = numpy.sort(RANDOM.choice(keys, count, replace=False))
    return made


def clustered_lists(queries, keys, count):
    made = numpy.empty((1, queries, count), numpy.int32)
    for i, row in enumerate(made[0]):
        kept = made[0, i - 1][RANDOM.random(count) < 0.9] if i % 16 else row[:0]
        others = RANDOM.permutation(numpy.setdiff1d(numpy.arange(keys), kept))
        row[:] = numpy.sort(numpy.concatenate([kept, others[: count - len(kept)]]))
    return made


def decode(rounds):
    for q_heads, kv_heads, dim, v_dim in ((32, 8, 128, 128), (8, 8, 128, 128), (16, 1, 576, 512)):
        q, k = normal(1, q_heads, 1, dim), normal(1, kv_heads, 65536, dim)
        v = normal(1, kv_heads, 65536, v_dim) if v_dim == dim else k[..., :v_dim]
        lists = lists_of(1, 65536, 2048)
        result, seconds = ratio(
            lambda: quire.flex_attention(q, k, v, enable_gqa=True, key_indices=lists),
            lambda: quire.flex_attention(q, k, v, enable_gqa=True),
            rounds,
        )
        yield f"decode {q_heads}/{kv_heads} heads {dim}/{v_dim}: 2,048 of 65,536 keys", result, seconds


def prefill(rounds):
    for q_heads, kv_heads, dim in ((16, 2, 128), (16, 1, 128), (8, 8, 128)):
        q, k, v = normal(1, q_heads, 4096, dim), normal(1, kv_heads, 4096, dim), normal(1, kv_heads, 4096, dim)
        blocks = quire.create_block_mask("(q_idx // 128 + kv_idx // 128) % 8 == 0", None, None, 4096, 4096)
        for name, make in (("at random", lists_of), ("clustered", clustered_lists)):
            lists = make(4096, 4096, 512)
            result, seconds = ratio(
                lambda: quire.flex_attention(q, k, v, enable_gqa=True, key_indices=lists),  # noqa: B023
                lambda: quire.flex_attention(q, k, v, block_mask=blocks, enable_gqa=True),  # noqa: B023
                rounds,
            )
            text = f"prefill {q_heads}/{kv_heads} heads, 4,096 queries of 512 keys, {name}"
            yield f"{text}: block-sparse / chosen", result, seconds


def top_k(_rounds):
    """Once; the scratch is what the largest resident size grows by, beside the lists themselves."""
    queries, keys, heads, dim, count = 8192, 8192, 64, 128, 2048
    q, k, weights = normal(1, queries, heads, dim), normal(1, keys, dim), normal(1, queries, heads)
    quire.top_k_keys(q[:, :64], k, weights[:, :64], count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    lists = quire.top_k_keys(q, k, weights, count)
    seconds = time.perf_counter() - begin
    scratch = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 - lists.nbytes / 2**20
    flops = 2 * queries * keys * heads * dim / seconds / 1e9
    text = f"top_k_keys {queries:,} x {keys:,}, {heads} heads, k = {count:,}, scratch {scratch:.0f} MiB; GFLOP/s"
    yield text, flops, seconds


def weights(rounds):
    q, k, v = normal(1, 8, 8192, 128), normal(1, 8, 8192, 128), normal(1, 8, 8192, 128)
    causal = quire.create_block_mask("q_idx >= kv_idx", None, None, 8192, 8192)
    for name, queries in (("the last 64 queries", (8128, 8192)), ("all queries", None)):
        request = quire.AuxRequest(key_weights=True, key_weights_queries=queries)
        result, seconds = ratio(
            lambda: quire.flex_attention(q, k, v, block_mask=causal),
            lambda: quire.flex_attention(q, k, v, block_mask=causal, return_aux=request),  # noqa: B023
            max(rounds // 2, 3),
        )
        yield f"key_weights of {name}, prefill of 8,192: with / without", result, seconds
    q, k, v = normal(1, 32, 1, 128), normal(1, 8, 32768, 128), normal(1, 8, 32768, 128)
    plan = quire.AttentionPlan(q, k, v, enable_gqa=True)
    out, sums = numpy.empty_like(q), numpy.empty((1, 32, 32768), numpy.float32)
    result, seconds = ratio(
        lambda: plan.run(q, k, v, out=out), lambda: plan.run(q, k, v, out=out, key_weights=sums), rounds * 3
    )
    yield "key_weights in decode, 32/8 heads, 32,768 keys, planned: with / without", result, seconds


def latent_dtypes():
    """f32, and bf16 if the package ml_dtypes is there, since NumPy has none."""
    try:
        import ml_dtypes
    except ImportError:
        return (numpy.float32,)
    return numpy.float32, ml_dtypes.bfloat16


def latent_cache(k, page_size=64):
    """The same keys in pages of a cache that keeps no values."""
    keys, dtype = k.shape[2], "f32" if k.dtype == numpy.float32 else "bf16"
    pages = keys // page_size + 1
    cache = quire.KVCache(
        layers=1, kv_heads=1, head_dim=576, v_head_dim=512, dtype=dtype, page_size=page_size, n_pages=pages, v_in_k=True
    )
    sequence = cache.create()
    cache.append(sequence, counts=keys, k=k.transpose(0, 2, 1, 3))
    return cache, sequence


def latent(rounds):
    for dtype in latent_dtypes():
        name = numpy.dtype(dtype).name
        for heads, q_len in ((16, 1), (64, 1), (128, 1), (16, 4), (16, 256)):
            keys = 32768 if q_len <= 4 else 2048
            q, k = normal(1, heads, q_len, 576, dtype=dtype), normal(1, 1, keys, 576, dtype=dtype)
            copied = aligned(k[..., :512])
            text = f"latent keys, {heads} heads, {q_len} queries, {keys} keys of 576/512, {name}"
            result, seconds = ratio(
                lambda: quire.flex_attention(q, k, k[..., :512], enable_gqa=True),
                lambda: quire.flex_attention(q, k, copied, enable_gqa=True),
                rounds,
            )
            rate = 2 * heads * q_len * keys * (576 + 512) / seconds / 1e9
            yield f"{text}, {rate:.0f} GFLOP/s: copied / view", result, seconds
            if q_len > 1:
                continue
            cache, sequence = latent_cache(k)
            rows = numpy.ascontiguousarray(q[0].swapaxes(0, 1))
            result, seconds = ratio(
                lambda: quire.attend(cache, 0, sequence, rows),
                lambda: quire.flex_attention(q, k, k[..., :512], enable_gqa=True),
                rounds,
            )
            yield f"{text}, pages of 64: dense / pages", result, seconds


ROWS = dict(decode=decode, prefill=prefill, top_k=top_k, weights=weights, latent=latent)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    for name in arguments.rows:
        for text, result, seconds in ROWS[name](arguments.rounds):
            print(f"{text}: {result:.2f} ({seconds * 1e3:.2f} ms)", flush=True)


if __name__ == "__main__":
    main()

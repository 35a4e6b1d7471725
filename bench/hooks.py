"""What sinks, weights by a formula and rotation on read cost on top of the same call without them.

Both calls are plans over the same arrays and take turns in one process; the ratio of the medians is the result. Needs NumPy and the
package quire; bf16 needs ml_dtypes:

    python bench/hooks.py [--threads 1] [--rounds 15] [--rows sinks]
"""

import argparse
import statistics
import time

import ml_dtypes
import numpy
import quire

DTYPES = {"f32": numpy.float32, "bf16": ml_dtypes.bfloat16}
SOFT_CAP = "30.0 * tanh(score / 30.0)"


def hooks_of(name, heads):
    """(options of the plain call, options of the other)."""
    if name == "sinks":
        return {}, {"sinks": numpy.zeros(heads, numpy.float32)}
    if name == "sigmoid":
        return {"score_mod": SOFT_CAP}, {"weight_mod": "sigmoid(score - 8.0)"}
    if name == "rope tables":
        angles = numpy.arange(8192)[:, None] * 10000.0 ** (-numpy.arange(64) / 64)
        cos, sin = (table.astype(numpy.float32) for table in (numpy.cos(angles), numpy.sin(angles)))
        return {}, {"rope": quire.Rope(cos=cos, sin=sin)}
    return {}, {"rope": quire.Rope()}


# name, dtype, batch, query heads, key heads, queries, keys; heads of 128
ROWS = [
    ("sinks", "f32", 1, 8, 2, 1024, 1024),
    ("sinks", "f32", 4, 32, 8, 1, 8192),
    ("sigmoid", "f32", 1, 8, 2, 1024, 1024),
    ("sigmoid", "f32", 4, 32, 8, 1, 8192),
    ("rope", "f32", 1, 8, 2, 1024, 1024),
    ("rope", "f32", 4, 32, 8, 1, 8192),
    ("rope", "bf16", 4, 32, 8, 1, 8192),
    ("rope tables", "f32", 4, 32, 8, 1, 8192),
]


def timed(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def measure(row, rounds):
    name, dtype, batch, q_heads, kv_heads, q_len, kv_len = row
    random = numpy.random.default_rng(0)
    q, k, v = (
        random.standard_normal((batch, heads, length, 128), numpy.float32).astype(DTYPES[dtype])
        for heads, length in ((q_heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len))
    )
    mask = quire.create_block_mask("q_idx >= kv_idx", None, None, q_len, kv_len, q_begin=kv_len - q_len)
    plans = [quire.AttentionPlan(q, k, v, block_mask=mask, enable_gqa=True, **one) for one in hooks_of(name, q_heads)]
    out = numpy.empty_like(q)
    times = [[], []]
    for _ in range(rounds + 2):
        for plan, found in zip(plans, times):
            found.append(timed(lambda: plan.run(q, k, v, out=out)))
    plain, other = (statistics.median(found[2:]) for found in times)
    return plain * 1e3, other * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", default="", help="only rows whose name begins with this")
    arguments = parser.parse_args()
    quire.set_num_threads(arguments.threads)
    print(
        "| | dtype | B x Hq/Hkv, queries x keys | without ms | with ms | ratio |\n| --- | --- | --- | --- | --- | --- |"
    )
    for row in ROWS:
        if not row[0].startswith(arguments.rows):
            continue
        plain, other = measure(row, arguments.rounds)
        name, dtype, batch, q_heads, kv_heads, q_len, kv_len = row
        sizes = f"{batch} x {q_heads}/{kv_heads}, {q_len:,} x {kv_len:,}"
        print(f"| {name} | {dtype} | {sizes} | {plain:.2f} | {other:.2f} | {other / plain:.3f} |", flush=True)


if __name__ == "__main__":
    main()

"""What context parallel attention takes on paper: time and bytes per rank for 2 to 256 ranks, links of 10, 100 and 400 Gbit/s and
64k to 4M tokens, from exact counts of the plan (plan_shards and its report) and this machine's measured share of its peak.

    python bench/context_parallel_model.py [--quick] [--gflops N] [--json FILE] [--svg FILE]
    python bench/context_parallel_model.py --check      runs 2 and 4 ranks over gloo and compares the bytes they send with the counts

Time of a rank: the larger of computing its visible pairs and receiving its keys, and one piece more, which nothing hides. Not
modelled: switches that many ranks share, and everything of a model that is not attention.
"""

import argparse
import html
import json
import pathlib
import sys
import tempfile
import time

import torch
from quire.torch import context_parallel as cp
from quire.torch import create_block_mask, flex_attention

HEADS, KV_HEADS, DIM, BYTES = 32, 8, 128, 2  # of a model with grouped queries, in bf16
WINDOW = 4096
LINKS = (10, 100, 400)  # Gbit/s


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def window(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW)


def documents_of(length, seed=1):
    """Documents of some thousand tokens, lognormal, up to the length."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (torch.randn(length // 100 + 1, generator=generator) + 8).exp().long() + 100
    ids = torch.repeat_interleave(torch.arange(len(sizes)), sizes)[:length]

    def documents(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (ids[q_idx] == ids[kv_idx])

    return documents


RULES = {"causal": lambda length: causal, "window": lambda length: window, "documents": documents_of}


def measured_flops(dtype=torch.bfloat16, length=2048, repetitions=3):
    """Multiply-adds of attention a second here, counted twice, full attention over all of this process' threads."""
    query, key, value = (torch.randn(1, heads, length, DIM, dtype=dtype) for heads in (8, 2, 2))
    best = float("inf")
    for _ in range(repetitions):
        begin = time.perf_counter()
        flex_attention(query, key, value, enable_gqa=True)
        best = min(best, time.perf_counter() - begin)
    return 4 * 8 * length * length * DIM / best


def key_bytes(tokens, kv_heads=KV_HEADS, dim=DIM, size=BYTES):
    """Of keys and values."""
    return tokens * kv_heads * 2 * dim * size


def gradient_bytes(tokens, kv_heads=KV_HEADS, dim=DIM):
    """Of what goes back in the backward pass, f32."""
    return tokens * kv_heads * 2 * dim * 4


def head_bytes(tokens, length, ranks, heads=HEADS, kv_heads=KV_HEADS, dim=DIM, size=BYTES):
    """What a rank with so many tokens receives where heads travel, forward: queries, keys and values of its heads from others, and
    of its tokens the outputs and lse (f32) of others' heads."""
    mine, group = kv_heads // ranks, heads // kv_heads
    there = (length - tokens) * mine * (group + 2) * dim * size
    return there + tokens * (kv_heads - mine) * group * (dim * size + 4)


def bytes_received(shards, report, length, ranks):
    """Of each rank: of keys, or of heads where these are balanced and fewer."""
    keys = [key_bytes(tokens) for tokens in report["received"]]
    heads = [head_bytes(tokens, length, ranks) for tokens in report["tokens"]]
    if KV_HEADS % ranks == 0 and sum(heads) < sum(keys):
        return "heads", heads
    return "keys", keys


def predict(rule, mask, length, ranks, flops):
    """One row: a plan's counts, and the time of its slowest rank for every link, in seconds."""
    shards = cp.plan_shards(mask, ranks)
    report = cp.report(shards, mask)
    exchange, received = bytes_received(shards, report, length, ranks)
    compute = [4 * pairs * HEADS * DIM / flops for pairs in report["pairs"]]
    row = {
        "rule": rule,
        "tokens": length,
        "ranks": ranks,
        "balance": report["balance"],
        "exchange": exchange,
        "share_of_gathering": sum(received) / key_bytes((ranks - 1) * length),
        "bytes_most": max(received),
        "bytes_all": sum(received),
        "compute_seconds": max(compute),
        "one_rank_seconds": sum(compute),
    }
    for link in LINKS:
        second = link * 1e9 / 8
        times = [
            max(work, size / second) + min(size, key_bytes(shards.piece_length)) / second
            for work, size in zip(compute, received)
        ]
        row[f"seconds_{link}"] = max(times)
        row[f"speedup_{link}"] = sum(compute) / max(times)
    return row


def table(flops, lengths, rank_counts):
    for rule in RULES:
        for length in lengths:
            mask = create_block_mask(RULES[rule](length), None, None, length, length, device="cpu")
            for ranks in rank_counts:
                yield predict(rule, mask, length, ranks, flops)


def print_row(row):
    times = " ".join(f"{row[f'seconds_{link}']:9.3f} s ({row[f'speedup_{link}']:5.1f}x)" for link in LINKS)
    print(
        f"{row['rule']:10} {row['tokens']:>9,} tokens {row['ranks']:>4} ranks  balance {row['balance']:.3f}  "
        f"{100 * row['share_of_gathering']:5.1f} % of gathering ({row['exchange']})  {row['bytes_most'] / 1e6:9.1f} MB a rank  {times}",
        flush=True,
    )


# ---- counts against real runs


def count_head_bytes(rank, ranks, rule, length):
    """The same where heads travel: as many key heads as query heads, f32."""
    from quire.torch.context_parallel.group import Group

    mask = create_block_mask(RULES[rule](length), None, None, length, length, device="cpu")
    shards = cp.plan_shards(mask, ranks)
    heads, dim, tokens = 4, 16, shards.tokens(rank)
    inputs = [torch.randn(1, heads, tokens, dim, requires_grad=True) for _ in range(3)]
    out = cp.flex_attention(*inputs, None, mask, shards=shards, exchange="heads")
    forward = Group.sent_bytes
    out.sum().backward()
    counts = [head_bytes(shards.tokens(one), length, ranks, heads, heads, dim, 4) for one in range(ranks)]
    numbers = 8 * dim + 1  # q, k, v, out, lse and d_out there, three gradients back
    back = sum((length - shards.tokens(one)) * heads // ranks * numbers * 4 for one in range(ranks))
    return forward, Group.sent_bytes - forward, sum(counts), back


def count_bytes(rank, ranks, rule, length):
    """What this rank sends forward and backward, and what the plan says all send."""
    from quire.torch.context_parallel.group import Group

    mask = create_block_mask(RULES[rule](length), None, None, length, length, device="cpu")
    shards = cp.plan_shards(mask, ranks)
    heads, kv_heads, dim = 2, 1, 16
    tokens = shards.tokens(rank)
    inputs = [torch.randn(1, count, tokens, dim, requires_grad=True) for count in (heads, kv_heads, kv_heads)]
    out = cp.flex_attention(*inputs, None, mask, shards=shards, enable_gqa=True, exchange="keys")
    forward = Group.sent_bytes
    out.sum().backward()
    backward = Group.sent_bytes - forward
    received = sum(cp.report(shards, mask)["received"])
    keys = key_bytes(received, kv_heads, dim, 4)
    return forward, backward, keys, keys + gradient_bytes(received, kv_heads, dim)


def check(length=8192):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/python/torch"))
    from context_ranks import on_ranks

    cases = [(rule, count_bytes) for rule in RULES] + [("causal", count_head_bytes)]
    for rule, count in cases:
        for ranks in (2, 4):
            with tempfile.TemporaryDirectory() as folder:
                found = on_ranks(pathlib.Path(folder), count, ranks, rule, length)
            forward, backward = (sum(one[i] for one in found) for i in (0, 1))
            assert forward == found[0][2], (rule, ranks, forward, found[0][2])
            assert backward == found[0][3], (rule, ranks, backward, found[0][3])
            what = "keys" if count is count_bytes else "heads"
            print(
                f"{rule}, {ranks} ranks, {what}: {forward:,} bytes forward, {backward:,} backward, as counted",
                flush=True,
            )


# ---- the picture


def draw(rows, path, link=10):
    """Speed-up over one rank against ranks, a line for each rule, at the shortest length, which has fewest pieces to share."""
    shortest = min(row["tokens"] for row in rows)
    width, height, left, top, colours = 640, 360, 60, 40, ("#0072b2", "#e69f00", "#009e73")
    ranks = sorted({row["ranks"] for row in rows})
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">',
        "<style>text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#20242a}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="22">Predicted speed-up over one rank, {shortest:,} tokens, {link} Gbit/s</text>',
    ]

    def place(count, speed):
        def share(x):
            return (x.bit_length() - 1) / (max(ranks).bit_length() - 1)

        up = max(0.0, min(1.0, torch.log2(torch.tensor(float(speed))).item() / (max(ranks).bit_length() - 1)))
        return left + share(count) * (width - left - 120), height - 40 - up * (height - 40 - top)

    for count in ranks:
        x, y = place(count, count)
        parts.append(f'<text x="{x:.0f}" y="{height - 18}" text-anchor="middle">{count}</text>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{count}</text>')
        parts.append(f'<path d="M{left} {y:.0f}H{width - 120}" stroke="#e0e4e8"/>')
    for colour, rule in zip(colours, RULES):
        line = [row for row in rows if row["rule"] == rule and row["tokens"] == shortest]
        points = [place(row["ranks"], row[f"speedup_{link}"]) for row in line]
        path_text = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path d="M{path_text}" stroke="{colour}" stroke-width="2" fill="none"/>')
        parts.append(f'<text x="{points[-1][0] + 8:.0f}" y="{points[-1][1] + 4:.0f}">{html.escape(rule)}</text>')
    pathlib.Path(path).write_text("\n".join([*parts, "</svg>"]) + "\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--check", action="store_true", help="compare counts with what 2 and 4 ranks send")
    arguments.add_argument("--quick", action="store_true", help="fewer lengths and ranks")
    arguments.add_argument("--gflops", type=float, help="of attention on one rank, instead of measuring it here")
    arguments.add_argument("--json", help="where to write the rows")
    arguments.add_argument("--svg", help="where to draw them")
    given = arguments.parse_args()
    if given.check:
        return check()
    flops = given.gflops * 1e9 if given.gflops else measured_flops()
    print(f"attention on one rank: {flops / 1e9:.0f} GF/s ({'given' if given.gflops else 'measured here'})")
    lengths = (65536, 1048576) if given.quick else (65536, 262144, 1048576, 4194304)
    ranks = (2, 4, 16) if given.quick else (2, 4, 8, 16, 32, 64, 128, 256)
    rows = []
    for row in table(flops, lengths, ranks):
        print_row(row)
        rows.append(row)
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(rows, indent=1) + "\n")
    if given.svg:
        draw(rows, given.svg)


if __name__ == "__main__":
    main()

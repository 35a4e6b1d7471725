"""Errors of Quire and of PyTorch against f64 on the same tensors: outputs and gradients of attention.

Both are given the same random normal tensors (seeds fixed), with S keys and as many queries, at 8,192 keys and more the
last 1,024 of them, so that the reference stays affordable. The reference is the same formula in f64 on those tensors
as they are rounded to their dtype. An error is taken over all elements: its root mean square, and its largest. Torch
is its flash kernel and its math kernel; soft-capping, which scaled_dot_product_attention cannot express, is written out
with torch operations in the same dtype instead. The result is Quire's error divided by torch's: geometric mean over the
seeds, and the worst seed. Below 1: Quire is more exact. Needs torch 2.13 and the package quire:

    python bench/accuracy.py [--quick] [--rows WORDS] [--seeds 8] [--json F] [--markdown F] [--check]

--quick takes lengths up to 2,048. --check fails if a row of 128 keys or more has a mean RMS ratio to flash above 1.00,
or a mean ratio of the largest errors above 1.25; soft-capping, of which the peer is not flash, is not checked.
"""

import argparse
import dataclasses
import json
import math
import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import quire.torch as quire_torch  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
CAP = 20.0
WINDOW = 256
BLOCK = 1024  # queries at a time, of the reference and of the math kernel
LONG = 8192  # from here on the last BLOCK queries only
PARTS = ("out", "dq", "dk", "dv")


@dataclasses.dataclass(frozen=True)
class Row:
    """One problem: `length` keys, `scale` times 1 / sqrt(dim)."""

    length: int
    dim: int
    dtype: str = "f32"
    kind: str = "full"  # causal, window, soft-cap, GQA, broadcast (one key head for 4 batch entries of 8 heads)
    scale: int = 1

    @property
    def heads(self):
        """Of queries and of keys: more where rows are short, so that there is something to average over."""
        heads = max(1, min(16, 2048 // self.length))
        return {"GQA": (8, 2), "broadcast": (32, 1)}.get(self.kind, (heads, heads))

    @property
    def queries(self):
        """How many of them: the last ones of `length`."""
        return self.length if self.length < LONG else BLOCK

    @property
    def name(self):
        times = f" x{self.scale}" if self.scale != 1 else ""
        return f"{self.kind} S={self.length:,} D={self.dim}{times}"

    @property
    def factor(self):
        return self.scale / math.sqrt(self.dim)


def rows(longest):
    """Each dtype: lengths, dims, scales and kinds around S=2,048, D=64."""
    problems = []
    for length in (16, 64, 128, 512, 2048, 8192, 32768):
        problems += [(length, 64, "full", 1), (length, 64, "causal", 1)]
    for dim in (32, 96, 128, 256):
        problems += [(128, dim, "full", 1), (512, dim, "causal", 1), (2048, dim, "full", 1)]
    for length, dim in ((128, 64), (512, 128), (2048, 64), (2048, 256)):
        problems.append((length, dim, "full", 4))
    for dim in (64, 128):
        problems += [(2048, dim, "window", 1), (2048, dim, "soft-cap", 1), (512, dim, "GQA", 1)]
    problems += [
        (2048, 64, "causal", 4),
        (512, 64, "soft-cap", 4),
        (128, 64, "broadcast", 1),
        (512, 64, "broadcast", 1),
    ]
    return [Row(s, d, dtype, kind, x) for s, d, kind, x in problems if s <= longest for dtype in DTYPES]


# ---- the problem of a seed, in every hand


def tensors(row, seed):
    """q, k, v and the gradient of the output."""
    generator = torch.Generator().manual_seed(1000 + seed)
    q_heads, kv_heads = row.heads
    sizes = ((q_heads, row.queries), (kv_heads, row.length), (kv_heads, row.length), (q_heads, row.queries))
    shapes = [(1, *size, row.dim) for size in sizes]
    return [torch.randn(shape, generator=generator).to(DTYPES[row.dtype]) for shape in shapes]


def visible(row, begin, end):
    """[end - begin, length] of the queries from `begin` on, or None where everything is."""
    if row.kind not in ("causal", "window"):
        return None
    first = row.length - row.queries
    q_idx, kv_idx = first + torch.arange(begin, end)[:, None], torch.arange(row.length)
    seen = q_idx >= kv_idx
    return seen & (q_idx - kv_idx <= WINDOW) if row.kind == "window" else seen


def reference(row, q, k, v, d_out):
    """Outputs and gradients in f64, BLOCK queries at a time."""
    q, k, v, d_out = (t[0].double() for t in (q, k, v, d_out))
    group = q.shape[0] // k.shape[0]
    out, dq = torch.empty_like(q), torch.empty_like(q)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for head in range(q.shape[0]):
        keys, values = k[head // group], v[head // group]
        for begin in range(0, row.queries, BLOCK):
            part = slice(begin, min(begin + BLOCK, row.queries))
            scores = q[head, part] @ keys.T * row.factor
            slope = None
            if row.kind == "soft-cap":
                bent = torch.tanh(scores / CAP)
                scores, slope = CAP * bent, 1 - bent * bent
            seen = visible(row, part.start, part.stop)
            if seen is not None:
                scores.masked_fill_(~seen, -math.inf)
            weights = torch.softmax(scores, -1)
            out[head, part] = weights @ values
            dv[head // group] += weights.T @ d_out[head, part]
            d_weights = d_out[head, part] @ values.T
            delta = (weights * d_weights).sum(-1, keepdim=True)
            d_scores = weights * (d_weights - delta) * row.factor
            if slope is not None:
                d_scores *= slope
            dq[head, part] = d_scores @ keys
            dk[head // group] += d_scores.T @ q[head, part]
    return [t[None] for t in (out, dq, dk, dv)]


def by_autograd(call, inputs, d_out):
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = call(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, d_out)]


def by_quire(row, q, k, v, d_out):
    first = row.length - row.queries
    masks = {
        "causal": lambda b, h, q_idx, kv_idx: q_idx + first >= kv_idx,
        "window": lambda b, h, q_idx, kv_idx: (q_idx + first >= kv_idx) & (q_idx + first - kv_idx <= WINDOW),
        "broadcast": lambda b, h, q_idx, kv_idx: kv_idx >= 0,  # torch wants a mask where batches differ
    }
    mask = None
    if row.kind in masks:
        batch = 4 if row.kind == "broadcast" else None
        mask = quire_torch.create_block_mask(masks[row.kind], batch, None, row.queries, row.length, device="cpu")
    score = (lambda s, b, h, q_idx, kv_idx: CAP * torch.tanh(s / CAP)) if row.kind == "soft-cap" else None

    def call(q, k, v):
        shape = (4, 8, *q.shape[2:]) if row.kind == "broadcast" else q.shape
        return quire_torch.flex_attention(
            q.view(shape), k, v, score_mod=score, block_mask=mask, scale=row.factor, enable_gqa=True
        ).view(q.shape)

    return by_autograd(call, (q, k, v), d_out)


def by_flash(row, q, k, v, d_out):
    if row.kind == "soft-cap":
        return by_autograd(lambda q, k, v: written_out(row, q, k, v), (q, k, v), d_out)
    group = q.shape[1] // k.shape[1]
    is_causal = row.kind == "causal" and row.queries == row.length
    mask = None if is_causal else visible(row, 0, row.queries)

    def call(q, k, v):
        k, v = (t.repeat_interleave(group, 1) for t in (k, v)) if group > 1 else (k, v)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, scale=row.factor)

    return by_autograd(call, (q, k, v), d_out)


def written_out(row, q, k, v):
    scores = q @ k.transpose(-1, -2) * row.factor
    return torch.softmax(CAP * torch.tanh(scores / CAP), -1) @ v


def by_math(row, q, k, v, d_out):
    """BLOCK queries at a time: rows do not depend on each other. Gradients of keys and values are added up in f64, so
    the blocks cost torch nothing."""
    if row.kind == "soft-cap":
        return None
    group = q.shape[1] // k.shape[1]
    parts, sums = [], [torch.zeros_like(t, dtype=torch.float64) for t in (k, v)]
    for begin in range(0, row.queries, BLOCK):
        end = min(begin + BLOCK, row.queries)
        mask = visible(row, begin, end)

        def call(q, k, v, mask=mask):
            k, v = (t.repeat_interleave(group, 1) for t in (k, v)) if group > 1 else (k, v)
            with sdpa_kernel(SDPBackend.MATH):
                return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=row.factor)

        out, dq, dk, dv = by_autograd(call, (q[:, :, begin:end], k, v), d_out[:, :, begin:end])
        parts.append((out, dq))
        sums = [sums[0] + dk, sums[1] + dv]
    out, dq = (torch.cat(t, 2) for t in zip(*parts))
    return [out, dq, *(t.to(q.dtype) for t in sums)]


# ---- errors


def errors(got, want):
    """(RMS, largest) of each part."""
    differences = [(g.double() - w).abs() for g, w in zip(got, want)]
    return {p: (d.square().mean().sqrt().item(), d.max().item()) for p, d in zip(PARTS, differences)}


def ratios(ours, theirs):
    """part -> ratios of one seed: of RMS and of the largest error. Both 0 (the sum of a row is exact): 1."""
    return {p: tuple(a / b if b else 1.0 if not a else math.inf for a, b in zip(ours[p], theirs[p])) for p in PARTS}


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def run(row, seeds):
    peers = {"flash": by_flash, "math": by_math}
    per_seed = {name: [] for name in peers}
    for seed in range(seeds):
        q, k, v, d_out = tensors(row, seed)
        want = reference(row, q, k, v, d_out)
        ours = errors(by_quire(row, q, k, v, d_out), want)
        for name, peer in peers.items():
            got = peer(row, q, k, v, d_out)
            if got is not None:
                per_seed[name].append(ratios(ours, errors(got, want)))
    result = {"row": row.name, "dtype": row.dtype, "length": row.length, "seeds": seeds}
    for name, seen in per_seed.items():
        if not seen:
            continue
        result[name] = {}
        for part in PARTS:
            rms, most = zip(*(s[part] for s in seen))
            result[name][part] = {
                "rms": geometric_mean(rms),
                "rms_worst": max(rms),
                "largest": geometric_mean(most),
                "largest_worst": max(most),
            }
    return result


def line(result):
    cells = []
    for name in ("flash", "math"):
        for part in PARTS if name in result else ():
            r = result[name][part]
            cells.append(
                f"{part} {r['rms']:.2f} ({r['rms_worst']:.2f}) / {r['largest']:.2f} ({r['largest_worst']:.2f})"
            )
    return f"{result['row']:<28} {result['dtype']:<5} " + "  ".join(cells)


def markdown(results):
    """One line a problem: of each dtype the output and the worst of the three gradients, against flash."""
    lines = [
        "| RMS error (largest error), Quire ÷ torch | " + " | ".join(f"{d} | {d} gradients" for d in DTYPES) + " |",
        "| --- |" + " --- |" * (2 * len(DTYPES)),
    ]
    problems = dict.fromkeys(r["row"] for r in results)
    found = {(r["row"], r["dtype"]): r["flash"] for r in results}
    for problem in problems:
        cells = []
        for dtype in DTYPES:
            for parts in (PARTS[:1], PARTS[1:]):
                of = found.get((problem, dtype))
                rms, most = (max(of[p][key] for p in parts) if of else None for key in ("rms", "largest"))
                cells.append(f"{rms:.2f} ({most:.2f})" if of else "")
        lines.append(f"| {problem} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def failures(results):
    return [
        f"{r['row']} {r['dtype']} {part}: RMS {r['flash'][part]['rms']:.3f}, largest {r['flash'][part]['largest']:.3f}"
        for r in results
        for part in PARTS
        if r["length"] >= 128
        and not r["row"].startswith("soft-cap")
        and (r["flash"][part]["rms"] > 1.0 or r["flash"][part]["largest"] > 1.25)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", default="", help="only rows with all of these words: causal S=512 f32")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--json")
    parser.add_argument("--markdown")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    words = set(options.rows.split())
    chosen = [r for r in rows(2048 if options.quick else 32768) if words <= {*r.name.split(), r.dtype}]
    print(
        f"Quire ÷ torch {torch.__version__}: RMS mean (worst seed) / largest mean (worst seed); {options.seeds} seeds"
    )
    results = []
    for row in chosen:
        results.append(run(row, options.seeds))
        print(line(results[-1]), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(markdown(results) + "\n")
    failed = failures(results)
    for failure in failed:
        print("above the limit:", failure)
    return 1 if options.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())

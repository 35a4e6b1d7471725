"""Quire against PyTorch on the same tensors: scaled_dot_product_attention and its backward pass, compiled flex_attention,
create_block_mask, nested tensors; and calls over pages against the same over dense keys.

Both sides run in this process, one after the other, again and again; medians are compared and the ratio is the result
(above 1: Quire is faster). Rows where torch wins stay in the table. Needs torch 2.13 and the package quire:

    python bench/compare_torch.py [--groups prefill,flex,…] [--threads 2] [--repetitions 7] [--json F] [--chart F.png]
"""

import argparse
import itertools
import json
import os
import sys

# Torch's threads otherwise spin for a while after each of its calls, in the time of whatever is measured next.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import quire  # noqa: E402
import quire.torch as quire_torch  # noqa: E402
import torch  # noqa: E402
import torch.nn.attention.experimental._paged_attention as torch_paged  # noqa: E402
import torch.nn.attention.flex_attention as torch_flex  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from comparison import Row, chart, table  # noqa: E402

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def qkv(heads, length, dim, dtype):
    return [torch.randn(1, heads, length, dim).to(dtype) for _ in range(3)]


# ---- mods, written the way torch users write them


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def mods(heads, length):
    """name -> (score mod, mask mod)"""
    slopes = torch.exp2(-torch.arange(1, heads + 1) * 8.0 / heads)
    document = (torch.arange(length) * 7 // length) ** 2
    table = torch.randn(2 * length - 1)
    return {
        "causal": (None, causal),
        "window 256": (None, lambda b, h, q, kv: (q >= kv) & (q - kv <= 256)),
        "document": (None, lambda b, h, q, kv: (q >= kv) & (document[q] == document[kv])),
        "ALiBi": (lambda s, b, h, q, kv: s + slopes[h] * (kv - q), causal),
        "soft-cap": (lambda s, b, h, q, kv: 20 * torch.tanh(s / 20), causal),
        "relative bias": (lambda s, b, h, q, kv: s + table[q - kv + length - 1], causal),
    }


# ---- groups of rows


def prefill():
    """Against scaled_dot_product_attention: 8 heads, 2,048 queries and keys."""
    for dtype, dim, is_causal in itertools.product(DTYPES, (64, 128), (False, True)):
        q, k, v = qkv(8, 2048, dim, DTYPES[dtype])
        mask = quire_torch.create_block_mask(causal, None, None, 2048, 2048) if is_causal else None
        yield Row(
            "prefill",
            f"{'causal' if is_causal else 'full'} D={dim} {dtype}",
            lambda q=q, k=k, v=v, c=is_causal: F.scaled_dot_product_attention(q, k, v, is_causal=c),
            lambda q=q, k=k, v=v, m=mask: quire_torch.flex_attention(q, k, v, block_mask=m),
            peer="SDPA",
        )


def leaves(heads, length, dim):
    """q, k and v that want gradients, and a gradient of the output."""
    with torch.inference_mode(False):
        return [t.requires_grad_() for t in qkv(heads, length, dim, torch.float32)], torch.randn(1, heads, length, dim)


def gradients(call, inputs, d_out):
    """One forward and one backward pass."""
    with torch.inference_mode(False), torch.enable_grad():
        torch.autograd.grad(call(*inputs), inputs, d_out)


def backward():
    """Forward and backward against scaled_dot_product_attention's: 8 heads, 2,048 queries and keys, f32."""
    for dim, is_causal in itertools.product((64, 128), (False, True)):
        inputs, d_out = leaves(8, 2048, dim)
        mask = quire_torch.create_block_mask(causal, None, None, 2048, 2048) if is_causal else None

        def theirs(q, k, v, c=is_causal):
            return F.scaled_dot_product_attention(q, k, v, is_causal=c)

        def ours(q, k, v, m=mask):
            return quire_torch.flex_attention(q, k, v, block_mask=m)

        yield Row(
            "backward",
            f"{'causal' if is_causal else 'full'} D={dim} f32, forward + backward",
            lambda c=theirs, i=inputs, d=d_out: gradients(c, i, d),
            lambda c=ours, i=inputs, d=d_out: gradients(c, i, d),
            peer="SDPA",
        )


def flex():
    """Against torch.compile(flex_attention): 8 heads, 2,048 queries and keys, D=64. Compiling is not timed."""
    for dtype in DTYPES:
        q, k, v = qkv(8, 2048, 64, DTYPES[dtype])
        for name, (score_mod, mask_mod) in mods(8, 2048).items():
            theirs = torch_flex.create_block_mask(mask_mod, None, None, 2048, 2048, device="cpu")
            ours = quire_torch.create_block_mask(mask_mod, None, None, 2048, 2048)
            torch._dynamo.reset()
            call = torch.compile(torch_flex.flex_attention)
            yield Row(
                "flex",
                f"{name} {dtype}",
                lambda c=call, s=score_mod, m=theirs: c(q, k, v, s, m),
                lambda s=score_mod, m=ours: quire_torch.flex_attention(q, k, v, s, m),
                peer="compiled flex",
            )


def decode():
    """Against scaled_dot_product_attention(enable_gqa=True): one query, 32 heads over 8, 8,192 keys, D=128.

    Each call takes the keys and values of another sequence, 600 MB and more of them, as a model's layers would: they
    come from memory and not from a cache.
    """
    for dtype in DTYPES:
        size = 2 * 8 * 8192 * 128 * DTYPES[dtype].itemsize
        caches = [
            [torch.randn(1, 8, 8192, 128).to(DTYPES[dtype]) for _ in "kv"] for _ in range(-(-600_000_000 // size))
        ]
        q = torch.randn(1, 32, 1, 128).to(DTYPES[dtype])
        turns = [itertools.cycle(caches), itertools.cycle(caches)]

        def theirs(q=q, turn=turns[0]):
            F.scaled_dot_product_attention(q, *next(turn), enable_gqa=True)

        def ours(q=q, turn=turns[1]):
            quire_torch.flex_attention(q, *next(turn), enable_gqa=True)

        yield Row("decode", f"32/8 heads KV=8192 D=128 {dtype}", theirs, ours, peer="SDPA", calls=len(caches))


def masks():
    """Against create_block_mask. Ours makes index tensors when asked for; "+ tensors" asks for all of them."""
    for length in (2048, 16384):
        for name in ("causal", "document"):
            mask_mod = mods(1, length)[name][1]

            def theirs(mod=mask_mod, n=length):
                torch_flex.create_block_mask(mod, None, None, n, n, device="cpu")

            def ours(mod=mask_mod, n=length):
                quire_torch.create_block_mask(mod, None, None, n, n)

            def ours_with_tensors(mod=mask_mod, n=length):
                quire_torch.create_block_mask(mod, None, None, n, n).as_tuple()

            few = 3 if length > 10000 else None
            for title, call in ((f"{name} {length}", ours), (f"{name} {length} + tensors", ours_with_tensors)):
                yield Row("masks", title, theirs, call, few, "create_block_mask", our_calls=20)


def jagged():
    """Against nested scaled_dot_product_attention of torch, and against a loop of dense calls, one per sequence, as users
    write it who have packed tensors and no padding: H=8, D=64, f32, not causal."""
    random = torch.Generator().manual_seed(0)
    batches = {
        "32 sequences of 16..1,024": torch.randint(16, 1025, (32,), generator=random),
        "1,000 sequences of 1..64": torch.randint(1, 65, (1000,), generator=random),
    }
    for name, lengths in batches.items():
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        packed = [torch.randn(int(offsets[-1]), 8, 64) for _ in range(3)]
        q, k, v = (torch.nested.nested_tensor_from_jagged(t, offsets).transpose(1, 2) for t in packed)
        bounds = list(itertools.pairwise(offsets.tolist()))

        def nested(q=q, k=k, v=v):
            F.scaled_dot_product_attention(q, k, v)

        def loop(packed=packed, bounds=bounds):
            out = torch.empty_like(packed[0])
            for begin, end in bounds:
                one = (t[begin:end].transpose(0, 1).unsqueeze(0) for t in packed)
                out[begin:end] = F.scaled_dot_product_attention(*one)[0].transpose(0, 1)

        def ours(q=q, k=k, v=v):
            quire_torch.scaled_dot_product_attention(q, k, v)

        if len(bounds) < 100:
            yield Row("jagged", f"{name}, nested", nested, ours, peer="nested SDPA", our_calls=5)
        yield Row("jagged", f"{name}, loop", loop, ours, peer="a loop of SDPA", our_calls=5)


def tiny():
    """1 query over 16 keys, 4 heads, D=64, with a mod on our side, traced before: what a call costs at least."""
    q, k, v = torch.randn(1, 4, 1, 64), torch.randn(1, 4, 16, 64), torch.randn(1, 4, 16, 64)
    slopes = torch.rand(4)

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    mask = quire_torch.create_block_mask(lambda b, h, q, kv: kv <= q + 15, None, None, 1, 16)
    for name, arguments in (("no mod", ()), ("ALiBi", (alibi,)), ("ALiBi and mask", (alibi, mask))):
        yield Row(
            "tiny",
            f"1x4x1x64 over 16, {name}",
            lambda: F.scaled_dot_product_attention(q, k, v),
            lambda a=arguments: quire_torch.flex_attention(q, k, v, *a),
            peer="SDPA",
            calls=500,
        )


def short():
    """Against scaled_dot_product_attention: 8 heads, D=64, S queries and keys; no mod, and causal by a block mask."""
    for dtype, length in itertools.product(DTYPES, (1, 16, 128)):
        q, k, v = qkv(8, length, 64, DTYPES[dtype])
        mask = quire_torch.create_block_mask(causal, None, None, length, length)
        for name, is_causal, arguments in (("full", False, ()), ("causal", True, (None, mask))):
            yield Row(
                "short",
                f"S={length} {name} {dtype}",
                lambda q=q, k=k, v=v, c=is_causal: F.scaled_dot_product_attention(q, k, v, is_causal=c),
                lambda q=q, k=k, v=v, a=arguments: quire_torch.flex_attention(q, k, v, *a),
                peer="SDPA",
                calls=max(2, 1000 // (1 + length)),
            )


class PagedPool:
    """Sequences in the pages of a pool, with tables of torch's class and of Quire's that say the same."""

    def __init__(self, page_size, lengths, dtype, n_pages=None, heads=8, dim=128):
        pages = sum(-(-length // page_size) for length in lengths)
        n_pages = n_pages or pages + 16
        self.lengths = torch.tensor(lengths)
        self.theirs = torch_paged.PagedAttention(n_pages, page_size, len(lengths), device="cpu")
        self.ours = quire_torch.PagedAttention(n_pages, page_size, len(lengths))
        order = torch.randperm(n_pages).tolist()
        for paged in (self.theirs, self.ours):
            paged.empty_pages = list(order)
            for b, length in enumerate(lengths):
                paged.reserve(torch.tensor([b]), torch.tensor([length]))
        self.k, self.v = (torch.randn(1, heads, n_pages * page_size, dim).to(dtype) for _ in "kv")

    def masks(self, rule, q_len):
        """The converted mask, torch's and ours."""
        longest, size = int(self.lengths.max()), (128, self.ours.page_size)
        sizes = (len(self.lengths), 1, q_len, longest)
        theirs = torch_flex.create_block_mask(rule, *sizes, device="cpu", BLOCK_SIZE=size)
        ours = quire_torch.create_block_mask(rule, *sizes, BLOCK_SIZE=size)
        return (
            self.theirs.convert_logical_block_mask(theirs, kv_len=self.lengths),
            self.ours.convert_logical_block_mask(ours, kv_len=self.lengths),
        )


def paged_calls():
    """Attention over pages: name -> (pool, queries, rule, score mod)."""
    lengths = [4096, 3000, 2500, 2048, 1500, 1000, 700, 300]
    for dtype in DTYPES:
        for page_size in (128, 16):
            pool = PagedPool(page_size, lengths, DTYPES[dtype])
            last = pool.lengths - 1
            q = torch.randn(len(lengths), 32, 1, 128).to(DTYPES[dtype])
            rule = lambda b, h, q_idx, kv_idx, last=last: kv_idx <= q_idx + last[b]  # noqa: E731
            yield f"decode 8 x 32/8 heads page {page_size} {dtype}", pool, q, rule
        pool = PagedPool(128, [2048], DTYPES[dtype])
        yield (
            f"prefill S=2048 32/8 heads page 128 {dtype}",
            pool,
            torch.randn(1, 32, 2048, 128).to(DTYPES[dtype]),
            causal,
        )


def paged():
    """Against torch's PagedAttention under torch.compile(flex_attention), and its assign. Compiling is not timed."""
    for name, pool, q, rule in paged_calls():
        theirs, ours = pool.masks(rule, q.shape[2])
        torch._dynamo.reset()
        call = torch.compile(torch_flex.flex_attention)
        yield Row(
            "paged",
            name,
            lambda c=call, q=q, p=pool, m=theirs: c(q, p.k, p.v, block_mask=m, enable_gqa=True),
            lambda q=q, p=pool, m=ours: quire_torch.flex_attention(q, p.k, p.v, block_mask=m, enable_gqa=True),
            peer="compiled flex",
        )
    for batch, tokens in ((1, 1), (32, 1), (8, 64), (1, 2048)):
        for dtype in DTYPES:
            pool = PagedPool(16, [tokens] * batch, DTYPES[dtype])
            values = [torch.randn(batch, 8, tokens, 128).to(DTYPES[dtype]) for _ in "kv"]
            places = (torch.arange(batch), torch.arange(tokens).expand(batch, tokens), *values, pool.k, pool.v)
            yield Row(
                "paged",
                f"assign {batch} x {tokens} tokens, 8 heads {dtype}",
                lambda p=pool, a=places: p.theirs.assign(*a),
                lambda p=pool, a=places: p.ours.assign(*a),
                peer="assign",
                calls=20,
            )


def pages():
    """Decode over pages in random order against Quire's own call over dense keys, and SDPA's: 32/8 heads, D=128, bf16."""
    for batch, length, page_sizes in ((1, 512, (32,)), (8, 8192, (16, 32, 128)), (8, 2048, (1, 7))):
        q = torch.randn(batch, 32, 1, 128).bfloat16()
        k, v = (torch.randn(batch, 8, length, 128).bfloat16() for _ in "kv")

        def dense(q=q, k=k, v=v):
            quire_torch.flex_attention(q, k, v, enable_gqa=True)

        def theirs(q=q, k=k, v=v):
            F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        calls = max(1, 20_000 // (batch * length))
        yield Row("pages", f"{batch} x {length}, dense", theirs, dense, peer="SDPA", calls=calls)
        for page_size in page_sizes:
            pool = PagedPool(page_size, [length] * batch, torch.bfloat16)
            last = pool.lengths - 1
            rule = lambda b, h, q_idx, kv_idx, last=last: kv_idx <= q_idx + last[b]  # noqa: E731
            logical = quire_torch.create_block_mask(rule, batch, 1, 1, length, BLOCK_SIZE=(128, page_size))
            mask = pool.ours.convert_logical_block_mask(logical, kv_len=pool.lengths)

            def paged(q=q, p=pool, m=mask):
                quire_torch.flex_attention(q, p.k, p.v, block_mask=m, enable_gqa=True)

            yield Row("pages", f"{batch} x {length}, pages of {page_size}", dense, paged, peer="dense", calls=calls)


def first():
    """A call with a mod never seen before. Torch: compiling flex_attention; Quire: tracing."""
    q, k, v = qkv(2, 256, 64, torch.float32)
    numbers = itertools.count()

    def new_mod():
        names = {"torch": torch, "table": torch.randn(511)}
        source = f"def mod(s, b, h, q, kv):\n  return s + torch.tanh(table[q - kv + 255] * {next(numbers)}.5)\n"
        exec(source, names)
        return names["mod"]

    def theirs():
        torch._dynamo.reset()
        torch.compile(torch_flex.flex_attention)(q, k, v, new_mod())

    yield Row(
        "first",
        "a new mod",
        theirs,
        lambda: quire_torch.flex_attention(q, k, v, new_mod()),
        1,
        "compiled flex",
        our_calls=20,
    )


GROUPS = {f.__name__: f for f in (prefill, backward, flex, decode, paged, pages, jagged, masks, tiny, short, first)}


def machine(threads):
    return {"torch": torch.__version__, "quire": quire.__version__, "threads": threads, "info": str(quire.info())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--groups", default=",".join(GROUPS), help="comma-separated: " + ", ".join(GROUPS))
    parser.add_argument("--filter", default="", help="only rows whose name contains this")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", help="write the results there")
    parser.add_argument("--chart", help="write a bar chart there (PNG or SVG; needs matplotlib)")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    quire.set_num_threads(options.threads)
    about = machine(options.threads)
    print(f"torch {about['torch']}, {options.threads} threads\n{about['info']}", file=sys.stderr)
    results = []
    with torch.inference_mode():
        for group in options.groups.split(","):
            for row in GROUPS[group]():
                if options.filter in row.name:
                    results.append(row.run(options.repetitions))
                    print(f"{row.group}: {row.name}: {results[-1]['ratio']:.3g}x", file=sys.stderr)
    print(table(results))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"machine": about, "results": results}, file, indent=1)
    if options.chart:
        chart([r for r in results if r["group"] not in ("tiny", "short", "pages")], options.chart)


if __name__ == "__main__":
    main()

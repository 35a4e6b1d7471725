"""Section: masks are formulas. Drawings of gallery entries with their formulas, one heat map, and block masks of a
million tokens with the cost of proving them.
"""

import statistics
import time

import numpy as np
import quire
from inline_svg import inline_svg
from markup import escape, paragraph, table
from section import Section

MASKS = [
    "causal", "sliding_window", "document", "prefix_lm", "streaming", "shared_prefix",
    "dilated_window", "global_sliding", "block_diffusion", "natten_2d_tiled", "tree",
]  # fmt: skip
SCORES = ["alibi"]
MILLION = 1 << 20


def drawing(name):
    """A figure: picture, what it is for, formula."""
    entry = quire.mods.gallery_entry(name)
    sizes = entry.sizes
    head = min(1, sizes["heads"] - 1)
    svg = quire.draw_svg(
        entry.mod(),
        sizes["q_len"],
        sizes["kv_len"],
        heads=sizes["heads"],
        batch=sizes["batch"],
        h=head,
        cells=64,
        title=name,
    )
    return (
        f"<figure>{inline_svg(svg)}<figcaption><b>{escape(name)}</b>: {escape(entry.description)}</figcaption>"
        f"<pre><code>{escape(entry.text.strip())}</code></pre></figure>"
    )


def million_token_masks():
    """[(name, mask mod)]"""
    ids = np.arange(MILLION, dtype=np.int32) // 3000
    return [
        ("causal", quire.mods.causal()),
        ("window of 4,096", quire.mods.sliding_window(4096)),
        ("4 sinks and a window", quire.mods.streaming(4, 4096)),
        ("documents of 3,000, causal", quire.mods.document(ids) & quire.mods.causal()),
        ("a rule of one's own", quire.MaskMod("(q_idx >= kv_idx) & ((q_idx - kv_idx) % 32768 < 512)")),
    ]


def proved(mod):
    """(milliseconds, full, partial, empty, bytes) of the block mask over a million queries and keys."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        mask = quire.create_block_mask(mod, None, None, MILLION, MILLION)
        times.append(time.perf_counter() - begin)
    full, partial = int(mask.full_kv_num_blocks.sum()), int(mask.kv_num_blocks.sum())
    rows, columns = (-(-length // block) for length, block in zip(mask.shape[2:], mask.BLOCK_SIZE))
    return statistics.median(times) * 1e3, full, partial, rows * columns - full - partial, mask.nbytes


def mask_gallery(context):
    figures = "\n".join(drawing(name) for name in MASKS + SCORES)
    rows, lines = [], []
    for name, mod in million_token_masks():
        milliseconds, full, partial, empty, stored = proved(mod)
        text = mod.text if len(mod.text) < 90 else mod.text[:87] + "…"
        rows.append(
            (name, text, f"{milliseconds:.1f} ms", f"{full:,}", f"{partial:,}", f"{empty:,}", f"{stored / 1e6:.2f} MB")
        )
        lines.append(
            f"{name:<27} {milliseconds:8.1f} ms   {full:>10,} blocks full, {partial:>9,} partial, {empty:>10,} empty"
        )
    html = (
        paragraph("Dark cells are visible; of large ones, those that are visible in part have another colour. The last picture "
                  "is a score mod: what it adds to a score of 0.")
        + f'<div class="gallery">{figures}</div><h3>{MILLION:,} tokens, proved</h3>'
        + paragraph("Each rule was decided for all 128 × 128 blocks of a million queries and as many keys, by interval "
                    "arithmetic over rectangles; only what stays undecided is split or looked at element by element. "
                    "Medians of 3.")
        + table(("mask", "formula", "time", "full", "partial", "empty", "stored"), rows, numeric=(2, 3, 4, 5, 6))
    )  # fmt: skip
    lines.insert(0, f"{len(MASKS)} masks and {len(SCORES)} score mod are drawn in the report. Over {MILLION:,} tokens:")
    return Section(html, lines)

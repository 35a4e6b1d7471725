"""Section: speed, as a share of what this machine can do and as a ratio to PyTorch. Rows where PyTorch is faster stay."""

import math

import torch_ratios
from bar_chart import Bar, bar_chart
from markup import paragraph, table
from section import HOW_TO_GET_TORCH, Section


def shares(context):
    rows = context.peak_rows
    if not rows:
        text = "There is no bench/attention in this build: build with -DQUIRE_TOOLS=ON."
        return Section(paragraph(text), [text])
    bars = [Bar(_share_name(row), row["share"], f"{row['share']:.0%}", (row["low"], row["high"])) for row in rows]
    ticks = [(i / 4, f"{25 * i} %") for i in range(5)]
    html = (
        "<h3>Share of this machine's own peak</h3>"
        + paragraph(
            "Prefill: of the multiply-adds the cores could have done in that time, softmax and everything else not counted "
            "as work. Decode: of the time it takes only to read the keys and values. The thin line goes from the lowest "
            "repetition to the highest."
        )
        + bar_chart("Share of this machine's own peak", bars, ticks)
    )
    lowest = min(rows, key=lambda row: row["share"])
    note = f"The lowest of these rows: {_share_name(lowest)}, {lowest['share']:.0%}."
    if max(row["share"] for row in rows) > 1:
        note += " Above 100 % the peak itself was disturbed while it was measured."
    html += paragraph(note)
    return Section(html, [_share_line(row) for row in rows])


def _share_line(row):
    of = "a plain read" if row["of"] == "stream" else "peak"
    return f"{row['share']:>5.0%} of {of:<13} {row['ms']:>9.2f} ms  {row['name']}"


def _share_name(row):
    return f"{'decode' if row['of'] == 'stream' else 'prefill'} {row['name']}"


def ratios(context):
    head = "<h3>Against PyTorch</h3>"
    if context.torch is None:
        return Section(head + paragraph(HOW_TO_GET_TORCH), [HOW_TO_GET_TORCH])
    rows, left_out = torch_ratios.measure(context)
    html, lines = head, []
    if rows:
        html += paragraph(
            "Both in one process, in turns, medians; above 1 Quire is faster. “tiny” is what the least call costs; where it "
            "names a mod, that is on our side only."
        )
        html += _ratio_chart(rows)
        html += table(
            ("", "against", "PyTorch", "Quire", "ratio"),
            [_ratio_row(row) for row in rows],
            numeric=(2, 3, 4),
        )
        html += paragraph(losses(rows))
        lines += [f"{r['ratio']:>7.3g}x {r['peer']:<18} {_ratio_name(r)}" for r in rows] + [losses(rows)]
    if left_out:
        text = f"Not measured: {'; '.join(left_out)}."
        html += paragraph(text)
        lines.append(text)
    more = "python bench/compare_torch.py measures all groups, with more repetitions."
    return Section(html + paragraph(more), [*lines, more])


def losses(rows):
    """A sentence about where PyTorch is faster."""
    slower = [f"{_ratio_name(row)} ({row['ratio']:.2f}×)" for row in rows if row["ratio"] < 1]
    if not slower:
        return f"PyTorch is faster in none of these {len(rows)} rows."
    return f"PyTorch is faster in {len(slower)} of these {len(rows)} rows: {', '.join(slower)}."


def _ratio_row(row):
    times = (f"{row[side]:.4g} ms" for side in ("torch_ms", "quire_ms"))
    return _ratio_name(row), row["peer"], *times, f"{row['ratio']:.3g}×"


def _ratio_name(row):
    return f"{row['group']} {row['name']}"


def _ratio_chart(rows):
    bars = [
        Bar(f"{_ratio_name(r)} (against {r['peer']})", r["ratio"], f"{r['ratio']:.3g}×", loss=r["ratio"] < 1) for r in rows
    ]
    low = min(-1, math.floor(math.log10(min(r["ratio"] for r in rows))))
    high = max(1, math.ceil(math.log10(max(r["ratio"] for r in rows))))
    ticks = [(10.0**i, f"{10.0**i:,.6g}×") for i in range(low, high + 1)]
    return bar_chart("Times as fast as PyTorch (logarithmic)", bars, ticks, logarithmic=True, mark=1.0)


def speed(context):
    parts = [shares(context), ratios(context)]
    return Section("".join(p.html for p in parts), [line for p in parts for line in p.lines])

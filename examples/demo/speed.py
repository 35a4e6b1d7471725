"""Section: speed, as a share of what this machine can do and as a ratio to PyTorch. Rows where PyTorch is faster stay."""

import math

import peak_share
import torch_ratios
from bar_chart import Bar, bar_chart
from markup import paragraph, table
from roofline import roofline
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
            "repetition to the highest. A name says batch x heads (of queries / of keys), L queries, S keys, D numbers a head."
        )
        + bar_chart("Share of this machine's own peak", bars, ticks)
    )
    lowest = min(rows, key=lambda row: row["share"])
    note = f"The lowest of these rows: {_share_name(lowest)}, {lowest['share']:.0%}."
    if max(row["share"] for row in rows) > 1:
        note += " Above 100 % the peak itself was disturbed while it was measured."
    html += paragraph(note)
    return Section(html, [_share_line(row) for row in rows])


def roof(context):
    """The same rows under this machine's roofline: arithmetic per byte of keys and values, and the speed reached."""
    rows, peaks = context.peak_rows, {name: value for name, value, _ in peak_share.peaks(context.peak_rows)}
    stream = peaks.get("reading memory")
    roofs = [(name.split()[0], peaks[name], stream) for name in ("f32 multiply-adds", "bf16 products") if name in peaks]
    if stream is None or not roofs:
        return Section("", [])
    points = [(_share_name(row), row["gflops"] / row["gbytes"], row["gflops"], row["of"] == "stream") for row in rows]
    named = [(str(i), name, f"{x:.4g}", f"{y:.4g}") for i, (name, x, y, _) in enumerate(points, 1)]
    html = "<h3>Under this machine's roof</h3>" + paragraph(
        "The slope is what reading memory allows, the flat part what multiply-adds allow; both were measured just now. "
        "Decode does little with each byte of keys and values it reads, so memory is its roof; prefill uses each byte many "
        "times. Orange: decode; rings: bf16, under the upper roof."
    )
    html += roofline("Roofline of this machine", roofs, points)
    html += table(("", "", "FLOP per byte", "GFLOP/s"), named, numeric=(2, 3))
    bends = ", ".join(f"{name} {flops / stream:.3g}" for name, flops, _ in roofs)
    return Section(html, [f"the roof of this machine bends at this many FLOP per byte: {bends} (drawn in the report)"])


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
        lines += [f"{_times(r['ratio']):>7}x {r['peer']:<18} {_ratio_name(r)}" for r in rows] + [losses(rows)]
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
    times = (f"{row[side]:.4g} ms" for side in ("peer_ms", "quire_ms"))
    return _ratio_name(row), row["peer"], *times, f"{_times(row['ratio'])}×"


def _times(ratio):
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _ratio_name(row):
    return f"{row['group']} {row['name']}"


def _ratio_chart(rows):
    bars = [
        Bar(f"{_ratio_name(r)} (against {r['peer']})", r["ratio"], f"{_times(r['ratio'])}×", loss=r["ratio"] < 1)
        for r in rows
    ]
    low = min(-1, math.floor(math.log10(min(r["ratio"] for r in rows))))
    high = max(1, math.ceil(math.log10(max(r["ratio"] for r in rows))))
    ticks = [(10.0**i, f"{10.0**i:,.6g}×") for i in range(low, high + 1)]
    return bar_chart("Times as fast as PyTorch (logarithmic)", bars, ticks, logarithmic=True, mark=1.0)


def speed(context):
    parts = [shares(context), roof(context), ratios(context)]
    return Section("".join(p.html for p in parts), [line for p in parts for line in p.lines])

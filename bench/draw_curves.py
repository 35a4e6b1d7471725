"""Draws what `bench/short curve --json` printed: the share of the peak over the length, as an SVG without any library.

    build/release/bench/short curve --json > after.json
    python bench/draw_curves.py docs/peak_share.svg after.json [before.json]

Four panels, f32 and bf16 by D=64 and 128; full and causal each; of `before`, thin lines.
"""

import json
import math
import re
import sys

WIDTH, HEIGHT, LEFT, TOP, GAP = 380, 230, 46, 34, 60
COLOURS = {"full": "#4269d0", "causal": "#e8731a"}
LENGTHS = [16 * 2**i for i in range(10)]


def curves(path):
    """(dtype, dim, mask) -> {length: share}"""
    found = {}
    for line in open(path):
        row = json.loads(line)
        parts = re.search(r"curve, .*?L(\d+) S\d+ D(\d+) (\w+)(.*)", row["name"])
        if parts is None:
            continue
        mask = "causal" if "causal" in parts.group(4) else "full"
        found.setdefault((parts.group(3), int(parts.group(2)), mask), {})[int(parts.group(1))] = row["of the peak"]
    return found


def place(length, share):
    last = math.log2(LENGTHS[-1] / LENGTHS[0])
    return WIDTH * math.log2(length / LENGTHS[0]) / last, HEIGHT * (1 - min(share, 1))


def line(points, colour, is_before):
    joined = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in sorted(points.items()))
    style = 'stroke-width="1.2" stroke-dasharray="3 3"' if is_before else 'stroke-width="2.2"'
    return f'<polyline fill="none" stroke="{colour}" {style} points="{joined}"/>'


def panel(dtype, dim, after, before):
    yield f'<text x="{WIDTH / 2}" y="-12" text-anchor="middle" font-weight="bold">{dtype}, D={dim}</text>'
    for share in (0, 0.2, 0.4, 0.6, 0.8, 1):
        _, y = place(16, share)
        yield f'<line x1="0" x2="{WIDTH}" y1="{y}" y2="{y}" stroke="#ccc" stroke-width="0.6"/>'
        yield f'<text x="-6" y="{y + 4}" text-anchor="end">{share:g}</text>'
    for length in LENGTHS[::2] + LENGTHS[-1:]:
        x, _ = place(length, 0)
        yield f'<text x="{x:.1f}" y="{HEIGHT + 16}" text-anchor="middle">{length:,}</text>'
    for mask, colour in COLOURS.items():
        for curves_of, is_before in ((before, True), (after, False)):
            if (dtype, dim, mask) in curves_of:
                yield line(curves_of[dtype, dim, mask], colour, is_before)


def main(to, after, before=None):
    after, before = curves(after), curves(before) if before else {}
    total_width, total_height = 2 * (WIDTH + GAP) + LEFT, 2 * (HEIGHT + GAP) + TOP + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width} {total_height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{total_width}" height="{total_height}" fill="white"/>',
    ]
    for row, dtype in enumerate(("f32", "bf16")):
        for column, dim in enumerate((64, 128)):
            x, y = LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + GAP)
            lines += [f'<g transform="translate({x},{y})">', *panel(dtype, dim, after, before), "</g>"]
    y = total_height - 12
    words = "share of the peak over queries and keys; "
    words += "blue full, orange causal" + ("; dashed before" if before else "")
    lines += [f'<text x="{LEFT}" y="{y}">{words}</text>', "</svg>"]
    with open(to, "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

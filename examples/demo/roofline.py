"""This machine's roof as an inline SVG: what multiply-adds and reading memory allow at most, and where calls of attention are
under it. Both axes are logarithmic; colours come from the classes of the page."""

import math

from markup import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 330, 52, 24, 12, 44


class _Axes:
    """Powers of ten (y) and of two (x) around what is shown."""

    def __init__(self, xs, ys):
        self.x_low, self.x_high = 2.0 ** math.floor(math.log2(min(xs)) - 1), 2.0 ** math.ceil(math.log2(max(xs)) + 1)
        self.y_low, self.y_high = 10.0 ** math.floor(math.log10(min(ys))), 10.0 ** math.ceil(math.log10(max(ys)))

    def x(self, value):
        return LEFT + (WIDTH - LEFT - RIGHT) * _share(value, self.x_low, self.x_high)

    def y(self, value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _share(value, self.y_low, self.y_high)


def roofline(title, roofs, points):
    """`roofs`: [(name, GFLOP/s, GB/s)]; `points`: [(name, FLOP per byte, GFLOP/s, is_read_bound)]."""
    xs = [x for _, x, _, _ in points] + [flops / stream for _, flops, stream in roofs]
    axes = _Axes(xs, [y for _, _, y, _ in points] + [flops for _, flops, _ in roofs])
    parts = [f"<title>{escape(title)}</title>", *_grid(axes)]
    for name, flops, stream in roofs:
        bend, top = flops / stream, axes.y(flops)
        start = max(axes.x_low, axes.y_low / stream)
        line = f"M{axes.x(start):.1f} {axes.y(start * stream):.1f}L{axes.x(bend):.1f} {top:.1f}H{axes.x(axes.x_high):.1f}"
        parts.append(f'<path class="roof" d="{line}"/>')
        parts.append(_text("tick", axes.x(axes.x_high) - 4, top - 5, "end", f"{name}: {flops:.4g} GFLOP/s"))
    _, flops, stream = min(roofs, key=lambda roof: roof[1])
    half = flops / stream / 2
    parts.append(_text("tick", axes.x(half) - 10, axes.y(half * stream), "end", f"{stream:.3g} GB/s"))
    for number, (name, x, y, is_read_bound) in enumerate(points, 1):
        at, kind = (axes.x(x), axes.y(y)), "loss" if is_read_bound else "bar"
        said = f"<title>{escape(name)}: {y:.4g} GFLOP/s</title>"
        parts.append(f'<circle class="{kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="5">{said}</circle>')
        aside, anchor = (8, "start") if number % 2 else (-8, "end")  # neighbours on different sides
        parts.append(_text("value", at[0] + aside, at[1] + 4, anchor, str(number)))
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="12">\n{inside}\n</svg>'
    )


def _share(value, low, high):
    return min(1.0, max(0.0, math.log(value / low) / math.log(high / low)))


def _grid(axes):
    for power in range(round(math.log10(axes.y_low)), round(math.log10(axes.y_high)) + 1):
        y = axes.y(10.0**power)
        yield f'<line class="axis" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield _text("tick", LEFT - 6, y + 4, "end", f"{10.0**power:,.6g}")
    first, last = round(math.log2(axes.x_low)), round(math.log2(axes.x_high))
    for power in range(first, last + 1, max(1, (last - first) // 7)):
        x = axes.x(2.0**power)
        yield f'<line class="axis" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>'
        yield _text("tick", x, HEIGHT - BOTTOM + 15, "middle", f"{2.0**power:,.6g}")
    yield _text("tick", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "middle", "FLOP per byte of keys and values")
    yield f'<text class="tick" transform="translate(12 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">GFLOP/s</text>'


def _text(kind, x, y, anchor, text):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

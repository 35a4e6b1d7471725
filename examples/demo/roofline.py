"""This machine's roofline as an inline SVG: the limits of multiply-adds and of reading memory, and where attention
calls are below them. Both axes are logarithmic; colours come from the classes of the page.
"""

import math

from markup import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 330, 52, 24, 12, 44


class _Axes:
    """Powers of two (x), and 1, 2 or 5 times a power of ten (y), around what is shown."""

    def __init__(self, xs, ys):
        self.x_low, self.x_high = 2.0 ** math.floor(math.log2(min(xs)) - 1), 2.0 ** math.ceil(math.log2(max(xs)) + 1)
        self.y_low, self.y_high = _round_down(min(ys) / 1.5), _round_up(1.2 * max(ys))

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
        line = (
            f"M{axes.x(start):.1f} {axes.y(start * stream):.1f}L{axes.x(bend):.1f} {top:.1f}H{axes.x(axes.x_high):.1f}"
        )
        parts.append(f'<path class="roof" d="{line}"/>')
        parts.append(_text("tick", axes.x(axes.x_high) - 4, top - 5, "end", f"{name}: {flops:.4g} GFLOP/s"))
    _, flops, stream = min(roofs, key=lambda roof: roof[1])
    half = flops / stream / 2
    parts.append(_text("tick", axes.x(half) - 10, axes.y(half * stream), "end", f"{stream:.3g} GB/s"))
    places = [(axes.x(x), axes.y(y)) for _, x, y, _ in points]
    labels = _free_places(places)
    for number, ((name, _, y, is_read_bound), at, label) in enumerate(zip(points, places, labels), 1):
        kind = "loss" if is_read_bound else "roomy" if "bf16" in name else "bar"
        said = f"<title>{escape(name)}: {y:.4g} GFLOP/s</title>"
        parts.append(f'<circle class="{kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="5">{said}</circle>')
        parts.append(_text("value", label[0], label[1] + 4, "middle", str(number)))
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="12">\n{inside}\n</svg>'
    )


def _free_places(points):
    """For each point a position next to it for a number, away from other points and numbers if there is room."""
    taken, places = list(points), []
    for x, y in points:
        around = [
            (x + dx, y + dy)
            for dx, dy in ((13, 0), (-13, 0), (0, -14), (0, 14), (13, -13), (-13, 13), (13, 13), (-13, -13))
        ]

        def room(place):
            return (
                min(max(abs(place[0] - a) / 14, abs(place[1] - b) / 12) for a, b in taken if (a, b) != (x, y))
                if len(taken) > 1
                else 1
            )

        best = next((place for place in around if room(place) >= 1), None) or max(around, key=room)
        places.append(best)
        taken.append(best)
    return places


def _steps():
    """1, 2 and 5 times every power of ten, ascending."""
    return [step * 10.0**power for power in range(-6, 9) for step in (1, 2, 5)]


def _round_down(value):
    return max(step for step in _steps() if step <= value)


def _round_up(value):
    return min(step for step in _steps() if step >= value)


def _share(value, low, high):
    return min(1.0, max(0.0, math.log(value / low) / math.log(high / low)))


def _grid(axes):
    for value in (step for step in _steps() if axes.y_low <= step <= axes.y_high):
        y = axes.y(value)
        yield f'<line class="axis" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield _text("tick", LEFT - 6, y + 4, "end", f"{value:,.6g}")
    first, last = round(math.log2(axes.x_low)), round(math.log2(axes.x_high))
    for power in range(first, last + 1, max(1, (last - first) // 7)):
        x = axes.x(2.0**power)
        yield f'<line class="axis" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>'
        yield _text("tick", x, HEIGHT - BOTTOM + 15, "middle", f"{2.0**power:,.6g}")
    yield _text("tick", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "middle", "FLOP per byte of keys and values")
    yield f'<text class="tick" transform="translate(12 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">GFLOP/s</text>'


def _text(kind, x, y, anchor, text):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

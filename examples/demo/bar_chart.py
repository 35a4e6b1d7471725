"""Horizontal bars as an inline SVG. Colours come from the classes of the page, so that they follow light and dark."""

import dataclasses
import math

from markup import escape

WIDTH, LEFT, RIGHT, ROW, TOP, BOTTOM = 420, 4, 62, 36, 4, 22


@dataclasses.dataclass
class Bar:
    """`spread`: (low, high), a thin line; `loss`: another colour."""

    label: str
    value: float
    text: str
    spread: tuple[float, float] | None = None
    loss: bool = False


def bar_chart(title, bars, ticks, logarithmic=False, mark=None):
    """`ticks`: [(value, text)] in order; the axis goes from the first to the last. `mark`: where a dashed
    line stands and bars begin, to either side; without it they begin at the left."""
    height = TOP + ROW * len(bars) + BOTTOM
    parts = [f"<title>{escape(title)}</title>"]
    place = _scale(ticks[0][0], ticks[-1][0], logarithmic)
    end = height - BOTTOM
    for value, text in ticks:
        x = place(value)
        anchor = "start" if x < LEFT + 8 else "middle"
        parts.append(f'<line class="axis" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{end}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 6}" text-anchor="{anchor}">{escape(text)}</text>')
    begin = LEFT if mark is None else place(mark)
    if mark is not None:
        parts.append(f'<line class="mark" x1="{begin:.1f}" y1="{TOP}" x2="{begin:.1f}" y2="{end}"/>')
    parts += [_bar(bar, TOP + ROW * i, place, begin) for i, bar in enumerate(bars)]
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" font-size="12">\n{inside}\n</svg>'
    )


def _scale(low, high, logarithmic):
    """value -> x; values outside of the axis stop at its ends."""
    at = math.log if logarithmic else float
    length = WIDTH - LEFT - RIGHT

    def place(value):
        share = (at(max(value, low)) - at(low)) / (at(high) - at(low))
        return LEFT + length * min(1.0, max(0.0, share))

    return place


def _bar(bar, y, place, begin):
    end = place(bar.value)
    left, width = min(begin, end), max(1.0, abs(end - begin))
    kind = "loss" if bar.loss else "bar"
    parts = [
        f'<text class="label" x="{LEFT}" y="{y + 14}">{escape(bar.label)}</text>',
        f'<rect class="{kind}" x="{left:.1f}" y="{y + 19}" width="{width:.1f}" height="11"/>',
    ]
    text_at = max(begin, end)
    if bar.spread is not None:
        low, high = place(bar.spread[0]), place(bar.spread[1])
        parts.append(f'<line class="spread" x1="{low:.1f}" y1="{y + 24.5}" x2="{high:.1f}" y2="{y + 24.5}"/>')
        text_at = max(text_at, high)
    parts.append(f'<text class="value" x="{text_at + 5:.1f}" y="{y + 29}">{escape(bar.text)}</text>')
    return "\n".join(parts)

"""Embeds drawings of quire.draw_svg in a page: style sheets and ids of an inline SVG apply to the whole document, so
each drawing gets its own names.
"""

import itertools
import re

_numbers = itertools.count()


def inline_svg(file_text):
    """The text of an SVG file -> an <svg> element that can be placed next to others. Title and caption, which would be
    too small to read, are left to the text around it; the remaining text is enlarged.
    """
    file_text = _without_headings(file_text)
    prefix = f"d{next(_numbers)}"
    text = re.sub(r'class="(i\d+)"', rf'class="{prefix}\1"', file_text)
    text = re.sub(r'id="(\w+)"', rf'id="{prefix}\1"', text)
    return re.sub(
        r"<style>.*?</style>", lambda m: re.sub(r"\.(i\d+)\{", rf".{prefix}\1{{", m[0]), text, flags=re.DOTALL
    ).strip()


def _without_headings(text):
    """Removes the lines of text above the axes and moves the picture up."""
    label = re.compile(r'<text x="\d+" y="(\d+)"( text-anchor="\w+")?[^>]*>.*?</text>\n')
    headings = list(itertools.takewhile(lambda found: found[2] is None, label.finditer(text)))
    for found in headings:
        text = text.replace(found[0], "", 1)
    top = max((int(found[1]) for found in headings), default=0)
    width, height = re.search(r'viewBox="0 0 (\d+) (\d+)"', text).groups()
    text = re.sub(r'font-size="[\d.]+"', 'font-size="15"', text, count=1)
    return re.sub(
        r'width="\d+" height="\d+" viewBox="[^"]*"', f'viewBox="0 {top} {width} {int(height) - top}"', text, count=1
    )

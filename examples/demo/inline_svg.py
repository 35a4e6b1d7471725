"""Drawings of quire.draw_svg as parts of a page: style sheets and ids of an inline SVG count for the whole document, so each
drawing gets names of its own."""

import itertools
import re

_numbers = itertools.count()


def inline_svg(file_text):
    """The text of an SVG file -> an <svg> element that can stand beside others."""
    prefix = f"d{next(_numbers)}"
    text = re.sub(r'class="(i\d+)"', rf'class="{prefix}\1"', file_text)
    text = re.sub(r'id="(\w+)"', rf'id="{prefix}\1"', text)
    return re.sub(
        r"<style>.*?</style>", lambda m: re.sub(r"\.(i\d+)\{", rf".{prefix}\1{{", m[0]), text, flags=re.DOTALL
    ).strip()

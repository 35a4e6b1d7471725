"""Makes the report of `make demo`: one HTML file that loads nothing, and a short version in the terminal.

    PYTHONPATH=build/demo/python python examples/demo --build build/demo --out demo/report.html

Exits with 1 if something it shows is wrong: bits that differ, an error that is too large.
"""

import argparse
import os
import pathlib
import sys
import time

import quire
from accuracy import accuracy
from custom_mods import custom_mods
from gradients import gradients
from layouts import layouts
from machine import machine
from mask_gallery import mask_gallery
from next_steps import next_steps
from page import page
from same_bits import same_bits
from section import Context
from speed import speed

SECTIONS = [
    ("machine", "This machine", machine),
    ("masks", "Masks are formulas", mask_gallery),
    ("mods", "A rule of one's own", custom_mods),
    ("layouts", "Layouts", layouts),
    ("accuracy", "Error against f64", accuracy),
    ("bits", "The same bits", same_bits),
    ("gradients", "Gradients", gradients),
    ("speed", "Speed", speed),
    ("next", "What to try next", next_steps),
]


def heading(text):
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(f"\n\x1b[1;36m== {text}\x1b[0m" if is_coloured else f"\n== {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the folder with quire, examples/ and bench/")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the HTML file to write")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: everything is shown, times mean nothing")
    parser.add_argument(
        "--seconds", type=float, default=Context.seconds, help="comparisons that would take longer are left out"
    )
    options = parser.parse_args()
    context = Context(options.build.resolve(), options.quick, options.seconds, str(options.build))
    shown = []
    for name, title, make in SECTIONS:
        heading(title)
        shown.append((name, title, make(context)))
        print("\n".join(shown[-1][2].lines), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page(shown, quire.__version__), encoding="utf-8")
    size, seconds = options.out.stat().st_size / 1e6, time.monotonic() - context.begin
    print(f"\nreport: {options.out} ({size:.2f} MB, made in {seconds:.0f} s)")
    wrong = [title for _, title, section in shown if not section.good]
    if wrong:
        print(f"demo: something is wrong in: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

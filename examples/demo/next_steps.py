"""Section: what to try next. The list is next_steps.txt, which scripts/demo prints in the terminal too."""

import pathlib

from markup import Raw, escape, table
from section import Section


def steps(build):
    """[(what to type, what it shows)]"""
    lines = pathlib.Path(__file__).with_name("next_steps.txt").read_text(encoding="utf-8").splitlines()
    return [tuple(part.strip() for part in line.replace("{build}", build).split(" | ")) for line in lines]


def next_steps(context):
    known = steps(context.build_name)
    rows = [(Raw(f"<code>{escape(command)}</code>"), meaning) for command, meaning in known]
    return Section(table(("type", "to see"), rows), [f"  {command:<56} {meaning}" for command, meaning in known])

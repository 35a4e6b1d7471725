"""docs/python.md and the pages of the hooks are programs that print what they show, and the examples run."""

import contextlib
import io
import re
import subprocess
import sys

import pytest
import quire

BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps_of(text):
    """[(program, what it prints)] of each ```python block with the ```text block behind it."""
    blocks = BLOCK.findall(text)
    assert [kind for kind, _ in blocks] == ["python", "text"] * (len(blocks) // 2), "every program shows what it prints"
    return [(blocks[i][1], blocks[i + 1][1]) for i in range(0, len(blocks), 2)]


def matches(expected, printed):
    """A line of three dots stands for any lines; blanks at the ends of lines do not count."""
    lines = [line.rstrip() for line in expected.strip().splitlines()]
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in lines)
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in printed.strip().splitlines())) is not None


def test_matches():
    assert matches("a\n...\nc\n", "a \nb\nb\nc\n") and matches("a\n", "a") and not matches("a\n...\nc\n", "a\nb\n")


@pytest.mark.parametrize("page, least", [("python", 5), ("sinks", 1), ("weight_mod", 1), ("rope", 1)])
def test_the_page_prints_what_it_shows(root, page, least):
    names = {}
    steps = steps_of((root / f"docs/{page}.md").read_text())
    assert len(steps) >= least
    for program, expected in steps:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(program, names)
        assert matches(expected, out.getvalue()), f"{program}\n---- printed\n{out.getvalue()}\n---- and not\n{expected}"


PRINTED = {
    "first_mods.py": "score + slopes[h] * (kv_idx - q_idx)",
    "decode.py": "20 steps over 120 tokens, steps with other bits than one call over all: 0\n",
}


@pytest.mark.parametrize("name", PRINTED)
def test_examples(name, root, python_env):
    run = subprocess.run(
        [sys.executable, root / "examples" / name], env=python_env, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0 and run.stderr == "" and PRINTED[name] in run.stdout


def test_every_function_the_page_names_exists(root):
    for name in re.findall(r"quire\.(\w+)", (root / "docs/python.md").read_text()):
        assert name == "torch" or hasattr(quire, name), name

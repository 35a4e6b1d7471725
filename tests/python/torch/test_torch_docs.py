"""The Python programs of README.md and of the pages about PyTorch print what is shown, and the tests that docs/differences.md names exist."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
NAMES = ("README.md", "docs/torch.md", "docs/training.md", "docs/varlen.md", "docs/flash_attn.md")
PAGES = "".join((ROOT / name).read_text() for name in NAMES)
PROGRAMS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGES, re.MULTILINE | re.DOTALL)


def lines(text):
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_print_what_is_shown(number, tmp_path):
    import os

    import quire

    source, expected = PROGRAMS[number]
    (tmp_path / "program.py").write_text(source)
    env = {**os.environ, "PYTHONPATH": str(pathlib.Path(quire.__file__).parents[1])}
    run = subprocess.run([sys.executable, tmp_path / "program.py"], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert lines(run.stdout) == lines(expected)


def test_there_are_programs():
    assert len(PROGRAMS) == PAGES.count("```python")


def test_named_tests_exist():
    named = re.findall(r"(test_torch_\w+\.py)::(\w+)", (ROOT / "docs/differences.md").read_text())
    assert named
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests/python/torch" / file).read_text(), f"{file}::{name}"

"""docs/transformers.md prints what it shows, and so do the examples in the docstrings."""

import doctest
import pathlib
import re
import subprocess
import sys

import pytest
import quire.transformers

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs/transformers.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_there_are_programs():
    assert PROGRAMS and len(PROGRAMS) == PAGE.count("```python")


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_print_what_is_shown(number, python_env):
    source, expected = PROGRAMS[number]
    run = subprocess.run([sys.executable, "-c", source], env=python_env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == expected.strip()


MODULES = ("", ".attention", ".cache", ".masks")


@pytest.mark.parametrize("name", [f"quire.transformers{name}" for name in MODULES])
def test_examples_in_docstrings(name):
    found = doctest.testmod(sys.modules[name])
    assert found.failed == 0 and (found.attempted > 0)


def test_every_public_name_has_an_example():
    for name in quire.transformers.__all__:
        assert ">>>" in getattr(quire.transformers, name).__doc__, name

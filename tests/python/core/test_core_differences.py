"""Every row of docs/differences.md names tests that exist."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in (ROOT / "docs/differences.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]
ROWS = [row for row in ROWS if row[-1] != "test"]


def gtests():
    """Suite.Name of all C++ tests."""
    pattern = re.compile(r"^[A-Z_]*(?:TEST|PROP|PROPERTY)[A-Z_]*\((\w+),\s*(\w+)", re.M)
    for path in (ROOT / "tests").rglob("*.cc"):
        for found in pattern.findall(path.read_text(encoding="utf-8")):
            yield ".".join(found)


@pytest.fixture(scope="module")
def known():
    functions = {
        f"{path.name}::{name}"
        for path in (ROOT / "tests/python").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
    }
    return set(gtests()), functions


def test_tests_are_found(known):
    assert len(known[0]) > 500 and len(known[1]) > 300
    assert "Bits.HiddenKeysAreNeverSeen" in known[0] and "test_torch_nested.py::test_mask_mods" in known[1]


def test_there_are_rows():
    assert len(ROWS) > 40 and all(len(row) == 4 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:50])
def test_its_tests_exist(row, known):
    gtest_names, functions = known
    filters = re.findall(r"--gtest_filter='([^']+)'", row[-1])
    for wanted in filters:
        assert any(re.fullmatch(wanted.replace(".", r"\.").replace("*", ".*"), name) for name in gtest_names), wanted
    named = re.findall(r"`([\w.]*)::(\w+)`", row[-1])
    file = ""
    for given, function in named:
        file = given or file
        assert f"{file}::{function}" in functions
    assert filters or named

"""The walks of ARCHITECTURE.md: calls from top to bottom in at most six files, through functions that are there."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = "| file | functions | what happens there |"


def walks():
    """{"first file: first function": [(file, functions)]} of every table."""
    found = {}
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    for start in (i for i, line in enumerate(lines) if line == HEADER):
        rows = []
        for line in lines[start + 2 :]:
            if not line.startswith("|"):
                break
            file, functions, _ = (cell.strip() for cell in line.strip("|").split("|", 2))
            rows.append((file.strip("`"), re.findall(r"`([^`]+)`", functions)))
        found[f"{rows[0][0]}: {rows[0][1][0]}"] = rows
    return found


def missing(walk):
    """Functions whose name does not stand in the file that is said to have them."""
    complaints = []
    for file, functions in walk:
        text = (ROOT / file).read_text(encoding="utf-8")
        for name in functions:
            if not re.search(rf"\b{re.escape(re.split(r'::|[.]', name)[-1])}\b", text):
                complaints.append(f"{file}: {name}")
    return complaints


@pytest.mark.parametrize("name", walks())
def test_a_walk(name):
    walk = walks()[name]
    files = [file for file, _ in walk]
    assert len(files) <= 6
    assert len(set(files)) == len(files)
    assert all(functions for _, functions in walk)
    assert missing(walk) == []


def test_the_five_calls_are_walked():
    tables = list(walks().values())
    firsts = [(file, functions[0]) for (file, functions), *_ in tables]
    assert ("src/attention/flex_attention.cc", "flex_attention") in firsts
    assert ("src/attention/flex_attention.cc", "attend") in firsts
    assert ("src/sdpa/scaled_dot_product_attention.cc", "scaled_dot_product_attention") in firsts
    assert ("src/mask/create_block_mask.cc", "create_block_mask") in firsts
    assert ("python/quire/torch/flex_attention.py", "flex_attention") in firsts


def test_a_function_that_is_not_there_is_noticed():
    assert missing([("src/attention/flex_attention.cc", ["no_such_function"])])

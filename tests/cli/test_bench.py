"""`quire bench` and `quire demo`: what they print, as a table and as JSON, and that the tour says yes to everything."""

import json
import re
import subprocess

import pytest


@pytest.fixture
def quire(build_dir, clean_env):
    def run(*arguments, **environment):
        return subprocess.run(
            [build_dir / "quire", *arguments],
            env={**clean_env, **environment},
            text=True,
            timeout=120,
            capture_output=True,
        )

    return run


def test_bench_as_json(quire):
    done = quire("bench", "--json", "--repetitions", "1")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert list(found) == ["quire", "cpu", "isa", "threads", "peaks", "rows"]
    assert found["peaks"]["f32_gflops"] > 0.1 and found["peaks"]["read_gbytes"] > 0.1
    assert [row["of"] for row in found["rows"]] == ["peak"] * 6 + ["read"] * 2
    for row in found["rows"]:
        assert row["ms"] > 0 and 0 < row["low"] <= row["share"] <= row["high"]
    assert found["rows"][1]["problem"].endswith("causal (blocks of 128)")


def test_bench_as_a_table(quire):
    done = quire("bench", "--repetitions", "1")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line for line in done.stdout.splitlines() if re.search(r"% of (peak|read) \[[#.]{20}\]$", line)]
    assert len(rows) == 8 and rows[0].startswith("prefill ")
    assert "\x1b" not in done.stdout


def test_bench_follows_isa_and_threads(quire):
    found = json.loads(quire("bench", "--json", "--repetitions", "1", QUIRE_ISA="scalar", QUIRE_NUM_THREADS="1").stdout)
    assert (found["isa"], found["threads"]) == ("scalar", 1)


def test_wrong_command_lines(quire):
    for arguments in (["bench", "--repetitions", "0"], ["bench", "more"], ["demo", "--fast"]):
        done = quire(*arguments)
        assert (done.returncode, done.stdout) == (2, "")


def test_demo(quire):
    done = quire("demo")
    assert (done.returncode, done.stderr) == (0, "")
    headings = re.findall(r"^== (.*)$", done.stdout, re.MULTILINE)
    assert headings == [
        "This machine",
        "Masks are formulas, and can be drawn",
        "One rule over dense, jagged and paged keys: the same bits",
        "Its gradients, those of the captured table included",
        "A mask over a million tokens is proved, not filled in",
        "A mistake is shown where it is",
        "Speed, as a share of what this machine can do",
        "What to try next",
    ]
    assert len(re.findall(r": +yes$", done.stdout, re.MULTILINE)) == 10 and "NO" not in done.stdout
    for layout in ("dense, one by one", "jagged, one call", "pages of 16 tokens"):
        assert re.search(rf"^  {layout} +error against f64 \S+, bits equal: yes$", done.stdout, re.MULTILINE)
    for name in "qkv":
        assert re.search(rf"^  of {name} +error against f64 \S+, within 1e-5: +yes$", done.stdout, re.MULTILINE)
    assert "\x1b" not in done.stdout


def test_every_command_teaches_by_examples(quire):
    help_text = quire("--help").stdout
    for command in ("info", "draw", "explain", "bench", "attend", "demo"):
        assert re.search(rf"^  {command} ", help_text, re.MULTILINE)
        done = quire(command, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"\n  quire {command} " in done.stdout or f"\n  quire {command}\n" in done.stdout
    assert "Exit codes: 0 done, 1 " in help_text and "NO_COLOR" in help_text
    assert help_text.startswith("Programmable attention for CPUs")
